"""Special functions that are formulas over the op table, or rows of it.

- Formulas: the inverse of erf, digamma, `mvlgamma`, `frexp` and `nextafter`.
- Polygamma: a sum that ends in the Euler-Maclaurin series, reflected below 0.
- Functions with a loop whose length depends on the operands: `gcd`, `lcm`, the incomplete gamma functions,
  Hurwitz' zeta function, and orthogonal polynomials whose degrees are tensors. Each is a row of the op table,
  and fuses like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, get_dtype
from coilwork_lowering.ops.arithmetic import make_row_function
from coilwork_lowering.ops.elementwise import (
    DEFAULT,
    TO_FLOAT,
    compute_type,
    elementwise,
    overloads,
    pointwise_rule,
)
from coilwork_lowering.ops.powers import integer_power
from coilwork_lowering.ops.special_functions.chebyshev import compute_in_64_bits
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    div,
    eq,
    gt,
    le,
    like,
    logical_and,
    logical_or,
    lt,
    mul,
    round_to,
    select,
    sub,
    to_dtype,
)

# ---- Formulas ----


# Rational approximations of ATen's `calc_erfinv`, lowest power first.
_CENTRE: Final = (0.886226899, -1.645349621, 0.914624893, -0.140543331)
_CENTRE_BELOW: Final = (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)
_TAIL: Final = (-1.970840454, -1.624906493, 3.429567803, 1.641345311)
_TAIL_BELOW: Final = (1.0, 3.543889200, 1.637067800)
_TAIL_FROM: Final = 0.7
# For `f32`, of Giles ("Approximating the erfinv function", GPU Computing Gems, 2011), lowest power first.
_NEAR: Final = (
    *(1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087),
    *(-4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08),
)
_FAR: Final = (
    *(2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773),
    *(-0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257),
)
# Of Bernoulli's numbers, B(2k) / 2k for k from 1, as the asymptotic series of digamma has them.
_DIGAMMA_COEFFICIENTS: Final = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_ASYMPTOTIC_FROM: Final = 10
# of one expression; beyond, a sum along a dimension is shorter code
_MOST_SUMMANDS: Final = 32
_DIGAMMA_OF_10: Final = 2.25175258906672110764


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    result = like(coefficients[-1], x)
    for coefficient in reversed(coefficients[:-1]):
        result = add(mul(result, x), like(coefficient, x))
    return result


def _erfinv(y: Scalar) -> Scalar:
    """Return the inverse of erf. `f32` takes a polynomial: where erf is flat, a rounded step of Newton's
    method would be far off.
    """
    one, size = like(1, y), op("abs", y)
    x = _erfinv_by_steps(y, size) if y.dtype is DType.F64 else _erfinv_of_f32(y)
    edge = select(eq(size, one), op("copysign", like(math.inf, y), y), like(math.nan, y))
    return select(lt(size, one), x, edge)


def _erfinv_of_f32(y: Scalar) -> Scalar:
    one = like(1, y)
    w = op("neg", op("log", mul(sub(one, y), add(one, y))))
    near = _polynomial(sub(w, like(2.5, y)), _NEAR)
    far = _polynomial(sub(op("sqrt", w), like(3, y)), _FAR)
    return mul(select(lt(w, like(5, y)), near, far), y)


def _erfinv_by_steps(y: Scalar, size: Scalar) -> Scalar:
    """Return an approximation, and two steps of Newton's method, as ATen."""
    one = like(1, y)
    square = mul(y, y)
    centre = div(mul(y, _polynomial(square, _CENTRE)), _polynomial(square, _CENTRE_BELOW))
    far = op("sqrt", op("neg", op("log", div(sub(one, size), like(2, y)))))
    tail = div(op("copysign", _polynomial(far, _TAIL), y), _polynomial(far, _TAIL_BELOW))
    x = select(gt(size, like(_TAIL_FROM, y)), tail, centre)
    for _ in range(2):
        slope = mul(like(2 / math.sqrt(math.pi), y), op("exp", op("neg", mul(x, x))))
        x = sub(x, div(sub(op("erf", x), y), slope))
    return x


def _nextafter(builder: Builder, call: Call) -> Value:
    """Return the neighbour of `self` towards `other` among the numbers of the result's type."""
    names = ("self", "other")
    compute = compute_type(DEFAULT, [call.fakes[name] for name in names])
    values = [call.arguments[name] for name in names]
    neighbour = partial(_neighbour, among=call.dtype)
    return elementwise(builder, call, neighbour, operands=values, compute=[compute] * 2)


