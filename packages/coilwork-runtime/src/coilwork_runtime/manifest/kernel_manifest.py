"""Kernel manifests: what launching a kernel and reporting on it takes, as a value and as bytes.

`KernelManifest` has neither the kernel's text nor its binary; `KernelSpec` adds the text, for those who build
kernels. Addresses and chosen configurations belong to one process and stand in `launch_descriptor.py`.

As bytes, a manifest is a record of named fields, so that a reader refuses by name what it does not know: the
number of fields, then of each its name and its payload, in the order of the tables below. A field with its
default value is left out. A file of kernels is `MAGIC`, `SCHEMA`, and a list of manifests with their texts.
`wire_format.py` says how numbers, texts and lists are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from coilwork_runtime.manifest.size_bytecode import PUSHES, Op, SizeBytecode, is_within
from coilwork_runtime.manifest.wire_format import ByteReader, block, i64, text, u32, write_list

Role = Literal["in", "out", "inout", "size", "scratch"]
ROLES: Final = ("in", "out", "inout", "size", "scratch")

CPP: Final = "cpp"
TRITON: Final = "triton"
OWN_LANGUAGES: Final = (CPP, TRITON)
"""The languages that the runtime itself builds and launches; back ends bring others."""


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
    """A version of a kernel, for some sizes or for all.

    Attributes:
        guard: 0 for the sizes that it is for; None: it is for all sizes.
        mapping: directives, one a line; its open numbers are names of a configuration
            (`triton_kernels/versions.py`), and without any it is a closed mapping.
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
    def is_cpp(self) -> bool:
        """True if the runtime builds it with the host's compiler."""
        return self.language == CPP

    @property
    def is_triton(self) -> bool:
        """True if Triton builds it."""
        return self.language == TRITON

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
        """Return the values of `parameters` in a configuration.

        Raises:
            KeyError: `config` lacks one.
        """
        return tuple(config[name] for name in self.parameters)

    def first_version(self, sizes: Sequence[int]) -> int:
        """Return the number of the version that a call with these sizes takes."""
        return next(
            number for number, guard in enumerate(self.guards) if guard is None or guard.evaluate(sizes) == 0
        )

    def codes(self) -> tuple[SizeBytecode, ...]:
        """Return all code in it."""
        codes = [*self.grid, *(one.elements for one in self.args), self.traffic, *self.guards]
        codes += [code for version in self.versions for limit in version.limits for code in limit]
        return tuple(code for code in codes if code is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec(KernelManifest):
    """A kernel that can be built: its manifest, and the text, a complete translation unit or module."""

    source: str


def check_manifest(manifest: KernelManifest) -> None:
    """Check that the parts of a manifest fit together.

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


# ---- as bytes ----


MAGIC: Final = b"coilwork-kernels"
# Raised whenever a field is added or means something else.
SCHEMA: Final = 1

_T = TypeVar("_T")
_Write = Callable[[Any], bytes]
_Read = Callable[["ManifestReader"], Any]


class ManifestReader(ByteReader):
    """Reads the payloads of fields."""

    @property
    def is_done(self) -> bool:
        """True at the end."""
        return not self.remaining()

    def read_rest(self) -> bytes:
        """Read all that follows."""
        return self.raw(self.remaining())

    def text(self) -> str:
        """Read text behind its length."""
        return self.block().decode()

    def texts(self) -> tuple[str, ...]:
        """Read a list of texts."""
        return tuple(self.read_list(self.text))

    def code(self) -> SizeBytecode:
        """Read code for sizes."""
        return SizeBytecode(tuple(self.read_list(self._step)))

    def _step(self) -> tuple[Op, int]:
        op = Op(self.u8())
        return op, self.i64() if op in PUSHES else 0

    def config(self) -> Mapping[str, int]:
        """Read a configuration."""
        return dict(self.read_list(lambda: (self.text(), self.i64())))

    def limits(self) -> tuple[tuple[SizeBytecode, SizeBytecode], ...]:
        """Read limits, pairs of code."""
        return tuple(self.read_list(lambda: (self.code(), self.code())))


def _write_texts(values: Sequence[str]) -> bytes:
    return write_list(values, text)


def _write_config(config: Mapping[str, int]) -> bytes:
    return write_list(config.items(), lambda pair: text(pair[0]) + i64(pair[1]))


def _write_limits(limits: Sequence[tuple[SizeBytecode, SizeBytecode]]) -> bytes:
    return write_list(limits, lambda pair: pair[0].encode() + pair[1].encode())


_TEXT: Final[tuple[_Write, _Read]] = (str.encode, lambda reader: reader.read_rest().decode())
_TEXTS: Final[tuple[_Write, _Read]] = (_write_texts, ManifestReader.texts)
_CODE: Final[tuple[_Write, _Read]] = (SizeBytecode.encode, ManifestReader.code)
_Table = Mapping[str, tuple[_Write, _Read]]


def _read_records(reader: ManifestReader, *, table: _Table, kind: Callable[..., _T]) -> tuple[_T, ...]:
    return tuple(reader.read_list(lambda: _parse_record(reader.block(), table, kind)))


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
    {"guard": _CODE, "mapping": _TEXT, "limits": (_write_limits, ManifestReader.limits)}
)
MANIFEST_FIELDS: Final[_Table] = MappingProxyType(
    {
        "name": _TEXT,
        "language": _TEXT,
        "entry": _TEXT,
        "args": (
            lambda args: write_list(args, lambda one: block(_encode_record(one, ARGUMENT_FIELDS))),
            partial(_read_records, table=ARGUMENT_FIELDS, kind=KernelArgument),
        ),
        "parameters": _TEXTS,
        "grid": (
            lambda grid: write_list(grid, SizeBytecode.encode),
            lambda reader: tuple(reader.read_list(reader.code)),
        ),
        "configs": (
            lambda configs: write_list(configs, _write_config),
            lambda reader: tuple(reader.read_list(reader.config)),
        ),
        "versions": (
            lambda versions: write_list(versions, lambda one: block(_encode_record(one, VERSION_FIELDS))),
            partial(_read_records, table=VERSION_FIELDS, kind=KernelVersion),
        ),
        "checks": _TEXTS,
        "features": _TEXTS,
        "traffic": _CODE,
        "target": _TEXT,
        "origins": _TEXTS,
    }
)


def encode_manifest(manifest: KernelManifest) -> bytes:
    """Return the record of `manifest`; of a `KernelSpec` without the text."""
    return _encode_record(manifest, MANIFEST_FIELDS)


def decode_manifest(data: bytes) -> KernelManifest:
    """Return the manifest in a record.

    Raises:
        ValueError: the bytes are damaged, or have a field that this reader does not know.
    """
    manifest = _parse_record(data, MANIFEST_FIELDS, KernelManifest)
    check_manifest(manifest)
    return manifest


def encode_kernels(kernels: Iterable[KernelSpec]) -> bytes:
    """Return the file of `kernels`."""
    return (
        MAGIC + u32(SCHEMA) + write_list(kernels, lambda one: block(encode_manifest(one)) + text(one.source))
    )


def decode_kernels(data: bytes) -> tuple[KernelSpec, ...]:
    """Return the kernels in a file.

    Raises:
        ValueError: the bytes are damaged, of another schema, or have a field that this reader does not know.
    """
    reader = ManifestReader(data)
    if reader.raw(len(MAGIC)) != MAGIC:
        raise ValueError("they do not begin like kernels")
    schema = reader.u32()
    if schema != SCHEMA:
        raise ValueError(f"they are of schema {schema}, and this runtime reads {SCHEMA}")
    pairs = reader.read_list(lambda: (decode_manifest(reader.block()), reader.text()))
    if not reader.is_done:
        raise ValueError("something follows the last kernel")
    return tuple(attach_source(manifest, source) for manifest, source in pairs)


def rename_origins(data: bytes, rename: Callable[[str], str]) -> bytes:
    """Return the file of kernels with other source lines of the user's; comments in their texts stay, as
    builds are found by them.

    Raises:
        ValueError: as `decode_kernels`.
    """
    kernels = decode_kernels(data)
    return encode_kernels(replace(one, origins=tuple(map(rename, one.origins))) for one in kernels)


def attach_source(manifest: KernelManifest, source: str) -> KernelSpec:
    """`manifest` with its text."""
    return KernelSpec(**_values(manifest), source=source)


def _values(manifest: KernelManifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in MANIFEST_FIELDS}


def _encode_record(value: Any, table: _Table) -> bytes:
    defaults = {field.name: field.default for field in fields(value)}
    present = [
        (name, getattr(value, name), write)
        for name, (write, _) in table.items()
        if getattr(value, name) != defaults[name]
    ]
    return write_list(present, lambda one: text(one[0]) + block(one[2](one[1])))


def _parse_record(data: bytes, table: _Table, kind: Callable[..., _T]) -> _T:
    reader = ManifestReader(data)
    values: dict[str, Any] = {}
    for _ in range(reader.u32()):
        name, payload = reader.text(), ManifestReader(reader.block())
        if name not in table or name in values:
            raise ValueError(f"the field {name!r} is not known, or there twice")
        values[name] = table[name][1](payload)
        if not payload.is_done:
            raise ValueError(f"something follows the field {name!r}")
    if not reader.is_done:
        raise ValueError("something follows the last field")
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"a field is missing: {error}") from error
