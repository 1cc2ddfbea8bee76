"""`KernelManifest`: all that launching a kernel and reporting on it takes, but its text and its binary.

`KernelSpec` is a manifest with the text, for those who build kernels. The rest of what a kernel needs is of
one process (addresses, chosen configurations) and lies in `launch_forms.py`.

Manifests as bytes: records of named fields, so that a reader can refuse by name what it does not know.

A record is `u32` number of fields, then of each its name and its payload, both as `u32` length and bytes,
in the order of the tables below; a field with its default value is left out. Payloads: text as UTF-8,
numbers as `i64`, lists as `u32` length and items, code as `SizeCode.encode` has it. Several kernels with
their texts are a file: `MAGIC`, `u32 SCHEMA`, `u32` number of kernels, then of each its manifest and its
text, as `u32` length and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from coilwork_runtime.manifest.size_bytecode import PUSHES, Op, SizeBytecode, is_within

# ---- `KernelManifest`: all that launching a kernel and reporting on it takes, but its text and  ----


Role = Literal["in", "out", "inout", "size", "scratch"]
ROLES: Final = ("in", "out", "inout", "size", "scratch")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgument:
    """One parameter of a kernel's entry.

    Attributes:
        name: as its text has it.
        role: `in`, `out`, `inout` point to `dtype`; `size` is an integer; `scratch` points to memory that the
            launcher provides.
        dtype: element type behind a pointer, or the integer type of a size.
        aligned: a pointer that is a multiple of 16 bytes, or a size that is a multiple of 16.
        elements: of scratch, how many.
    """

    name: str
    role: Role
    dtype: str
    aligned: bool = False
    elements: SizeBytecode | None = None

    @property
    def is_pointer(self) -> bool:
        """True unless it is a size."""
        return self.role != "size"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelVersion:
    """How a kernel may run for some sizes.

    Attributes:
        guard: 0 for the sizes that it is for; None: it is for all sizes.
        mapping: directives, one a line; its open numbers are names of a configuration
            (`triton_kernels/open_mapping.py`), and without any it is a closed mapping.
        limits: of what may be chosen for the open numbers, each left one is at most the right one.
    """

    guard: SizeBytecode | None = None
    mapping: str = ""
    limits: tuple[tuple[SizeBytecode, SizeBytecode], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelManifest:
    """A kernel.

    Attributes:
        name: unique among the kernels of a program.
        language: whose builder and launcher it is for: `cpp`, `triton`, or somebody else's.
        entry: function to call.
        args: its parameters, in order: tensors and scratch, and sizes.
        parameters: names of compile-time parameters that `grid`, `limits` and `elements` read.
        grid: up to three extents; none where the entry runs the whole iteration space.
        configs: candidate configurations, best guess first: values of compile-time parameters, and for the
            compiler `num_warps`, `num_stages` and the like. `VERSION` among them is how many versions come
            behind the one that they are of.
        versions: how it may run, most particular sizes first, the last for all of them; a call takes the
            first whose guard is 0. None are told of a kernel with one version of which nothing is open.
        checks: messages of run-time checks. With any, a C++ entry returns 0 or 1 + the number of the failed
            one.
        features: instruction set extensions that it uses.
        traffic: bytes that one call moves.
        target: name of the target it was generated for.
        origins: lines of the user's that it computes.
    """

    name: str
    language: str
    entry: str
    args: tuple[KernelArgument, ...]
    parameters: tuple[str, ...] = ()
    grid: tuple[SizeBytecode, ...] = ()
    configs: tuple[Mapping[str, int], ...] = ()
    versions: tuple[KernelVersion, ...] = ()
    checks: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    traffic: SizeBytecode | None = None
    target: str = ""
    origins: tuple[str, ...] = ()

    @property
    def is_triton(self) -> bool:
        """True if Triton builds it."""
        return self.language == "triton"

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of its size arguments, in order."""
        return tuple(one.name for one in self.args if one.role == "size")

    @property
    def guards(self) -> tuple[SizeBytecode | None, ...]:
        """The guards of its versions."""
        return tuple(one.guard for one in self.versions) or (None,)

    @property
    def is_open(self) -> bool:
        """True if there is something to search for."""
        return any("?" in one.mapping for one in self.versions)

    def values_of(self, config: Mapping[str, int]) -> tuple[int, ...]:
        """The values of `parameters` in a configuration.

        Raises:
            KeyError: `config` lacks one.
        """
        return tuple(config[name] for name in self.parameters)

    def first_version(self, sizes: Sequence[int]) -> int:
        """The number of the version that a call with these sizes takes."""
        return next(
            number for number, guard in enumerate(self.guards) if guard is None or guard.evaluate(sizes) == 0
        )

    def codes(self) -> tuple[SizeBytecode, ...]:
        """All code in it."""
        found = [*self.grid, *(one.elements for one in self.args), self.traffic, *self.guards]
        found += [code for version in self.versions for limit in version.limits for code in limit]
        return tuple(code for code in found if code is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(KernelManifest):
    """A kernel that can be built: its manifest, and the text, a complete translation unit or module."""

    source: str


def check_manifest(manifest: KernelManifest) -> None:
    """Nothing, if its parts fit together.

    Raises:
        ValueError: an argument has no known role, scratch has no size, or code uses what is not there.
    """
    sizes, parameters = len(manifest.sizes), len(manifest.parameters)
    for one in manifest.args:
        if one.role not in ROLES:
            raise ValueError(f"argument {one.name} of kernel {manifest.name} has the role {one.role!r}")
        if (one.elements is None) == (one.role == "scratch"):
            raise ValueError(
                f"argument {one.name} of kernel {manifest.name} is scratch without a size, or other with one"
            )
    if len(manifest.grid) > 3:
        raise ValueError(f"kernel {manifest.name} has a grid of {len(manifest.grid)} dimensions")
    if not all(is_within(code, sizes=sizes, parameters=parameters) for code in manifest.codes()):
        raise ValueError(f"code of kernel {manifest.name} uses a size or parameter that it has not got")


# ---- Manifests as bytes: records of named fields, so that a reader can refuse by name what it d ----


MAGIC: Final = b"coilwork-kernels"
# Raised whenever a field is added or means something else.
SCHEMA: Final = 1

_T = TypeVar("_T")
_Write = Callable[[Any], bytes]
_Read = Callable[["Reader"], Any]


class Reader:
    """A place in bytes, which nothing beyond their end is read from."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> bytes:
        """The next bytes.

        Raises:
            ValueError: there are fewer.
        """
        self._at += size
        if self._at > len(self._data):
            raise ValueError("they end too early")
        return self._data[self._at - size : self._at]

    @property
    def is_done(self) -> bool:
        """True at the end."""
        return self._at == len(self._data)

    def rest(self) -> bytes:
        """All that follows."""
        return self.raw(len(self._data) - self._at)

    def u8(self) -> int:
        """The next byte."""
        return self.raw(1)[0]

    def u32(self) -> int:
        """The next number of four bytes."""
        return int.from_bytes(self.raw(4), "little")

    def i64(self) -> int:
        """The next number of eight bytes."""
        return int.from_bytes(self.raw(8), "little", signed=True)

    def block(self) -> bytes:
        """Bytes behind their length."""
        return self.raw(self.u32())

    def text(self) -> str:
        """Text behind its length."""
        return self.block().decode()

    def listing(self, read: Callable[[Reader], _T]) -> tuple[_T, ...]:
        """Items behind their number."""
        return tuple(read(self) for _ in range(self.u32()))

    def code(self) -> SizeBytecode:
        """Code for sizes."""
        return SizeBytecode(self.listing(Reader.step))

    def step(self) -> tuple[Op, int]:
        """One step of code."""
        op = Op(self.u8())
        return op, self.i64() if op in PUSHES else 0


def u32(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, "little")


def i64(value: int) -> bytes:
    """Eight bytes, two's complement."""
    return value.to_bytes(8, "little", signed=True)


def block(data: bytes) -> bytes:
    """Bytes behind their length."""
    return u32(len(data)) + data


def text(value: str) -> bytes:
    """Text behind its length."""
    return block(value.encode())


def write_list(values: Iterable[_T], write: Callable[[_T], bytes]) -> bytes:
    """Items behind their number."""
    parts = [write(value) for value in values]
    return u32(len(parts)) + b"".join(parts)


def _texts(values: Sequence[str]) -> bytes:
    return write_list(values, text)


def _read_texts(reader: Reader) -> tuple[str, ...]:
    return reader.listing(Reader.text)


def _write_config(config: Mapping[str, int]) -> bytes:
    return write_list(config.items(), lambda pair: text(pair[0]) + i64(pair[1]))


def _read_config(reader: Reader) -> Mapping[str, int]:
    return dict(reader.listing(lambda one: (one.text(), one.i64())))


def _write_limits(limits: Sequence[tuple[SizeBytecode, SizeBytecode]]) -> bytes:
    return write_list(limits, lambda pair: pair[0].encode() + pair[1].encode())


def _read_limits(reader: Reader) -> tuple[tuple[SizeBytecode, SizeBytecode], ...]:
    return reader.listing(lambda one: (one.code(), one.code()))


_TEXT: Final[tuple[_Write, _Read]] = (str.encode, lambda reader: reader.rest().decode())
_TEXTS: Final[tuple[_Write, _Read]] = (_texts, _read_texts)
_CODE: Final[tuple[_Write, _Read]] = (SizeBytecode.encode, Reader.code)
_Table = Mapping[str, tuple[_Write, _Read]]

ARGUMENT_FIELDS: Final[_Table] = MappingProxyType(
    {
        "name": _TEXT,
        "role": _TEXT,
        "dtype": _TEXT,
        "aligned": (i64, lambda reader: bool(reader.i64())),
        "elements": _CODE,
    }
)
VERSION_FIELDS: Final[_Table] = MappingProxyType(
    {"guard": _CODE, "mapping": _TEXT, "limits": (_write_limits, _read_limits)}
)
MANIFEST_FIELDS: Final[_Table] = MappingProxyType(
    {
        "name": _TEXT,
        "language": _TEXT,
        "entry": _TEXT,
        "args": (
            lambda args: write_list(args, lambda one: block(_record(one, ARGUMENT_FIELDS))),
            lambda reader: reader.listing(
                lambda one: _parse_record(one.block(), ARGUMENT_FIELDS, KernelArgument)
            ),
        ),
        "parameters": _TEXTS,
        "grid": (
            lambda grid: write_list(grid, SizeBytecode.encode),
            lambda reader: reader.listing(Reader.code),
        ),
        "configs": (
            lambda configs: write_list(configs, _write_config),
            lambda reader: reader.listing(_read_config),
        ),
        "versions": (
            lambda versions: write_list(versions, lambda one: block(_record(one, VERSION_FIELDS))),
            lambda reader: reader.listing(
                lambda one: _parse_record(one.block(), VERSION_FIELDS, KernelVersion)
            ),
        ),
        "checks": _TEXTS,
        "features": _TEXTS,
        "traffic": _CODE,
        "target": _TEXT,
        "origins": _TEXTS,
    }
)


def encode_manifest(manifest: KernelManifest) -> bytes:
    """The record of `manifest`; of a `KernelSpec` without the text."""
    return _record(manifest, MANIFEST_FIELDS)


def decode_manifest(data: bytes) -> KernelManifest:
    """The manifest in a record.

    Raises:
        ValueError: the bytes are damaged, or have a field that this reader does not know.
    """
    manifest = _parse_record(data, MANIFEST_FIELDS, KernelManifest)
    check_manifest(manifest)
    return manifest


def encode_kernels(kernels: Iterable[KernelSpec]) -> bytes:
    """The file of `kernels`."""
    return (
        MAGIC + u32(SCHEMA) + write_list(kernels, lambda one: block(encode_manifest(one)) + text(one.source))
    )


def decode_kernels(data: bytes) -> tuple[KernelSpec, ...]:
    """The kernels in a file.

    Raises:
        ValueError: the bytes are damaged, of another schema, or have a field that this reader does not know.
    """
    reader = Reader(data)
    if reader.raw(len(MAGIC)) != MAGIC:
        raise ValueError("they do not begin like kernels")
    schema = reader.u32()
    if schema != SCHEMA:
        raise ValueError(f"they are of schema {schema}, and this runtime reads {SCHEMA}")
    found = reader.listing(lambda one: (decode_manifest(one.block()), one.text()))
    if not reader.is_done:
        raise ValueError("something follows the last kernel")
    return tuple(attach_source(manifest, source) for manifest, source in found)


def attach_source(manifest: KernelManifest, source: str) -> KernelSpec:
    """`manifest` with its text."""
    return KernelSpec(**_values(manifest), source=source)


def _values(manifest: KernelManifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in MANIFEST_FIELDS}


def _record(value: Any, table: _Table) -> bytes:
    defaults = {field.name: field.default for field in fields(value)}
    present = [
        (name, getattr(value, name), write)
        for name, (write, _) in table.items()
        if getattr(value, name) != defaults[name]
    ]
    return write_list(present, lambda one: text(one[0]) + block(one[2](one[1])))


def _parse_record(data: bytes, table: _Table, kind: Callable[..., _T]) -> _T:
    reader = Reader(data)
    found: dict[str, Any] = {}
    for _ in range(reader.u32()):
        name, payload = reader.text(), Reader(reader.block())
        if name not in table or name in found:
            raise ValueError(f"the field {name!r} is not known, or there twice")
        found[name] = table[name][1](payload)
        if not payload.is_done:
            raise ValueError(f"something follows the field {name!r}")
    if not reader.is_done:
        raise ValueError("something follows the last field")
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(f"a field is missing: {error}") from error
