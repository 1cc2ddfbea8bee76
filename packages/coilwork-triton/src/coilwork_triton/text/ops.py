"""Write each row of the op table in Triton.

`SCALAR_BUILDERS` has a builder for every name in `coilwork_ir.ops.SCALAR_OPS`; a test shows that there is no
hole. Operands arrive as expressions of the types the row allows: compute types, except that `cast` also sees
memory types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.rewrite import wrap_integer
from coilwork_ir.syntax.python import Binary, Expression, Number, Unary, call, method, number
from coilwork_triton.text.device_library import has_lane_loop
from coilwork_triton.text.language import ALL_NANS, exact_constant, get_triton_type, largest, tl, tl_name

Numerics = Literal["fast", "eager", "strict"]


def _mask_nothing() -> None:
    """The mask of a block without idle lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpContext:
    """The facts that a builder may depend on.

    Attributes:
        operand: type of the operands (of the values, for `where`).
        result: type of the result.
        numerics: `fast` may use the hardware's approximate exponential and division. Of `strict` kernels f32
            functions arrive here as f64 ones.
        rounded: the result only reaches memory rounded to 16 bits or fewer; see
            `precision_analysis`. Only in `fast` kernels.
        factor: such a result, which is rounded, or multiplied with something else, before anything is added
            to it.
        normal: no subnormal number is an operand, or a result that counts; see `precision_analysis`.
        library: names of device functions used so far; builders add to it.
        inside: makes the mask of the lanes that are points; its own result is None where all are.
    """

    operand: DType
    result: DType
    numerics: Numerics = "fast"
    rounded: bool = False
    factor: bool = False
    normal: bool = False
    library: set[str] = field(default_factory=set)
    inside: Callable[[], Expression | None] = _mask_nothing

    def device(self, name: str, *args: Expression) -> Expression:
        """Return a call of the device function `name`.

        One that loops until no lane has work gets zeros in lanes that are no points. Those hold what lies
        behind a tensor, or nothing defined, and could keep the whole block in the loop for ever. With zeros
        they want no step that lanes without work do not take.
        """
        self.library.add(name)
        inside = self.inside() if has_lane_loop(name) else None
        if inside is not None:
            args = tuple(tl("where", inside, arg, Number(0)) for arg in args)
        return call(name, *args)


Builder = Callable[[OpContext, tuple[Expression, ...]], Expression]


def _operator(symbol: str) -> Builder:
    return lambda _, a: Binary(symbol, a[0], a[1])


def _function(name: str) -> Builder:
    return lambda _, a: tl(name, *a)


def _device(name: str) -> Builder:
    return lambda context, a: context.device(name, *a)


def _dispatch_class(*, floats: Builder, ints: Builder, uints: Builder | None = None) -> Builder:
    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        if context.operand.is_float:
            return floats(context, a)
        if context.operand.is_signed_integer or uints is None:
            return ints(context, a)
        return uints(context, a)

    return build


def _extremum(name: str, on_bool: str) -> Builder:
    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        if context.operand.is_float:
            return tl(name, *a, propagate_nan=ALL_NANS)
        return Binary(on_bool, *a) if context.operand.is_bool else tl(name, *a)

    return build


def _exact_unless_fast(approximate: Builder, exact: str) -> Builder:
    """A function of f32 has the hardware's or NVIDIA's form and an accurate one, `exact`; that of f64 is
    always accurate.
    """

    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        if context.numerics == "fast" or context.operand is DType.F64:
            return approximate(context, a)
        return context.device(exact, *a)

    return build


def _short_if_rounded(short: str, full: Builder) -> Builder:
    """Return a function that has a form for results of 16 bits, the device function `short`."""

    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        return context.device(short, *a) if context.rounded else full(context, a)

    return build


def _round_unless_fast(approximate: Builder, rounded: str) -> Builder:
    """Division and square root have correctly rounded f32 forms; on f64 the plain form is one already."""

    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        if context.numerics == "fast" or context.operand is not DType.F32:
            return approximate(context, a)
        return tl(rounded, *a)

    return build


