"""Arithmetic, comparisons, rounding and bits.

Most of these operators are a row of the op table, or a short formula over its rows. Integer division also
gets a check of its divisor where eager's kernel refuses 0, which is on CPUs only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Final

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, provably_lt
from coilwork_ir.loops import Check
from coilwork_ir.operators import OpInfo, ScalarTypes, find_target_info
from coilwork_ir.scalar import Const, Scalar, cast, const, index_value, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.static_tensors import Fractions, find_static_fractions
from coilwork_lowering.ops.elementwise import (
    BOOL_TO_LONG,
    DEFAULT,
    TO_BOOL,
    TO_FLOAT,
    Promotion,
    ScalarFunction,
    common_type,
    compute_type,
    elementwise,
    is_single,
    overloads,
    pointwise_rule,
    promote_operands,
)
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    eq,
    ge,
    gt,
    index,
    invert,
    like,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    round_to,
    select,
    sub,
    truth,
)

# ---- Checks of divisors ----


def make_divisor_checks(
    builder: Builder, call: Call, compute: DType
) -> Callable[[Sequence[Scalar]], Sequence[Check]] | None:
    """Checks of the operands of a division that is computed in `compute`; None if the divisor cannot be 0."""
    divisor = call["other"]
    # what torch decomposes into divisions asks of no divisor of its own making whether it is 0
    captured = find_target_info(call.captured_operator)
    refused = compute.is_integer and has_trait(call.device, ATEN_CPU) and captured.rejects_zero_divisor
    if not refused or _is_never_zero(divisor, compute):
        return None
    # Eager looks at a divisor when it divides something.
    own = divisor.shape if isinstance(divisor, TensorValue) else ()
    spread = (size for size in call.shape(builder) if size not in own)
    empty = [eq(index(size), index(as_expr(0))) for size in spread if not provably_lt(as_expr(0), size)]

    def checks(operands: Sequence[Scalar]) -> Sequence[Check]:
        condition = reduce(logical_or, empty, op("ne", operands[1], like(0, operands[1])))
        return (Check(condition=condition, message="ZeroDivisionError", error="RuntimeError"),)

    return checks


def _is_never_zero(divisor: Value, compute: DType) -> bool:
    """Tell if `divisor` is not 0 in `compute`, to which a number that does not fit is cut: 256 is 0 in 8
    bits.
    """
    values = 1 << (8 * compute.itemsize)
    if isinstance(divisor, Expr):
        is_cut = compute.itemsize < 8 and not (
            provably_lt(divisor, as_expr(values)) and provably_lt(as_expr(-values), divisor)
        )
        return not is_cut and (provably_lt(as_expr(0), divisor) or provably_lt(divisor, as_expr(0)))
    return isinstance(divisor, bool | int | float) and int(divisor) % values != 0


# ---- Formulas and rules ----


_KINDS: Final[Mapping[ScalarTypes, Promotion]] = MappingProxyType(
    {"promoted": DEFAULT, "float": TO_FLOAT, "bool": TO_BOOL}
)


def make_row_rules(operators: Mapping[str, OpInfo]) -> tuple[Rule, ...]:
    """Return the rules of the operators whose row in the operator table is their lowering: one scalar op
    makes every element.
    """
    return tuple(_row_rule(info) for info in operators.values() if info.scalar_op and "." not in info.name)


def _row_rule(info: OpInfo) -> Rule:
    return pointwise_rule(
        " ".join(f"{info.name}.{overload}" for overload in info.overloads),
        make_row_function(info.scalar_op),
        kind=_KINDS[info.scalar_types],
        rounds="always" if info.scalar_types == "bool" else "never",
    )


def make_row_function(name: str) -> ScalarFunction:
    """Return the op table's row `name` as a function."""

    def apply(*operands: Scalar) -> Scalar:
        return op(name, *operands)

    return apply


def _make_addition(combine: ScalarFunction) -> ScalarFunction:
    def apply(a: Scalar, b: Scalar, alpha: Scalar) -> Scalar:
        return combine(a, mul(alpha, b))

    return apply


def _rsub(a: Scalar, b: Scalar, alpha: Scalar) -> Scalar:
    return sub(b, mul(alpha, a))


def _addcmul(a: Scalar, x: Scalar, y: Scalar, value: Scalar) -> Scalar:
    return add(a, mul(mul(value, x), y))


def _addcdiv(a: Scalar, x: Scalar, y: Scalar, value: Scalar) -> Scalar:
    return add(a, mul(value, op("div", x, y)))


def _reciprocal(a: Scalar) -> Scalar:
    return op("div", like(1, a), a)


