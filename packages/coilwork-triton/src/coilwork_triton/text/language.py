"""Triton as a language: calls of `triton.language`, types and literals, functions, statements.

`tl` builds a call, `define_function` a function that Triton compiles, `exact_constant` and its neighbours a
literal of a given type. `Writer` collects statements and names new variables. `print_kernels` prints a file.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType, get_float_bits, round_to_dtype
from coilwork_ir.errors import EmitError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.kernels.rewrite import wrap_integer
from coilwork_ir.scalar import Literal_
from coilwork_ir.syntax.python import (
    EVERYTHING,
    NONE,
    Assign,
    Attribute,
    Binary,
    Blank,
    Call,
    Comment,
    Do,
    Docstring,
    Expression,
    For,
    Function,
    Import,
    List,
    Name,
    Number,
    Parameter,
    Statement,
    Subscript,
    Tuple,
    Verbatim,
    call,
    method,
    number,
    print_module,
)

# Calls, loops and functions


_TL: Final = Name("tl")
_CONSTEXPR: Final = Attribute(_TL, "constexpr")
_JIT: Final = Attribute(Name("triton"), "jit")
_GLUON_JIT: Final = Attribute(Name("gluon"), "jit")


def tl(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """Return a call of `triton.language`'s function `name`."""
    return Call(Attribute(_TL, name), args, tuple(kwargs.items()))


def tl_name(name: str) -> Attribute:
    """`tl.name`: an element type or constant of `triton.language`."""
    return Attribute(_TL, name)


def conjunction(conditions: tuple[Expression, ...]) -> Expression | None:
    """`a & b & …`, or None of none."""
    result: Expression | None = None
    for condition in conditions:
        result = condition if result is None else Binary("&", result, condition)
    return result


def insert_axes(block: Expression, is_kept: Sequence[bool]) -> Subscript:
    """`block[:, None]`: an axis of `block` for each True, in order, and an axis of one element for each
    False.
    """
    return Subscript(block, tuple(EVERYTHING if kept else NONE for kept in is_kept))


def define_function(
    name: str,
    parameters: Iterable[str],
    body: tuple[Statement, ...],
    *,
    constants: Iterable[str] = (),
    doc: str = "",
    inline: bool = True,
    gluon: bool = False,
) -> Function:
    """Return a function that Triton compiles; `constants` are parameters known then. Without `inline` it
    stays one. With `gluon` it says in what layouts threads hold blocks.
    """
    jit = _GLUON_JIT if gluon else _JIT
    return Function(
        name=name,
        parameters=(*map(Parameter, parameters), *(Parameter(c, _CONSTEXPR) for c in constants)),
        body=(Docstring(doc), *body) if doc else body,
        decorators=(jit if inline else Call(jit, (), (("noinline", Number(True)),)),),
    )


def loop(
    variable: str,
    stop: Expression,
    step: Expression,
    body: tuple[Statement, ...],
    *,
    stages: Expression | None = None,
) -> For:
    """Return a loop over 0, `step`, … below `stop`; with `stages`, so many of its iterations are in
    flight at once.
    """
    bounds = (Number(0), stop, step)
    return For(
        variable, call("range", *bounds) if stages is None else tl("range", *bounds, num_stages=stages), body
    )


def print_kernels(
    doc: str, notes: str, functions: Iterable[Function | Verbatim], *, gluon: bool = False
) -> str:
    """Return a file of `functions`: `doc` is its docstring, and `notes` stand in a comment behind the
    imports.
    """
    statements: list[Statement] = [Docstring(f"\n{doc}\n"), Blank()]
    statements += [Import("triton"), Import("triton.language", "tl")]
    if gluon:
        statements += [
            Import("gluon", package="triton.experimental"),
            Import("language", "gl", package="triton.experimental.gluon"),
            Import("hopper", package="triton.experimental.gluon.language.nvidia"),
        ]
    statements += [Blank(), Comment(notes)]
    for function in functions:
        statements += [Blank(), Blank(), function]
    return print_module(statements)


# Types and literals