def _neighbour(a: Scalar, b: Scalar, *, among: DType) -> Scalar:
    """Return the next float after `a` towards `b`, by bits: floats of one sign are in the order of their
    bits. `a` and `b` may be wider than `among`, and the result has their type.
    """
    kinds = {DType.F32: DType.I32, DType.F64: DType.I64, DType.BF16: DType.U16, DType.F16: DType.U16}
    kind = kinds.get(among)
    if kind is None:
        raise NotLowered(f"neighbours in {among.text}")
    a, b = round_to(a, among), round_to(b, among)
    counted = DType.I32 if kind is DType.U16 else kind

    def number(bits: Scalar) -> Scalar:
        return cast(op("bitcast", cast(bits, kind), dtype=among), a.dtype)

    zero = like(0, a)
    bits = cast(op("bitcast", cast(a, among), dtype=kind), counted)
    one = const(1, counted)
    outwards = eq(lt(a, b), gt(a, zero))
    moved = number(select(outwards, add(bits, one), sub(bits, one)))
    least = op("copysign", number(one), b)
    ordered = select(eq(a, b), b, select(eq(a, zero), least, moved))
    return select(op("isnan", a), a, select(op("isnan", b), b, ordered))


def digamma(x: Scalar) -> Scalar:
    """Return digamma: by the recurrence up to 10, asymptotically from there on, reflected below 0 (Cephes),
    as ATen.
    """
    zero, one, ten = like(0, x), like(1, x), like(_ASYMPTOTIC_FROM, x)
    below = lt(x, zero)
    at, collected = select(below, sub(one, x), x), zero
    for _ in range(_ASYMPTOTIC_FROM):
        small = lt(at, ten)
        collected = select(small, sub(collected, div(one, at)), collected)
        at = select(small, add(at, one), at)
    inverse = div(one, mul(at, at))
    series = mul(inverse, _polynomial(inverse, _DIGAMMA_COEFFICIENTS))
    result = sub(sub(add(collected, op("log", at)), div(like(0.5, x), at)), series)
    result = select(eq(at, ten), add(collected, like(_DIGAMMA_OF_10, x)), result)
    # the tangent of a rounded product would be off near integers
    wide = cast(x, DType.F64)
    fraction = sub(wide, op("trunc", wide))
    pi = const(math.pi, DType.F64)
    slope = cast(div(pi, op("tan", mul(pi, fraction))), x.dtype)
    reflected = select(eq(x, op("trunc", x)), like(math.nan, x), sub(result, slope))
    pole = op("copysign", like(math.inf, x), op("neg", x))
    return select(eq(x, zero), pole, select(below, reflected, result))