def _lerp(a: Scalar, b: Scalar, weight: Scalar) -> Scalar:
    # torch's formula: exact at both ends
    low = add(a, mul(weight, sub(b, a)))
    high = sub(b, mul(sub(b, a), sub(like(1, a), weight)))
    return select(lt(op("abs", weight), like(0.5, weight)), low, high)


def _round_floats(name: str) -> ScalarFunction:
    def apply(a: Scalar) -> Scalar:
        return op(name, a) if a.dtype.is_float else a

    return apply


def _abs(a: Scalar) -> Scalar:
    signed = a.dtype.is_float or a.dtype.is_signed_integer
    return op("abs", a) if signed else a


def _sign(a: Scalar) -> Scalar:
    return a if a.dtype.is_bool else op("sign", a)


def _clamp(a: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return minimum(maximum(a, low), high)


def _isfinite(a: Scalar) -> Scalar:
    if not a.dtype.is_float:
        return op("eq", a, a)
    return invert(logical_or(op("isnan", a), op("isinf", a)))


def _test(name: str) -> ScalarFunction:
    def apply(a: Scalar) -> Scalar:
        return op(name, a) if a.dtype.is_float else op("ne", a, a)

    return apply


def _make_infinity_test(value: float) -> ScalarFunction:
    def apply(a: Scalar) -> Scalar:
        return op("eq", a, like(value, a)) if a.dtype.is_float else op("ne", a, a)

    return apply


def _signbit(a: Scalar) -> Scalar:
    if a.dtype.is_float:
        return op("signbit", a)
    return lt(a, like(0, a)) if a.dtype.is_signed_integer else op("ne", a, a)


def _logical(combine: ScalarFunction) -> ScalarFunction:
    def apply(*operands: Scalar) -> Scalar:
        return combine(*(truth(a) for a in operands))

    return apply


def _xor(a: Scalar, b: Scalar) -> Scalar:
    return op("bitwise_xor", a, b)


def _fmax(a: Scalar, b: Scalar) -> Scalar:
    if not a.dtype.is_float:
        return maximum(a, b)
    return select(op("isnan", a), b, select(op("isnan", b), a, maximum(a, b)))


def _fmin(a: Scalar, b: Scalar) -> Scalar:
    if not a.dtype.is_float:
        return minimum(a, b)
    return select(op("isnan", a), b, select(op("isnan", b), a, minimum(a, b)))


def _heaviside(a: Scalar, values: Scalar) -> Scalar:
    zero, one = like(0, a), like(1, a)
    return select(op("eq", a, zero), values, select(lt(a, zero), zero, select(gt(a, zero), one, zero)))


def _lower_div_mode(builder: Builder, call: Call) -> Value:
    mode = call["rounding_mode"]
    if mode is None:
        compute = compute_type(TO_FLOAT, [call.fakes["self"], call.fakes["other"]])
        operands = [call["self"], call["other"]]
        common = common_type([call.fakes["self"], call.fakes["other"]])
        taken = operands[1:] if is_single(call["other"]) else []
        divide = promote_operands(make_row_function("div"), operands, common, but=taken)
        return elementwise(builder, call, divide, operands=operands, compute=[compute] * 2)
    return _lower_rounded_div(builder, call, mode)


def _lower_floor_divide(builder: Builder, call: Call) -> Value:
    return _lower_rounded_div(builder, call, "floor")


def _lower_rounded_div(builder: Builder, call: Call, mode: str) -> Value:
    operands = [call["self"], call["other"]]
    compute = compute_type(DEFAULT, [call.fakes["self"], call.fakes["other"]])
    if compute.is_bool:
        raise NotLowered("integer division of bools")
    function = make_row_function("floordiv" if mode == "floor" else "truncdiv")
    if is_single(call["other"]):
        function = promote_operands(function, operands, call.dtype, but=operands[1:])
    elif call.dtype.is_low_precision and (mode == "trunc" or has_trait(call.device, ATEN_CPU)):
        # By one number torch divides in f32, and on accelerators by anything where it rounds down; else by a
        # tensor in the tensors' type, and a quotient that is rounded before it is cut is another integer.
        steps = _stepwise_floordiv(call.dtype) if mode == "floor" else _stepwise_truncdiv(call.dtype)
        function = promote_operands(steps, operands, call.dtype)
    return elementwise(
        builder,
        call,
        function,
        operands=operands,
        compute=[compute] * 2,
        checks=make_divisor_checks(builder, call, compute),
    )


def _make_rounding(narrow: DType) -> ScalarFunction:
    return lambda a: round_to(a, narrow)


def _stepwise_truncdiv(narrow: DType) -> ScalarFunction:
    to_narrow = _make_rounding(narrow)
    return lambda a, b: op("trunc", to_narrow(op("div", a, b)))


def _stepwise_floordiv(narrow: DType) -> ScalarFunction:
    """Python's floor division (as in torch) with every step rounded to `narrow`."""
    to_narrow = _make_rounding(narrow)

    def floordiv(a: Scalar, b: Scalar) -> Scalar:
        zero, one = like(0, a), like(1, a)
        ratio = to_narrow(op("div", a, b))
        rest = op("fmod", a, b)
        multiple = select(logical_and(op("isinf", ratio), invert(op("isinf", a))), a, to_narrow(sub(a, rest)))
        quotient = to_narrow(op("div", multiple, b))
        opposed = logical_and(op("ne", rest, zero), _xor(lt(b, zero), lt(rest, zero)))
        quotient = select(opposed, to_narrow(sub(quotient, one)), quotient)
        down = op("floor", quotient)
        nearest = select(gt(to_narrow(sub(quotient, down)), like(0.5, a)), to_narrow(add(down, one)), down)
        signed = select(op("eq", quotient, zero), op("copysign", zero, ratio), nearest)
        return select(op("eq", b, zero), ratio, signed)

    return floordiv


def _remainder(name: str) -> Lower:
    """Return a remainder. torch rounds a number among the operands to the tensors' type: a divisor is
    never wider.
    """

    def lower(builder: Builder, call: Call) -> Value:
        operands = [call["self"], call["other"]]
        compute = compute_type(DEFAULT, [call.fakes["self"], call.fakes["other"]])
        return elementwise(
            builder,
            call,
            promote_operands(make_row_function(name), operands, call.dtype),
            operands=operands,
            compute=[compute] * 2,
            checks=make_divisor_checks(builder, call, compute),
        )

    return lower


def _lower_unsigned_shift(builder: Builder, call: Call, name: str) -> Value:
    compute = compute_type(DEFAULT, [call.fakes["self"], call.fakes["other"]])
    if not compute.is_integer:
        raise NotLowered("shift of bools")

    bits = 8 * compute.itemsize

    def shift(a: Scalar, count: Scalar) -> Scalar:
        # torch defines counts outside the width; C and the table's rows do not
        valid = logical_and(ge(count, like(0, count)), lt(count, like(bits, count)))
        safe = select(valid, count, like(0, count))
        if name == "lshift" or not compute.is_signed_integer:
            return select(valid, op(name, a, safe), like(0, a))
        return op(name, a, select(valid, count, like(bits - 1, count)))

    return elementwise(builder, call, shift, operands=[call["self"], call["other"]], compute=[compute] * 2)


def _lower_lshift(builder: Builder, call: Call) -> Value:
    return _lower_unsigned_shift(builder, call, "lshift")


def _lower_rshift(builder: Builder, call: Call) -> Value:
    return _lower_unsigned_shift(builder, call, "rshift")


def _multiply_by_reciprocal(a: Scalar, b: Scalar) -> Scalar:
    """Divide as torch's accelerators do: by the reciprocal of the number itself, which `b` may not hold."""
    if isinstance(b, Const) and isinstance(b.value, float) and b.value and math.isfinite(b.value):
        return mul(a, const(1.0 / b.value, b.dtype))
    return mul(a, op("div", like(1, b), b))


def _lower_bound(name: str, function: ScalarFunction) -> Lower:
    def lower(builder: Builder, call: Call) -> Value:
        bound = call[name]
        compute = compute_type(DEFAULT, [call.fakes["self"], call.fakes[name]])
        # kernels for accelerators take the larger or smaller of two numbers, of which one may be NaN
        if _is_nan(bound) and not has_trait(call.device, ATEN_CPU):
            return elementwise(builder, call, lambda a: a, operands=[call["self"]], compute=[compute])
        return elementwise(builder, call, function, operands=[call["self"], bound], compute=[compute] * 2)

    return lower


def _is_nan(number: object) -> bool:
    return isinstance(number, float) and math.isnan(number)


_lower_lower_bound = _lower_bound("min", maximum)
_lower_upper_bound = _lower_bound("max", minimum)


def _lower_clamp(builder: Builder, call: Call) -> Value:
    low, high = call["min"], call["max"]
    if low is None and high is None:
        raise NotLowered("clamp without limits")
    # vectors of a CPU convert floats faster than the integers that positions are
    fractions = None if has_trait(call.device, PROCESSOR) else find_static_fractions(call.node)
    if fractions is not None:
        return _lower_upsampling_weights(builder, call, fractions)
    if high is None:
        return _lower_lower_bound(builder, call)
    if low is None:
        return _lower_upper_bound(builder, call)
    names = ("self", "min", "max")
    compute = compute_type(DEFAULT, [call.fakes[n] for n in names])
    return elementwise(builder, call, _clamp, operands=[call[n] for n in names], compute=[compute] * 3)


def _lower_upsampling_weights(builder: Builder, call: Call, known: Fractions) -> Value:
    """Return the weights of an upsampling, from integers: compilers know those of neighbours when the loop is
    unrolled.
    """

    def body(point: tuple[Expr, ...]) -> Scalar:
        numerator = cast(index_value(known.numerator(point[known.axis])), call.dtype)
        return mul(numerator, const(1 / known.denominator, call.dtype))

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
    )