TRITON_TYPES: Final[Mapping[DType, str]] = MappingProxyType(
    {
        DType.F64: "float64",
        DType.F32: "float32",
        DType.F16: "float16",
        DType.BF16: "bfloat16",
        DType.F8E4M3: "float8e4nv",
        DType.F8E5M2: "float8e5",
        DType.I64: "int64",
        DType.I32: "int32",
        DType.I16: "int16",
        DType.I8: "int8",
        DType.U64: "uint64",
        DType.U32: "uint32",
        DType.U16: "uint16",
        DType.U8: "uint8",
        DType.BOOL: "int1",
    }
)

# 8-bit floats that Triton converts, on targets with instructions for them; others arrive as bits.
SMALL_FLOATS: Final = (DType.F8E4M3, DType.F8E5M2)

_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
_LEAST_NORMAL: Final = 2.0**-126
_SIGNED: Final[Mapping[int, DType]] = MappingProxyType(
    {8: DType.I64, 4: DType.I32, 2: DType.I16, 1: DType.I8}
)

# As an argument of tl.minimum and tl.maximum: a NaN operand gives NaN.
ALL_NANS: Final = Attribute(tl_name("PropagateNan"), "ALL")


def get_triton_type(dtype: DType) -> Expression:
    """`tl.float32` and the like. Raises EmitError for complex types."""
    name = TRITON_TYPES.get(dtype)
    if name is None:
        raise EmitError("element-type", f"Triton has no element type for {dtype.text}")
    return tl_name(name)


def exact_constant(value: Literal_, dtype: DType) -> Expression:
    """Return a scalar of exactly `dtype`."""
    return fill_block((), value, dtype)


def plain_constant(value: Literal_, dtype: DType) -> Expression:
    """Return a bare literal, for operators whose other operand is of `dtype`: Triton converts it to that
    type.
    """
    return exact_constant(value, dtype) if _pattern(value, dtype) is not None else _literal(value, dtype)


def free_constant(value: Literal_, dtype: DType) -> Expression:
    """Return a constant for any place: bare where Triton gives a bare literal the type `dtype` by itself."""
    if dtype is DType.I32 or (dtype is DType.F32 and _is_f32_by_itself(value)):
        return plain_constant(value, dtype)
    return exact_constant(value, dtype)


def coerce_constant(value: Literal_, dtype: DType) -> Expression:
    """Return a literal beside comparisons and masked loads, where Triton makes an f32 of a bare float
    first.
    """
    if dtype is DType.F64 and not (
        _is_f32_by_itself(value) and round_to_dtype(float(value), DType.F32) == value
    ):
        return exact_constant(value, dtype)
    if dtype.is_low_precision and value == value:
        value = round_to_dtype(float(value), dtype)
    return plain_constant(value, dtype)


def operand_constant(op: str, value: Literal_, dtype: DType) -> Expression:
    """Return an operand of `op`, one of Triton's operators, whose other operand is of `dtype`."""
    return (coerce_constant if op in _COMPARISONS else plain_constant)(value, dtype)


def extent(size: str) -> Expression:
    """One of a block's extents: a constant of the launch, or a number."""
    return Number(int(size)) if size.isdigit() else Name(size)


def extents(shape: Iterable[str]) -> Tuple:
    """Return a block's extents."""
    return Tuple(tuple(map(extent, shape)))


def fill_shape(shape: tuple[str, ...], value: Literal_, dtype: DType, *, chunk: int = 1) -> Expression:
    """Return a block of `shape` (names of constexpr sizes, or "1") filled with `value`; one per `chunk` along
    the last axis.
    """
    block = list(map(extent, shape))
    if chunk > 1:
        block[-1] = Binary("//", block[-1], Number(chunk))
    return fill_block(block, value, dtype)


def fill_block(sizes: Iterable[Expression], value: Literal_, dtype: DType) -> Expression:
    """Return a block of extents `sizes`, all of it `value`."""
    if dtype is DType.BF16:
        # Triton's interpreter makes no bf16 constants; compiled, both forms are one
        return method(fill_block(sizes, value, DType.F32), "to", get_triton_type(dtype))
    pattern = _pattern(value, dtype)
    if pattern is not None:
        words = _SIGNED[dtype.itemsize]
        bits = tl("full", List(tuple(sizes)), number(pattern), get_triton_type(words))
        return method(bits, "to", get_triton_type(dtype), bitcast=Number(True))
    return tl("full", List(tuple(sizes)), _literal(value, dtype), get_triton_type(dtype))


