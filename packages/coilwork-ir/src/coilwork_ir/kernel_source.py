"""The result of a code generator, and the bytes that a runtime reads of it.

`KernelSource` is source text with everything that a launcher must know. The second half writes it as a
manifest, without expressions of ours. The runtime owns that form (`coilwork_runtime.manifest` says what is in
it, its `encoding` how it lies in bytes), since it may not import this package. A test reads what is written,
in Python and in C++.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Add, Const, Expr, FloorDiv, Max, Min, Mod, Mul, Sym, get_node
from coilwork_ir.loc import Origin
from coilwork_ir.mapping import Choose, Guard, Limit, Mapping, Version, Versions, find_all, format_mapping

# ---- Source ----


Role = Literal["in", "out", "inout", "size", "scratch"]

# The compile-time parameter that says which version of a kernel a configuration is of: the number of versions
# behind it, so that 0 is the last one, which is for all sizes.
VERSION: Final = "VERSION"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceArg:
    """One argument of the entry, in order.

    Attributes:
        name: parameter name in the source.
        role: `in`, `out`, `inout` are pointers to `dtype`; `size` is an integer (`i32` or `i64`); `scratch`
            is a pointer to uninitialised memory of `elements` elements that the launcher provides.
        dtype: element type behind a pointer, or the integer type of a size.
        aligned: the pointer is known to be a multiple of 16 bytes, or the size a multiple of 16.
        elements: scratch only: number of elements, over the size arguments' names.
    """

    name: str
    role: Role
    dtype: DType
    aligned: bool = False
    elements: Expr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One candidate way to launch, which a closed mapping says in words: the values of its open numbers, by
    name.

    These are a kernel's compile-time parameters, and a GPU's warps and pipeline stages.
    `fp_fusion`: the device's compiler may contract `a * b + c` to one rounding.
    """

    meta: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 1
    fp_fusion: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Configurations beyond the proposed ones for which a kernel's text is right, too: an open mapping's
    numbers.

    Attributes:
        values: what each parameter may be, ascending: names of `Config.meta`, `num_warps`, `num_stages`. A
            parameter that is not named stays as the candidates have it. Empty: only the candidates will do.
        limits: pairs of expressions over the parameters' names; in a configuration each left one is at most
            the right one.
    """

    values: tuple[tuple[str, tuple[int, ...]], ...] = ()
    limits: tuple[tuple[Expr, Expr], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSource:
    """The text of one kernel.

    Attributes:
        name: unique name of the kernel in its schedule.
        language: who builds and launches it: `cpp`, `triton`, or a back end's own word.
        text: complete source; building it needs nothing else of ours.
        entry: function to call.
        args: its run-time arguments, in order: tensors, then sizes, then scratch. Triton's `constexpr`
            parameters follow them in `text` and come from `Config.meta`.
        grid: up to three extents as expressions over the size arguments' names and the names in
            `Config.meta`; empty for C++, whose entry runs the whole iteration space.
        configs: candidates, best guess first; never empty for Triton.
        versions: how it runs: an open mapping for each kind of sizes, most particular first. What `configs`
            choose of it, and what a search may try beside them, are its open numbers. One configuration gives
            the same bits in every run; two may add in different orders. None for C++, whose mappings leave
            nothing open.
        checks: messages of the kernel's run-time checks, `IndexError: …`, `RuntimeError: …` or
            `ZeroDivisionError: …`. With any, a C++ entry returns 0 or 1 + the number of the one that failed;
            Triton checks use `tl.device_assert`.
        target: name of the target it was emitted for.
        features: instruction set features the builder must enable.
        suffix: of files that hold `text`, for people.
        read_bytes, write_bytes: minimal traffic over the size arguments, for bandwidth reports.
    """

    name: str
    language: str
    text: str
    entry: str
    args: tuple[SourceArg, ...]
    grid: tuple[Expr, ...] = ()
    configs: tuple[Config, ...] = ()
    versions: Versions | None = None
    checks: tuple[str, ...] = ()
    target: str = ""
    features: tuple[str, ...] = ()
    read_bytes: Expr | None = None
    write_bytes: Expr | None = None
    suffix: str = "txt"

    @property
    def space(self) -> SearchSpace:
        """The open numbers of the most particular version, which a search may try."""
        return SearchSpace() if self.versions is None else search_space(self.versions.versions[0].mapping)

    @property
    def guards(self) -> tuple[Guard | None, ...]:
        """The sizes that each version is for; None: all."""
        return (
            (None,) if self.versions is None else tuple(version.guard for version in self.versions.versions)
        )

    def version_of(self, config: Config) -> Version | None:
        """Return the version that `config` is of; None if no mapping is told."""
        if self.versions is None:
            return None
        versions = self.versions.versions
        return versions[len(versions) - 1 - dict(config.meta).get(VERSION, 0)]

    def mapping_of(self, config: Config) -> Mapping | None:
        """Return the closed mapping that is launched by `config`; None if no mapping is told."""
        version = self.version_of(config)
        if version is None:
            return None
        known = {**dict(config.meta), "num_warps": config.num_warps, "num_stages": config.num_stages}
        return version.mapping.close(
            {number.name: known[number.name] for number in version.mapping.open_numbers}
        )


def search_space(mapping: Mapping) -> SearchSpace:
    """Return the numbers of the open `mapping` that a search may choose, and the limits between them."""
    tied = {name for choice in find_all(mapping.directives, Choose) for name in choice.names}
    return SearchSpace(
        values=tuple(
            (number.name, tuple(sorted(number.values)))
            for number in mapping.open_numbers
            if number.name not in tied
        ),
        limits=tuple((limit.left, limit.right) for limit in find_all(mapping.directives, Limit)),
    )


# ---- Manifest ----


MAGIC: Final = b"coilwork-kernels"
SCHEMA: Final = 1
SMALLEST: Final = -(1 << 63)
LARGEST: Final = (1 << 63) - 1
MOST_DEPTH: Final = 32
CONSTANT, ADD, MULTIPLY, FLOOR_DIVIDE, MODULO, MINIMUM, MAXIMUM = range(7)
SIZE: Final = 16
PARAMETER: Final = 17
_Field = tuple[str, bytes]


def write_kernels(kernels: Iterable[tuple[KernelSource, Sequence[Origin]]]) -> bytes:
    """Return the file of kernels with their texts; each comes with the operations that it computes.

    Raises:
        EmitError: an expression is not for 64-bit integers.
    """
    return (
        MAGIC
        + _u32(SCHEMA)
        + _write_list(
            _block(write_manifest(source, origins)) + _text(source.text) for source, origins in kernels
        )
    )


def write_manifest(source: KernelSource, origins: Sequence[Origin] = ()) -> bytes:
    """Return the record of one kernel.

    Raises:
        EmitError: an expression is not for 64-bit integers.
    """
    names = _Names(source)
    args = _write_list(_block(_argument(arg, names)) for arg in source.args)
    grid = [names.code(extent) for extent in source.grid]
    versions = () if source.versions is None else source.versions.versions
    written = [_block(_version(version, names)) for version in versions]
    fields: list[_Field] = [
        ("name", source.name.encode()),
        ("language", source.language.encode()),
        ("entry", source.entry.encode()),
        ("args", args),
        ("parameters", _texts(names.parameters)),
        ("grid", _write_list(grid)),
        ("configs", _write_list(map(_config, source.configs))),
        ("versions", _write_list(written)),
        ("checks", _texts(source.checks)),
        ("features", _texts(source.features)),
    ]
    if source.read_bytes is not None and source.write_bytes is not None:
        fields.append(("traffic", names.code(source.read_bytes + source.write_bytes)))
    fields.append(("target", source.target.encode()))
    fields.append(("origins", _texts(_lines(origins))))
    return _record(fields, ("name", "language", "entry", "args"))


def encode_size(expr: Expr, sizes: Sequence[str], parameters: list[str]) -> bytes:
    """`expr` as code for a stack machine; symbols that are none of `sizes` are added to `parameters`.

    Raises:
        EmitError: it has a constant that does not fit 64 bits, or needs too deep a stack.
    """
    steps: list[bytes] = []
    depth = _steps(expr, sizes, parameters, steps)
    if depth > MOST_DEPTH:
        raise EmitError("manifest-size", f"an expression over sizes is nested {depth} deep")
    return _write_list(steps)


class _Names:
    """Numbers the symbols of a kernel's expressions: its sizes, and the parameters of a search."""

    def __init__(self, source: KernelSource) -> None:
        self._sizes = tuple(arg.name for arg in source.args if arg.role == "size")
        self.parameters: list[str] = []

    def code(self, expr: Expr) -> bytes:
        return encode_size(expr, self._sizes, self.parameters)