def _fma(a: Scalar, b: Scalar, c: Scalar) -> Scalar:
    return op("fma", a, b, c)


def _neg(a: Scalar) -> Scalar:
    return neg(a)


RULES: Final[tuple[Rule, ...]] = (
    *(pointwise_rule(n, _round_floats(n)) for n in ("floor", "ceil", "trunc", "round")),
    pointwise_rule("add.Tensor add.Scalar", _make_addition(add), rounds="on CPUs"),
    pointwise_rule("sub.Tensor sub.Scalar", _make_addition(sub), rounds="on CPUs"),
    pointwise_rule("rsub.Tensor rsub.Scalar", _rsub, rounds="on CPUs"),
    pointwise_rule("mul.Tensor mul.Scalar", mul, single="other"),
    pointwise_rule(
        "div.Tensor div.Scalar true_divide.Tensor true_divide.Scalar",
        make_row_function("div"),
        kind=TO_FLOAT,
        single="other",
        by_number=_multiply_by_reciprocal,
    ),
    pointwise_rule("frac", lambda a: sub(a, op("trunc", a)), floats_only=True),
    Rule(overloads("div.Tensor_mode div.Scalar_mode"), _lower_div_mode),
    Rule(overloads("floor_divide floor_divide.Scalar"), _lower_floor_divide),
    Rule(overloads("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor"), _remainder("mod")),
    Rule(overloads("fmod.Tensor fmod.Scalar"), _remainder("fmod")),
    # the view too: torch marks it with a bit, which kernels, that read memory, do not look at
    pointwise_rule("neg _neg_view", _neg),
    pointwise_rule("positive", lambda a: a),
    pointwise_rule("abs", _abs),
    pointwise_rule("sign sgn", _sign),
    pointwise_rule("square", lambda a: mul(a, a), kind=BOOL_TO_LONG),
    pointwise_rule("reciprocal", _reciprocal, kind=TO_FLOAT),
    pointwise_rule("maximum", maximum),
    pointwise_rule("minimum", minimum),
    pointwise_rule("fmax", _fmax),
    pointwise_rule("fmin", _fmin),
    pointwise_rule("lerp.Scalar lerp.Tensor", _lerp, floats_only=True),
    pointwise_rule("addcmul", _addcmul, silent=("value",)),
    pointwise_rule("addcdiv", _addcdiv, kind=TO_FLOAT),
    pointwise_rule("prims.fma.default", _fma, floats_only=True),
    pointwise_rule("heaviside", _heaviside),
    pointwise_rule("isnan", _test("isnan"), kind=TO_BOOL),
    pointwise_rule("isinf", _test("isinf"), kind=TO_BOOL),
    pointwise_rule("isfinite", _isfinite, kind=TO_BOOL),
    pointwise_rule("isposinf", _make_infinity_test(float("inf")), kind=TO_BOOL),
    pointwise_rule("isneginf", _make_infinity_test(float("-inf")), kind=TO_BOOL),
    pointwise_rule("signbit", _signbit, kind=TO_BOOL),
    pointwise_rule("logical_and", _logical(logical_and), kind=TO_BOOL),
    pointwise_rule("logical_or", _logical(logical_or), kind=TO_BOOL),
    pointwise_rule("logical_xor", _logical(_xor), kind=TO_BOOL),
    pointwise_rule("logical_not", _logical(invert), kind=TO_BOOL),
    pointwise_rule("bitwise_not", invert),
    Rule(
        overloads(
            "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar __lshift__.Tensor __lshift__.Scalar"
        ),
        _lower_lshift,
    ),
    Rule(
        overloads(
            "bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar __rshift__.Tensor __rshift__.Scalar"
        ),
        _lower_rshift,
    ),
    Rule(overloads("clamp clamp.Tensor"), _lower_clamp),
    Rule(overloads("clamp_min clamp_min.Tensor"), _lower_lower_bound),
    Rule(overloads("clamp_max clamp_max.Tensor"), _lower_upper_bound),
)
