"""Special functions by Chebyshev series, and Chebyshev polynomials. Everything is computed in 64 bits.

- Bessel functions of order 0 and 1, modified ones, and the Airy function: a series near 0, slowly varying
  factors far away. The forms are those of Cephes (Moshier 1989), the coefficients are in
  `chebyshev_tables.py`.
- `erfcx` and the quantiles of the normal distribution.
- Chebyshev polynomials of four kinds, whose degrees are known at run time only: by angles, as eager computes
  high degrees inside [-1, 1]. Eager's recurrence for the others would be a loop whose length is data. In
  `f64`, angles are as exact, but for the rounding of their multiples. Hermite's, Laguerre's and Legendre's
  polynomials have no such form; `formulas.py` has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import TO_FLOAT, pointwise_rule
from coilwork_lowering.ops.special_functions import chebyshev_tables as tables
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, div, eq, gt, le, like, lt, mul, neg, select, sub

# ---- Series ----


def evaluate_series(u: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Return the sum of `coefficients[k] * T(k, u)`, for `u` in [-1, 1], by Clenshaw's recurrence."""
    twice = add(u, u)
    ahead, behind = like(0.0, u), like(0.0, u)
    for coefficient in reversed(coefficients[1:]):
        ahead, behind = add(sub(mul(twice, ahead), behind), like(coefficient, u)), ahead
    return add(sub(mul(u, ahead), behind), like(coefficients[0], u))


def series_over(x: Scalar, low: float, high: float, coefficients: Sequence[float]) -> Scalar:
    """Return a series over the interval from `low` to `high`, at `x`. Elsewhere its value makes no sense."""
    scaled = mul(sub(x, like(low, x)), like(2 / (high - low), x))
    return evaluate_series(sub(scaled, like(1, x)), coefficients)