def _parts(x: Scalar) -> tuple[Scalar, Scalar]:
    """`x` as a fraction from 0.5 up to 1 and an `i32` power of two; of 0 and what is not finite, itself and
    0.
    """
    kind, mantissa, exponents = (DType.I32, 23, 0xFF) if x.dtype is DType.F32 else (DType.I64, 52, 0x7FF)
    bias = exponents // 2 - 1
    subnormal = lt(op("abs", x), like(2.0 ** (1 - exponents // 2), x))
    bits = op("bitcast", select(subnormal, mul(x, like(2.0 ** (mantissa + 1), x)), x), dtype=kind)
    field = op("bitwise_and", op("rshift", bits, const(mantissa, kind)), const(exponents, kind))
    power = sub(cast(field, DType.I32), const(bias, DType.I32))
    power = select(subnormal, sub(power, const(mantissa + 1, DType.I32)), power)
    rest = op("bitwise_and", bits, const(~(exponents << mantissa), kind))
    fraction = op("bitcast", op("bitwise_or", rest, const(bias << mantissa, kind)), dtype=x.dtype)
    plain = logical_and(op("ne", x, like(0, x)), lt(op("abs", x), like(math.inf, x)))
    return select(plain, fraction, x), select(plain, power, const(0, DType.I32))


def _frexp(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    if not value.dtype.is_float:
        raise NotLowered("parts of an integer")

    def part(number: int, fake: torch.Tensor) -> TensorValue:
        dtype = get_dtype(fake.dtype)

        def body(point: tuple[Expr, ...]) -> Scalar:
            x = cast(builder.read(value, point), value.dtype.compute)
            # Both parts are of one number, also where kernels of their own find them.
            return to_dtype(_parts(round_to(x, value.dtype))[number], dtype)

        strides = builder.result_strides(fake)
        return builder.pointwise(value.shape, dtype, value.device, body, strides=strides)

    mantissa, exponent = call.result
    return (part(0, mantissa), part(1, exponent))


def _mvlgamma(builder: Builder, call: Call) -> Value:
    """Return the multivariate log-gamma of 16-bit floats, of few dimensions; eager's kernels round at every
    step.
    """
    dimensions, dtype = call.integer("p"), call.dtype
    if (
        call.fakes["self"].dtype not in (torch.float16, torch.bfloat16)
        or not 1 <= dimensions <= _MOST_SUMMANDS
    ):
        raise NotLowered("the logarithm of a gamma function of many dimensions, or of a wider type")
    constant = dimensions * (dimensions - 1) * math.log(math.pi) * 0.25

    def sum_log_gammas(x: Scalar) -> Scalar:
        total = like(0.0, x)
        for k in range(dimensions):
            shifted = round_to(add(x, round_to(like((1 - dimensions + k) / 2, x), dtype)), dtype)
            total = add(total, round_to(op("lgamma", shifted), dtype))
        last = like(constant, x)
        return add(
            round_to(total, dtype), round_to(last, dtype) if has_trait(call.device, ATEN_CPU) else last
        )

    return elementwise(builder, call, sum_log_gammas, operands=[call["self"]], compute=[dtype.compute])


# ---- Polygamma ----


# Of derivatives beyond it more terms are wanted.
_HIGHEST_ORDER: Final = 8
# Terms that are added one by one.
_SUMMED_TERMS: Final = 12
# Bernoulli's numbers B(2), B(4), ...
_BERNOULLI_NUMBERS: Final = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6),
    *(-3617 / 510, 43867 / 798, -174611 / 330),
)


def _polygamma_of_positive(x: Scalar, order: int) -> Scalar:
    """Return polygamma of numbers above 0: `(-1) ** (order + 1) * order! * zeta(order + 1, x)`."""
    s, one = order + 1, like(1, x)
    total, at = like(0, x), x
    for _ in range(_SUMMED_TERMS):
        total = add(total, div(one, integer_power(at, s)))
        at = add(at, one)
    inverse = div(one, at)
    square = mul(inverse, inverse)
    rest = like(0, x)
    for k in reversed(range(1, len(_BERNOULLI_NUMBERS) + 1)):
        rising = math.prod(range(s, s + 2 * k - 1)) / math.factorial(2 * k)
        rest = add(mul(rest, square), like(_BERNOULLI_NUMBERS[k - 1] * rising, x))
    rest = mul(rest, square)
    # in units of `at ** (1 - s)`
    tail = add(add(like(1 / (s - 1), x), mul(like(0.5, x), inverse)), rest)
    total = add(total, div(tail, integer_power(at, s - 1)))
    # eager's sum, which derivatives beyond the first go through, makes no number of infinity
    total = select(op("isinf", x), like(0 if order == 1 else math.nan, x), total)
    return mul(total, like((-1) ** s * math.factorial(order), x))


def _cotangent_slope(x: Scalar, order: int) -> Scalar:
    """Return the derivative of `cot(pi x)`, `order` times, as a polynomial in it."""
    polynomial = [0, 1]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(polynomial)][1:]
        polynomial = [
            -((slope[k] if k < len(slope) else 0) + (slope[k - 2] if k >= 2 else 0))
            for k in range(len(slope) + 2)
        ]
    angle = mul(like(math.pi, x), sub(x, op("round", x)))
    cotangent = div(op("cos", angle), op("sin", angle))
    result = like(polynomial[-1], x)
    for coefficient in reversed(polynomial[:-1]):
        result = add(mul(result, cotangent), like(coefficient, x))
    return mul(result, like(math.pi**order, x))


def trigamma(x: Scalar) -> Scalar:
    """Return the first derivative of digamma, by torch's own formula (`trigamma` in ATen/native/Math.h) and
    in its type: below 0, where poles are, what eager gives depends on how far the type's pi is from pi.
    """
    one, pi = like(1, x), like(math.pi, x)
    below = lt(x, like(0.5, x))
    sine = op("sin", mul(pi, x))
    total = select(below, sub(like(0, x), div(mul(pi, pi), mul(sine, sine))), like(0, x))
    at = select(below, sub(one, x), x)
    for _ in range(6):
        total = add(total, div(one, mul(at, at)))
        at = add(at, one)
    square = div(one, mul(at, at))
    series = sub(like(1 / 30, x), mul(square, like(1 / 42, x)))
    series = sub(like(1 / 6, x), mul(square, series))
    halves = add(add(one, div(one, mul(like(2, x), at))), mul(square, series))
    total = add(total, div(halves, at))
    return select(below, sub(like(0, x), total), total)


def _polygamma(order: int) -> Callable[[Scalar], Scalar]:
    def function(x: Scalar) -> Scalar:
        zero, below = like(0, x), lt(x, like(0.5, x))
        value = _polygamma_of_positive(select(below, sub(like(1, x), x), x), order)
        reflected = sub(mul(like((-1) ** order, x), value), mul(like(math.pi, x), _cotangent_slope(x, order)))
        result = select(below, reflected, value)
        pole = logical_and(le(x, zero), eq(x, op("trunc", x)))
        return select(pole, like(math.inf if order % 2 else -math.inf, x), result)

    return function


def _lower_polygamma(builder: Builder, call: Call) -> Value:
    order = call.integer("n")
    if not 0 <= order <= _HIGHEST_ORDER:
        raise NotLowered("a high derivative of digamma")
    compute = compute_type(TO_FLOAT, [call.fakes["self"]])
    function = (digamma, trigamma)[order] if order < 2 else compute_in_64_bits(_polygamma(order))
    return elementwise(builder, call, function, operands=[call["self"]], compute=[compute])


# ---- Rows with loops ----


def _lcm(a: Scalar, b: Scalar) -> Scalar:
    """Return the size of `a / gcd * b`, computed in 32 bits or more, as C++ does it; 0 where both are."""
    divisor = op("gcd", a, b)
    if a.dtype.itemsize < 4:
        a, b, divisor = (cast(value, DType.I32) for value in (a, b, divisor))
    zero, one = like(0, a), like(1, a)
    # the least number divided by -1 would stop the process; its negative wraps around
    backwards = eq(divisor, sub(zero, one))
    safe = select(logical_or(eq(divisor, zero), backwards), one, divisor)
    product = mul(op("truncdiv", select(backwards, sub(zero, a), a), safe), b)
    size = select(lt(product, zero), sub(zero, product), product)
    return select(eq(divisor, zero), zero, size)


def _exclude_16_bits(rule: Rule) -> Rule:
    """Return `rule` without 16-bit floats: devices differ in which of them eager has in 16 bits."""

    def lower(builder: Builder, call: Call) -> Value:
        if call.dtype.is_low_precision:
            raise NotLowered(f"{call.target} of 16 bits")
        return rule.lower(builder, call)

    return Rule(rule.targets, lower)


def _orthogonal_polynomial(name: str, row: str) -> Rule:
    base = f"special_{name}_polynomial_{row.rpartition(' ')[2]}"
    targets = f"{base} {base}.x_scalar {base}.n_scalar"
    return pointwise_rule(targets, make_row_function(row.partition(" ")[0]), kind=TO_FLOAT)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("mvlgamma"), _mvlgamma),
    pointwise_rule("digamma special_digamma special_psi", digamma, kind=TO_FLOAT),
    Rule(overloads("frexp.Tensor"), _frexp),
    pointwise_rule("erfinv special_erfinv", _erfinv, kind=TO_FLOAT),
    Rule(overloads("nextafter"), _nextafter),
    Rule(overloads("polygamma special_polygamma"), _lower_polygamma),
    pointwise_rule("gcd", make_row_function("gcd")),
    pointwise_rule("lcm", _lcm),
    *(
        _exclude_16_bits(rule)
        for rule in (
            pointwise_rule("igamma", make_row_function("igamma"), kind=TO_FLOAT),
            pointwise_rule("igammac", make_row_function("igammac"), kind=TO_FLOAT),
            pointwise_rule(
                "special_zeta special_zeta.self_scalar special_zeta.other_scalar",
                make_row_function("zeta"),
                kind=TO_FLOAT,
            ),
            _orthogonal_polynomial("hermite", "hermite_h h"),
            _orthogonal_polynomial("hermite", "hermite_he he"),
            _orthogonal_polynomial("laguerre", "laguerre l"),
            _orthogonal_polynomial("legendre", "legendre p"),
        )
    ),
)