def _steps(expr: Expr, sizes: Sequence[str], parameters: list[str], steps: list[bytes]) -> int:
    """Append the steps of `expr`; returns how much of the stack they use."""

    def chain(operation: int, operands: Sequence[Expr]) -> int:
        def join(depth: int, operand: Expr) -> int:
            below = _steps(operand, sizes, parameters, steps)
            steps.append(bytes((operation,)))
            return max(depth, 1 + below)

        return reduce(join, operands[1:], _steps(operands[0], sizes, parameters, steps))

    match get_node(expr):
        case Const(value):
            if not SMALLEST <= value <= LARGEST:
                raise EmitError("manifest-size", f"the size {value} does not fit 64 bits")
            steps.append(_push(CONSTANT, value))
            return 1
        case Sym(_, symbol) if symbol.name in sizes:
            steps.append(_push(SIZE, sizes.index(symbol.name)))
            return 1
        case Sym(_, symbol):
            if symbol.name not in parameters:
                parameters.append(symbol.name)
            steps.append(_push(PARAMETER, parameters.index(symbol.name)))
            return 1
        case Add(operands):
            return chain(ADD, operands)
        case Mul(operands):
            return chain(MULTIPLY, operands)
        case FloorDiv(left, right):
            return chain(FLOOR_DIVIDE, (left, right))
        case Mod(left, right):
            return chain(MODULO, (left, right))
        case Min(operands):
            return chain(MINIMUM, operands)
        case Max(operands):
            return chain(MAXIMUM, operands)