def smallest(dtype: DType) -> Literal_:
    """Return the identity of `max`."""
    if dtype.is_float:
        return -math.inf
    if dtype.is_bool:
        return False
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.is_signed_integer else 0


def largest(dtype: DType) -> Literal_:
    """Return the identity of `min`."""
    if dtype.is_float:
        return math.inf
    if dtype.is_bool:
        return True
    return (1 << (8 * dtype.itemsize - (1 if dtype.is_signed_integer else 0))) - 1


def find_reciprocal(value: float) -> float | None:
    """1 / `value` if both are normal f32 numbers. A product with it is a quotient within 1.5 units in the
    last place.
    """
    if not _LEAST_NORMAL <= abs(value) <= 1 / _LEAST_NORMAL:
        return None
    return 1 / value


def _pattern(value: Literal_, dtype: DType) -> int | None:
    """Return the bits, as a signed integer, of a float that no literal makes: of 8 bits, -0.0, odd NaNs."""
    if not dtype.is_float:
        return None
    number = round_to_dtype(float(value), dtype)
    if dtype.format is not None:
        return wrap_integer(get_float_bits(number, dtype), DType.I8)
    if not (number == 0 or math.isnan(number)) or get_float_bits(number, dtype) == get_float_bits(
        abs(number), dtype
    ):
        return None
    return wrap_integer(get_float_bits(number, dtype), _SIGNED[dtype.itemsize])


def _is_f32_by_itself(value: Literal_) -> bool:
    """True unless a bare `value` is an f64 to Triton, as subnormal f32 numbers are."""
    size = abs(round_to_dtype(float(value), DType.F32))
    return size == 0 or math.isnan(size) or size >= _LEAST_NORMAL


def _literal(value: Literal_, dtype: DType) -> Expression:
    if dtype is DType.F64:
        return number(float(value))
    if dtype.is_float:
        return number(_single(float(value), dtype))
    if dtype.is_bool:
        return Number(bool(value))
    return number(int(value))


def _single(value: float, dtype: DType) -> float:
    """`value`, or the f32 that eager makes of it where Triton would not, on its way to `dtype`.

    What f32 does not hold is an f64 to Triton, and its interpreter rounds to f16 at once.
    """
    wide = round_to_dtype(value, DType.F32)
    if math.isinf(wide) or wide == 0:
        return wide
    if dtype is DType.F16 and not math.isinf(round_to_dtype(value, dtype)):
        (at_once,) = struct.unpack("<e", struct.pack("<e", value))
        return value if math.isnan(value) or at_once == round_to_dtype(value, dtype) else wide
    return value


# Statements


class Writer:
    """One straight run of statements: the kernel's own level, or the inside of a loop."""

    def __init__(self, names: FreshNames, library: set[str]) -> None:
        self.statements: list[Statement] = []
        self.names = names
        self.library = library

    def inner(self) -> Writer:
        """Return a writer for the inside of a loop, with the same names."""
        return Writer(self.names, self.library)

    def bind(self, stem: str, value: Expression) -> Name:
        """Assign `value` to a new variable."""
        name = self.names.make_numbered(stem)
        self.statements.append(Assign((name,), value))
        return Name(name)

    def bind_all(self, stems: tuple[str, ...], value: Expression) -> tuple[Name, ...]:
        """Unpack the tuple `value` into new variables."""
        found = tuple(self.names.make_numbered(stem) for stem in stems)
        self.statements.append(Assign(found, value))
        return tuple(Name(n) for n in found)

    def assign(self, targets: tuple[Name, ...], value: Expression) -> None:
        """Assign to existing variables."""
        self.statements.append(Assign(tuple(t.id for t in targets), value))

    def do(self, value: Expression) -> None:
        """Evaluate for effect."""
        self.statements.append(Do(value))

    def device(self, name: str) -> Name:
        """Return the device function `name`, noted as used."""
        self.library.add(name)
        return Name(name)