def series_behind(part: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Return a series over [0, 1], of which the interval from a number to infinity is mapped to 1 to 0."""
    return evaluate_series(sub(add(part, part), like(1, part)), coefficients)


def divide_by(start: float, x: Scalar) -> Scalar:
    """`start / x`."""
    return div(like(start, x), x)


def compute_in_64_bits(function: Callable[..., Scalar]) -> Callable[..., Scalar]:
    """`function`, computed in `f64`: as eager's kernels in `f32`, or better."""

    def wide(*operands: Scalar) -> Scalar:
        result = function(*(cast(operand, DType.F64) for operand in operands))
        return cast(result, operands[0].dtype)

    return wide


# ---- Bessel and Airy functions ----


_NEAR: Final = 8.0
_AIRY_OSCILLATES: Final = -4.0
_AIRY_DECAYS: Final = 2.0
# from here on eager's is 0
_AIRY_VANISHES: Final = 103.892


def _i0e(x: Scalar) -> Scalar:
    size = op("abs", x)
    near = series_over(size, 0, _NEAR, tables.I0_NEAR)
    far = div(series_behind(divide_by(_NEAR, size), tables.I0_FAR), op("sqrt", size))
    return select(le(size, like(_NEAR, x)), near, far)


def _i1e(x: Scalar) -> Scalar:
    size = op("abs", x)
    near = mul(series_over(size, 0, _NEAR, tables.I1_NEAR), size)
    far = div(series_behind(divide_by(_NEAR, size), tables.I1_FAR), op("sqrt", size))
    result = select(le(size, like(_NEAR, x)), near, far)
    return select(lt(x, like(0, x)), neg(result), result)


def _i0(x: Scalar) -> Scalar:
    return mul(op("exp", op("abs", x)), _i0e(x))


def _i1(x: Scalar) -> Scalar:
    return mul(op("exp", op("abs", x)), _i1e(x))


def _k(x: Scalar, order: int, *, scaled: bool) -> Scalar:
    """Return a modified Bessel function of the second kind: infinite at 0, NaN below."""
    zero, two, square = like(0, x), like(2, x), mul(x, x)
    logarithm = op("log", div(x, two))
    if order == 0:
        near = sub(series_over(square, 0, 4, tables.K0_NEAR), mul(logarithm, _i0(x)))
        far = series_behind(divide_by(2, x), tables.K0_FAR)
    else:
        near = add(div(series_over(square, 0, 4, tables.K1_NEAR), x), mul(logarithm, _i1(x)))
        far = series_behind(divide_by(2, x), tables.K1_FAR)
    far = div(far, op("sqrt", x))
    if scaled:
        near = mul(near, op("exp", x))
    else:
        far = mul(far, op("exp", neg(x)))
    result = select(le(x, two), near, far)
    result = select(lt(x, zero), like(math.nan, x), result)
    return select(eq(x, zero), like(math.inf, x), result)


def _evaluate_asymptotic(x: Scalar, order: int, *, second: bool) -> Scalar:
    """Return J, or Y if `second`, of a number from 8 on: Abramowitz and Stegun 9.2.5 and 9.2.6."""
    part = divide_by(_NEAR, x)
    part = mul(part, part)
    p = series_behind(part, tables.P0_FAR if order == 0 else tables.P1_FAR)
    q = div(series_behind(part, tables.Q0_FAR if order == 0 else tables.Q1_FAR), x)
    angle = sub(x, like((2 * order + 1) * math.pi / 4, x))
    sine, cosine = op("sin", angle), op("cos", angle)
    if second:
        result = add(mul(p, sine), mul(q, cosine))
    else:
        result = sub(mul(p, cosine), mul(q, sine))
    return mul(result, op("sqrt", div(like(2 / math.pi, x), x)))


def _evaluate_near(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    return series_over(mul(x, x), 0, _NEAR * _NEAR, coefficients)


def _j0(x: Scalar) -> Scalar:
    size = op("abs", x)
    return select(
        le(size, like(_NEAR, x)),
        _evaluate_near(size, tables.J0_NEAR),
        _evaluate_asymptotic(size, 0, second=False),
    )


def _j1(x: Scalar) -> Scalar:
    size = op("abs", x)
    far = _evaluate_asymptotic(size, 1, second=False)
    far = select(lt(x, like(0, x)), neg(far), far)
    return select(le(size, like(_NEAR, x)), mul(x, _evaluate_near(size, tables.J1_NEAR)), far)


def _y(x: Scalar, near: Scalar, order: int) -> Scalar:
    """Return a Bessel function of the second kind: negative infinity at 0, NaN below."""
    zero = like(0, x)
    result = select(le(x, like(_NEAR, x)), near, _evaluate_asymptotic(x, order, second=True))
    result = select(lt(x, zero), like(math.nan, x), result)
    return select(eq(x, zero), like(-math.inf, x), result)


def _y0(x: Scalar) -> Scalar:
    logarithm = mul(like(2 / math.pi, x), op("log", x))
    return _y(x, add(_evaluate_near(x, tables.Y0_NEAR), mul(logarithm, _j0(x))), 0)


def _y1(x: Scalar) -> Scalar:
    rest = sub(mul(op("log", x), _j1(x)), div(like(1, x), x))
    return _y(x, add(mul(x, _evaluate_near(x, tables.Y1_NEAR)), mul(like(2 / math.pi, x), rest)), 1)


def _spherical_j0(x: Scalar) -> Scalar:
    zero = like(0, x)
    result = select(eq(x, zero), like(1, x), div(op("sin", x), x))
    return select(op("isinf", x), zero, result)


def _airy_ai(x: Scalar) -> Scalar:
    size = op("abs", x)
    root = op("sqrt", size)
    z = mul(mul(like(2 / 3, x), size), root)
    fourth = op("sqrt", root)
    part = divide_by(16 / 3, z)
    part = mul(part, part)
    angle = add(z, like(math.pi / 4, x))
    p = mul(series_behind(part, tables.AI_P_FAR), op("sin", angle))
    q = mul(div(series_behind(part, tables.AI_Q_FAR), z), op("cos", angle))
    oscillating = div(mul(sub(p, q), like(1 / math.sqrt(math.pi), x)), fourth)
    decaying = series_behind(divide_by(1.8, z), tables.AI_DECAYING)
    decaying = mul(mul(decaying, like(0.5 / math.sqrt(math.pi), x)), op("exp", neg(z)))
    decaying = div(decaying, fourth)
    near = series_over(x, _AIRY_OSCILLATES, _AIRY_DECAYS, tables.AI_NEAR)
    result = select(lt(x, like(_AIRY_OSCILLATES, x)), oscillating, near)
    result = select(gt(x, like(_AIRY_DECAYS, x)), decaying, result)
    result = select(gt(x, like(_AIRY_VANISHES, x)), like(0, x), result)
    return select(op("isinf", x), like(math.nan, x), result)


def _exclude_64_bits(rule: Rule) -> Rule:
    """Return `rule` without `f64`. Eager's own functions are off by up to 4e-7 there, more than we may differ
    from eager.
    """

    def lower(builder: Builder, call: Call) -> Value:
        if call.dtype is DType.F64:
            raise NotLowered("an approximation that is coarser in eager")
        return rule.lower(builder, call)

    return Rule(rule.targets, lower)


_CYLINDRICAL: Final = tuple(
    _exclude_64_bits(pointwise_rule(targets, compute_in_64_bits(function), kind=TO_FLOAT))
    for targets, function in (
        ("special_bessel_j0", _j0),
        ("special_bessel_j1", _j1),
        ("special_bessel_y0", _y0),
        ("special_bessel_y1", _y1),
    )
)
_OTHERS: Final = tuple(
    pointwise_rule(targets, compute_in_64_bits(function), kind=TO_FLOAT)
    for targets, function in (
        ("i0 special_modified_bessel_i0", _i0),
        ("special_i0e", _i0e),
        ("special_i1 special_modified_bessel_i1", _i1),
        ("special_i1e", _i1e),
        ("special_modified_bessel_k0", lambda x: _k(x, 0, scaled=False)),
        ("special_modified_bessel_k1", lambda x: _k(x, 1, scaled=False)),
        ("special_scaled_modified_bessel_k0", lambda x: _k(x, 0, scaled=True)),
        ("special_scaled_modified_bessel_k1", lambda x: _k(x, 1, scaled=True)),
        ("special_spherical_bessel_j0", _spherical_j0),
        ("special_airy_ai", _airy_ai),
    )
)


# ---- erfcx and normal quantiles ----


# Of the map of Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2) erfc x", 1981.
_CENTRE: Final = 3.75
# From here on `exp(-x^2)` does not matter, and the function is the first term of its continued fraction.
_FAR: Final = 5e7
# Quantiles of probabilities closer to 1/2 than this are of the series in the middle.
_MIDDLE: Final = 0.36
_TAIL: Final = 8.0


def _erfcx(x: Scalar) -> Scalar:
    size, one = op("abs", x), like(1, x)
    u = div(sub(size, like(_CENTRE, x)), add(size, like(_CENTRE, x)))
    result = div(evaluate_series(u, tables.ERFCX), add(one, add(size, size)))
    result = select(gt(size, like(_FAR, x)), divide_by(1 / math.sqrt(math.pi), size), result)
    square = op("exp", mul(x, x))
    return select(lt(x, like(0, x)), sub(add(square, square), result), result)


def _quantile(p: Scalar) -> Scalar:
    """Return the normal quantile as Cephes' `ndtri`: a series in the middle, one of `sqrt(-2 log p)` in each
    tail.
    """
    zero, one, half = (like(value, p) for value in (0, 1, 0.5))
    y = sub(p, half)
    middle = mul(y, series_over(mul(y, y), 0, 0.14, tables.QUANTILE_CENTRE))
    above = gt(p, half)
    small = select(above, sub(one, p), p)
    x = op("sqrt", neg(mul(like(2, p), op("log", small))))
    near = series_over(x, 1.9, _TAIL, tables.QUANTILE_TAIL)
    far = series_over(divide_by(1, x), 1 / 39, 1 / _TAIL, tables.QUANTILE_FAR)
    rest = div(select(le(x, like(_TAIL, p)), near, far), x)
    tail = sub(rest, sub(x, div(op("log", x), x)))
    tail = select(above, neg(tail), tail)
    result = select(le(op("abs", y), like(_MIDDLE, p)), middle, tail)
    result = select(eq(p, zero), like(-math.inf, p), result)
    result = select(eq(p, one), like(math.inf, p), result)
    outside = op("bitwise_or", lt(p, zero), gt(p, one))
    return select(outside, like(math.nan, p), result)


# ---- Chebyshev polynomials ----


# What the multiple of an angle is divided by, given functions of the angle, and whether the sign changes at
# -1.
_Ratio = Callable[[Scalar, Scalar], Scalar]


def _evaluate_by_angle(
    x: Scalar, n: Scalar, inside: _Ratio, above: _Ratio, below: _Ratio, at_one: Scalar, at_minus_one: Scalar
) -> Scalar:
    """`inside` of the angle whose cosine `x` is, `above` and (but for the sign) `below` of that whose
    hyperbolic cosine `|x|` is.
    """
    one, size = like(1, x), op("abs", x)
    far = op("acosh", op("maximum", size, one))
    odd = eq(op("fmod", n, like(2, x)), one)
    beyond = below(n, far)
    beyond = select(odd, neg(beyond), beyond)
    result = inside(n, op("acos", x))
    result = select(gt(x, one), above(n, far), result)
    result = select(lt(x, neg(one)), beyond, result)
    result = select(eq(x, one), at_one, result)
    result = select(eq(x, neg(one)), select(odd, neg(at_minus_one), at_minus_one), result)
    # of an infinite number eager's recurrence subtracts infinities, from the third degree on
    high = select(gt(n, like(2, n)), like(math.nan, x), select(odd, x, size))
    result = select(op("isinf", x), high, result)
    result = select(eq(n, like(0, x)), one, result)
    # degrees that are no int64, NaN among them, are negative to eager
    result = select(lt(n, like(2.0**63, n)), result, like(0, x))
    return select(gt(n, like(-1, n)), result, like(0, x))


def _plus(n: Scalar, more: float) -> Scalar:
    return add(n, like(more, n))


def _half(angle: Scalar) -> Scalar:
    return mul(angle, like(0.5, angle))


def _evaluate_first_kind(x: Scalar, n: Scalar) -> Scalar:
    def hyperbolic(n: Scalar, angle: Scalar) -> Scalar:
        return op("cosh", mul(n, angle))

    one = like(1, x)
    return _evaluate_by_angle(
        x, n, lambda n, angle: op("cos", mul(n, angle)), hyperbolic, hyperbolic, one, one
    )


def _second_kind(x: Scalar, n: Scalar) -> Scalar:
    def ratio(function: str) -> _Ratio:
        return lambda n, angle: div(op(function, mul(_plus(n, 1), angle)), op(function, angle))

    size = _plus(n, 1)
    return _evaluate_by_angle(x, n, ratio("sin"), ratio("sinh"), ratio("sinh"), size, size)


def _halve(function: str) -> _Ratio:
    return lambda n, angle: div(op(function, mul(_plus(n, 0.5), angle)), op(function, _half(angle)))


def _third_kind(x: Scalar, n: Scalar) -> Scalar:
    size = _plus(add(n, n), 1)
    return _evaluate_by_angle(x, n, _halve("cos"), _halve("cosh"), _halve("sinh"), like(1, x), size)


def _fourth_kind(x: Scalar, n: Scalar) -> Scalar:
    size = _plus(add(n, n), 1)
    return _evaluate_by_angle(x, n, _halve("sin"), _halve("sinh"), _halve("cosh"), size, like(1, x))


def _make_polynomial_rules() -> tuple[Rule, ...]:
    results = []
    for letter, function in (
        ("t", _evaluate_first_kind),
        ("u", _second_kind),
        ("v", _third_kind),
        ("w", _fourth_kind),
    ):

        def plain(x: Scalar, n: Scalar, function: Callable[[Scalar, Scalar], Scalar] = function) -> Scalar:
            return function(x, op("trunc", n))

        def shift_argument(x: Scalar, n: Scalar, plain: Callable[[Scalar, Scalar], Scalar] = plain) -> Scalar:
            return plain(sub(add(x, x), like(1, x)), n)

        for name, chosen in (("chebyshev", plain), ("shifted_chebyshev", shift_argument)):
            base = f"special_{name}_polynomial_{letter}"
            targets = f"{base} {base}.x_scalar {base}.n_scalar"
            results.append(pointwise_rule(targets, compute_in_64_bits(chosen), kind=TO_FLOAT))
    return tuple(results)


RULES: Final[tuple[Rule, ...]] = (
    *_make_polynomial_rules(),
    *_CYLINDRICAL,
    *_OTHERS,
    pointwise_rule("special_erfcx", compute_in_64_bits(_erfcx), kind=TO_FLOAT),
    pointwise_rule("special_ndtri", compute_in_64_bits(_quantile), kind=TO_FLOAT),
)