def _argument(arg: SourceArg, names: _Names) -> bytes:
    fields: list[_Field] = [
        ("name", arg.name.encode()),
        ("role", arg.role.encode()),
        ("dtype", arg.dtype.text.encode()),
    ]
    if arg.aligned:
        fields.append(("aligned", _i64(1)))
    if arg.elements is not None:
        fields.append(("elements", names.code(arg.elements)))
    return _record(fields, ("name", "role", "dtype"))


def _version(version: Version, names: _Names) -> bytes:
    fields: list[_Field] = []
    if version.guard is not None:
        fields.append(("guard", names.code(version.guard.distance)))
    fields.append(("mapping", format_mapping(version.mapping).encode()))
    limits = find_all(version.mapping.directives, Limit)
    fields.append(
        ("limits", _write_list(names.code(limit.left) + names.code(limit.right) for limit in limits))
    )
    return _record(fields, ())


def _config(config: Config) -> bytes:
    settings = [*config.meta, ("num_warps", config.num_warps), ("num_stages", config.num_stages)]
    if not config.fp_fusion:
        settings.append(("enable_fp_fusion", 0))
    return _write_list(_text(name) + _i64(value) for name, value in settings)


def _lines(origins: Sequence[Origin]) -> tuple[str, ...]:
    """Return the source lines and operators of `origins`, each once: `model.py:12 aten.mul.Tensor`."""
    named = (
        f"{origin.file.rsplit('/', 1)[-1]}:{origin.line} {origin.op}" if origin.file else origin.op
        for origin in origins
    )
    return tuple(dict.fromkeys(named))


def _record(fields: Sequence[_Field], required: Sequence[str]) -> bytes:
    """Named fields; one that is empty, or an empty list, is left out unless it is `required`."""
    kept = [(name, data) for name, data in fields if name in required or data not in (b"", _u32(0))]
    return _write_list(_text(name) + _block(data) for name, data in kept)


def _texts(values: Iterable[str]) -> bytes:
    return _write_list(map(_text, values))


def _text(value: str) -> bytes:
    return _block(value.encode())


def _block(data: bytes) -> bytes:
    return _u32(len(data)) + data


def _write_list(items: Iterable[bytes]) -> bytes:
    written = tuple(items)
    return _u32(len(written)) + b"".join(written)


def _push(operation: int, operand: int) -> bytes:
    return bytes((operation,)) + _i64(operand)


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _i64(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)
