"""The manifest of a package: what is in it, for whom, as frozen values and as JSON.

`SCHEMA` is raised when a field is added or changes its meaning. JSON has the fields by their names; the
reader checks names and types of all of them, and nothing else is in it.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, TypeVar

from coilwork_aot.errors import PackageError
from coilwork_aot.trees import Tree, convert_to_json, read_from_json
from coilwork_aot.weights import TensorPlace
from coilwork_runtime.dtypes import get_torch_dtype

SCHEMA: Final = 3
MANIFEST: Final = "manifest.json"
DIGEST: Final = "manifest.sha256"
WEIGHTS: Final = "weights.safetensors"
MOST_MANIFEST_BYTES: Final = 256 * 1024 * 1024

_T = TypeVar("_T")
Size = int | str
"""A size or stride: a number, or the name of a symbol; an empty text is a size that the program checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """A record: its size in bytes, and its digest (`coilwork_aot.record_hashes`)."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A leaf of the inputs or results.

    Attributes:
        kind: a tensor, a number, or fixed at export.
        name: for messages.
        position: among the inputs behind the state, or among the results; -1 of fixed ones.
        value: of a fixed one.
        dtype, device, sizes, strides: of a tensor; `device` is a type of devices. A number has one size, its
            symbol.
        is_written: the program writes to it.
    """

    kind: Literal["tensor", "number", "fixed"]
    name: str = ""
    position: int = -1
    value: bool | int | float | str | None = None
    dtype: str = ""
    device: str = ""
    sizes: tuple[Size, ...] = ()
    strides: tuple[Size, ...] = ()
    is_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A kernel's binary for a configuration; `record` holds it."""

    config: Mapping[str, int]
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """The facts about the target that a program was compiled for.

    Attributes:
        device: type of devices, as torch names it.
        name: of the target, e.g. `sm_90`, `x86-64-avx2`.
        system, machine: of the host: `linux`, `x86_64`.
        features: instruction sets of the host that kernels use.
    """

    device: str
    name: str
    system: str = ""
    machine: str = ""
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A program of an entry point, for some inputs and one target.

    Attributes:
        target: what it runs on.
        inputs, results: their leaves.
        in_tree, out_tree: their nesting; that of the inputs is `(args, kwargs)`.
        symbols: bounds of the symbols in sizes; no upper one is -1.
        state: numbers of the state that are the program's first inputs, in order.
        constants: numbers of the state that are the program's constants, by key.
        program, kernels: records.
        calls: record of the plans of the program's calls, for a process without Python.
        binaries: of each kernel.
        roles: around the program.
        refusal: why the native executor does not run it.
        devices: that it has tensors on.
        rounds_freely: results may differ from eager's in their last bits.
    """

    target: TargetFacts
    inputs: tuple[Leaf, ...]
    results: tuple[Leaf, ...]
    in_tree: Tree
    out_tree: Tree
    symbols: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    state: tuple[int, ...]
    constants: Mapping[str, int]
    program: str
    kernels: str
    calls: str
    binaries: Mapping[str, tuple[Binary, ...]]
    roles: str
    refusal: str = ""
    devices: tuple[str, ...]
    rounds_freely: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntry:
    """A parameter, buffer or constant, and where it lies.

    Attributes:
        name: in the `state_dict`; of constants, unique.
        is_persistent: it is in the `state_dict`.
    """

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    is_persistent: bool
    place: TensorPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A package.

    Attributes:
        made_by: versions of what made it.
        torch: the first version that it runs with, and the first that it does not.
        runtime: the version of the runtime's formats.
        entries: variants of each entry point, those to prefer first.
        state: what entry points share.
        records: all records but this one and its digest.
    """

    schema: int
    name: str
    made_by: Mapping[str, str]
    torch: tuple[str, str]
    runtime: str
    entries: Mapping[str, tuple[Variant, ...]]
    state: tuple[StateEntry, ...]
    records: Mapping[str, RecordFacts]


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as JSON."""
    return json.dumps(_convert_to_json(manifest), sort_keys=True, separators=(",", ":")).encode()


def decode_manifest(data: bytes) -> Manifest:
    """Inverse of `encode_manifest`.

    Raises:
        PackageError: it is of another schema, or damaged.
    """
    try:
        value = json.loads(data)
        schema = value["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _make_damage_error(error) from error
    if schema != SCHEMA:
        raise PackageError(
            "schema-version",
            f"the package has schema {schema}, and this version of coilwork-aot reads {SCHEMA}",
            remedy="install the version that wrote it, or export again",
        )
    try:
        manifest: Manifest = _make_reader(Manifest)(value)
        _check(manifest)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise _make_damage_error(error) from error
    return manifest


def _make_damage_error(error: Exception) -> PackageError:
    return PackageError(
        "damaged-manifest",
        "the manifest does not describe a package",
        reason=f"{type(error).__name__}: {error}"[:500],
        remedy="copy or export the package again",
    )


def _check(manifest: Manifest) -> None:
    """Check that the parts of a manifest fit together.

    Raises:
        ValueError: they do not.
        KeyError: an element type has no known name.
    """
    count = len(manifest.state)
    if not manifest.entries or not all(manifest.entries.values()):
        raise ValueError("it has no entry point")
    if len({entry.name for entry in manifest.state}) != count:
        raise ValueError("two states have one name")
    for entry in manifest.state:
        get_torch_dtype(entry.place.dtype)
    for variant in (one for variants in manifest.entries.values() for one in variants):
        if not all(0 <= number < count for number in (*variant.state, *variant.constants.values())):
            raise ValueError("a program has a state that is not there")
        binaries = (one.record for kernels in variant.binaries.values() for one in kernels)
        for record in (variant.program, variant.kernels, variant.calls, *binaries):
            if record not in manifest.records:
                raise ValueError(f"it does not list record {record}")
        for leaves, tree in ((variant.inputs, variant.in_tree), (variant.results, variant.out_tree)):
            positions = [leaf.position for leaf in leaves if leaf.kind != "fixed"]
            if len(leaves) != tree.leaves or sorted(positions) != list(range(len(positions))):
                raise ValueError("leaves and nesting do not fit")
        for leaf in variant.inputs:
            if leaf.kind == "tensor":
                get_torch_dtype(leaf.dtype)
            lengths = (len(leaf.sizes), len(leaf.strides))
            if lengths != {"number": (1, 0), "fixed": (0, 0)}.get(leaf.kind, (lengths[0], lengths[0])):
                raise ValueError("an input has other sizes than strides")
            known = all(not one or one in variant.symbols for one in leaf.sizes if isinstance(one, str))
            if not known:
                raise ValueError("a size is a symbol without bounds")


# ---- JSON by the types of fields ----


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, Tree):
        return convert_to_json(value)
    if is_dataclass(value):
        return {one.name: _convert_to_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _convert_to_json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_convert_to_json(item) for item in value]
    return value


@cache
def _make_reader(kind: Any) -> Callable[[Any], Any]:
    """Return what makes a value of the type `kind` of JSON, and raises ValueError, TypeError or KeyError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Tree:
        return read_from_json
    if is_dataclass(kind):
        return _record_reader(kind)
    if origin is tuple:
        return _make_tuple_reader(arguments)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        item = _make_reader(arguments[1])
        return lambda value: {_read_text(key): item(one) for key, one in _expect(value, dict).items()}
    if origin is Literal:
        return lambda value: _make_choice_reader(value, arguments)
    options = arguments if origin in (types.UnionType, typing.Union) else (kind,)
    return lambda value: _read_plain(value, options)


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    hints = typing.get_type_hints(kind)
    readers = {one.name: _make_reader(hints[one.name]) for one in fields(kind)}

    def read(value: Any) -> Any:
        if _expect(value, dict).keys() != readers.keys():
            raise ValueError(f"a {kind.__name__} has the fields {sorted(value)}")
        return kind(**{name: reader(value[name]) for name, reader in readers.items()})

    return read


def _make_tuple_reader(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    if arguments[-1] is Ellipsis:
        item = _make_reader(arguments[0])
        return lambda value: tuple(map(item, _expect(value, list)))
    readers = tuple(map(_make_reader, arguments))
    return lambda value: tuple(
        reader(item) for reader, item in zip(readers, _expect(value, list), strict=True)
    )


def _expect(value: Any, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:100]} is no {kind.__name__}")
    return value


def _read_text(value: Any) -> str:
    return _expect(value, str)


def _make_choice_reader(value: Any, options: tuple[Any, ...]) -> Any:
    if value not in options:
        raise ValueError(f"{str(value)[:100]} is none of {options}")
    return value


def _read_plain(value: Any, options: tuple[Any, ...]) -> Any:
    if type(value) not in options:
        raise TypeError(f"{str(value)[:100]} is none of {options}")
    return value