def _round_quotient(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    # at every level: truncating the approximate quotient of 6 and 3 may give 1
    return Binary("/", *a) if context.operand is DType.F64 else tl("div_rn", *a)


def _gradual_unless_normal(name: str) -> Builder:
    """Return a function of Triton's that takes subnormal f32 numbers for 0, where that shows by one that
    doesn't.
    """

    def build(context: OpContext, a: tuple[Expression, ...]) -> Expression:
        if context.normal or context.operand is not DType.F32:
            return tl(name, *a)
        return context.device(f"{name}_gradual", *a)

    return build


_gradual_rsqrt: Final = _gradual_unless_normal("rsqrt")


def _rsqrt(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    if context.numerics == "fast" or context.operand is not DType.F32:
        return _gradual_rsqrt(context, a)
    return tl("div_rn", exact_constant(1.0, DType.F32), tl("sqrt_rn", *a))


def _tanh(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    if context.factor:
        return context.device("tanh_factor_rounded", *a)
    if context.rounded:
        return context.device("tanh_rounded", *a)
    return context.device("tanh_f64" if context.operand is DType.F64 else "tanh", *a)


# By way of which integers a float becomes a narrow one in torch on a GPU: what is out of range wraps, as that
# of these would.
_WIDE: Final[Mapping[DType, DType]] = MappingProxyType(
    {DType.U8: DType.I64, DType.I8: DType.I32, DType.I16: DType.I32, DType.U16: DType.U32}
)


def _cast(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    source, result = context.operand, context.result
    if result.is_bool:
        return Binary("!=", a[0], Number(0))
    if result is DType.F8E5M2 or result is DType.F8E4M3:
        wide = a[0] if source is DType.F32 else method(a[0], "to", tl_name("float32"))
        if result is DType.F8E5M2:
            return context.device("to_float8_e5m2", wide)
        # hardware makes the largest number of what is too large, infinities too, and keeps NaN, as torch does
        return method(wide, "to", get_triton_type(result))
    found = a[0]
    by_f32 = source is DType.F64 and result.is_low_precision  # rounded twice, as eager does
    if by_f32 or (source.itemsize == 1 and source.is_float and result is not DType.F32):
        found = method(found, "to", tl_name("float32"))
    if source.is_float and result in _WIDE:
        found = method(found, "to", get_triton_type(_WIDE[result]))
    return method(found, "to", get_triton_type(result))


def convert_constant(value: float, source: DType, result: DType) -> int:
    """`value`, a `source`, as a GPU converts it to the integer type `result` for torch: saturated, then cut.

    PTX ISA, `cvt`: NaN becomes 0, but the highest bit alone where floats or integers of 64 bits take part.
    """
    wide = _WIDE.get(result, result)
    bits = 8 * wide.itemsize
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if wide.is_signed_integer else (0, (1 << bits) - 1)
    if math.isnan(value):
        whole = 1 << bits - 1 if bits == 64 or source is DType.F64 else 0
    else:
        whole = math.trunc(min(max(value, least), most))
    return wrap_integer(whole, result)


def _bitcast(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    if context.operand.is_bool or context.result.is_bool:
        raise EmitError("bitcast-bool", "bool has no fixed bits to reinterpret", remedy="cast to u8 instead")
    return method(a[0], "to", get_triton_type(context.result), bitcast=Number(True))


def _invert(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    if context.operand.is_bool:
        return Binary("==", a[0], Number(0))
    if context.operand.is_signed_integer:
        return Unary("~", a[0])
    # Triton's interpreter cannot write -1 as an unsigned number
    return Binary("^", a[0], exact_constant(largest(context.operand), context.operand))


def _negate(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    # Triton's unary minus is 0 - x, which gives +0 for 0
    return Binary("*", a[0], Number(-1.0)) if context.operand.is_float else Unary("-", a[0])


def _difference(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    if context.operand.is_float and context.numerics == "fast" and a[0] == a[1]:
        # of a product, `x - x` would be contracted to what rounding took from it; NaN for infinities stays
        return Binary("*", tl("abs", a[0]), Number(0.0))
    return Binary("-", *a)


def _absolute(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    return a[0] if context.operand.category == "uint" else tl("abs", a[0])


def _is_infinite(context: OpContext, a: tuple[Expression, ...]) -> Expression:
    return Binary("==", tl("abs", a[0]), number(float("inf")))


SCALAR_BUILDERS: Final[Mapping[str, Builder]] = MappingProxyType(
    {
        "cast": _cast,
        "bitcast": _bitcast,
        "where": _function("where"),
        "add": _operator("+"),
        "sub": _difference,
        "mul": _operator("*"),
        "div": _round_unless_fast(_operator("/"), "div_rn"),
        "floordiv": _dispatch_class(
            floats=_device("floordiv_float"), ints=_device("floordiv_int"), uints=_operator("//")
        ),
        "truncdiv": _dispatch_class(
            floats=lambda context, a: context.device("trunc", _round_quotient(context, a)),
            ints=_operator("//"),
        ),
        "mod": _dispatch_class(floats=_device("mod_float"), ints=_device("mod_int"), uints=_operator("%")),
        "fmod": _dispatch_class(floats=_device("fmod_float"), ints=_operator("%")),
        "fma": _function("fma"),
        "neg": _negate,
        "abs": _absolute,
        "sign": _dispatch_class(floats=_device("sign_float"), ints=_device("sign_int")),
        "minimum": _extremum("minimum", "&"),
        "maximum": _extremum("maximum", "|"),
        "pow": _dispatch_class(floats=_device("power"), ints=_device("power_int")),
        "sqrt": _round_unless_fast(_gradual_unless_normal("sqrt"), "sqrt_rn"),
        "rsqrt": _rsqrt,
        "floor": _gradual_unless_normal("floor"),
        "ceil": _gradual_unless_normal("ceil"),
        "trunc": _device("trunc"),
        "round": _device("round_half_even"),
        "exp": _short_if_rounded("exp_rounded", _exact_unless_fast(_function("exp"), "exp_exact")),
        "exp2": _gradual_unless_normal("exp2"),
        "expm1": _device("expm1"),
        "log": _function("log"),
        "log2": _function("log2"),
        "log10": _device("log10"),
        "log1p": _device("log1p"),
        "sin": _gradual_unless_normal("sin"),
        "cos": _function("cos"),
        "tan": _device("tan"),
        "asin": _device("asin"),
        "acos": _device("acos"),
        "atan": _device("atan"),
        "atan2": _device("atan2"),
        "sinh": _device("sinh"),
        "cosh": _device("cosh"),
        "tanh": _tanh,
        "asinh": _device("asinh"),
        "acosh": _device("acosh"),
        "atanh": _device("atanh"),
        "sigmoid": _short_if_rounded(
            "sigmoid_rounded", _exact_unless_fast(_device("sigmoid"), "sigmoid_exact")
        ),
        "erf": _gradual_unless_normal("erf"),
        "erfc": _device("erfc"),
        "lgamma": _device("lgamma"),
        "hypot": _device("hypot"),
        "copysign": _device("copysign"),
        **{
            name: _device(name)
            for name in (
                *("gcd", "zeta", "igamma", "igammac"),
                *("hermite_h", "hermite_he", "laguerre", "legendre"),
            )
        },
        "eq": _operator("=="),
        "ne": _operator("!="),
        "lt": _operator("<"),
        "le": _operator("<="),
        "gt": _operator(">"),
        "ge": _operator(">="),
        "bitwise_and": _operator("&"),
        "bitwise_or": _operator("|"),
        "bitwise_xor": _operator("^"),
        "bitwise_not": _invert,
        "lshift": _operator("<<"),
        "rshift": _operator(">>"),
        "isnan": lambda _, a: Binary("!=", a[0], a[0]),
        "isinf": _is_infinite,
        "signbit": _device("signbit"),
    }
)

# Builders that make one operator, whose literal operand Triton converts to the other operand's type.
OPERATORS: Final = frozenset(
    {"add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_xor",
    "lshift", "rshift"}
)  # fmt: skip

# Builders that repeat an operand in their text: it must be a name.
NEEDS_NAMED: Final = frozenset({"isnan"})
