"""Chebyshev polynomials of four kinds, of degrees known at run time only: by angles, in 64 bits.

Eager computes high degrees inside [-1, 1] like this and others by recurrence, which takes a loop as long as
data says. Angles are as exact in `f64` up to the rounding of their multiples. Hermite's, Laguerre's and
Legendre's polynomials, which have no such form, are in `iterated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.ops.elementwise import TO_FLOAT, pointwise_rule
from coilwork_lowering.ops.special_functions.chebyshev_series import compute_in_64_bits
from coilwork_lowering.rules import Rule
from coilwork_lowering.scalar_math import add, div, eq, gt, like, lt, mul, neg, select, sub

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
    found = inside(n, op("acos", x))
    found = select(gt(x, one), above(n, far), found)
    found = select(lt(x, neg(one)), beyond, found)
    found = select(eq(x, one), at_one, found)
    found = select(eq(x, neg(one)), select(odd, neg(at_minus_one), at_minus_one), found)
    # of an infinite number eager's recurrence subtracts infinities, from the third degree on
    high = select(gt(n, like(2, n)), like(math.nan, x), select(odd, x, size))
    found = select(op("isinf", x), high, found)
    found = select(eq(n, like(0, x)), one, found)
    # degrees that are no int64, NaN among them, are negative to eager
    found = select(lt(n, like(2.0**63, n)), found, like(0, x))
    return select(gt(n, like(-1, n)), found, like(0, x))


def _plus(n: Scalar, more: float) -> Scalar:
    return add(n, like(more, n))


def _half(angle: Scalar) -> Scalar:
    return mul(angle, like(0.5, angle))


def _first(x: Scalar, n: Scalar) -> Scalar:
    def hyperbolic(n: Scalar, angle: Scalar) -> Scalar:
        return op("cosh", mul(n, angle))

    one = like(1, x)
    return _evaluate_by_angle(
        x, n, lambda n, angle: op("cos", mul(n, angle)), hyperbolic, hyperbolic, one, one
    )


def _second(x: Scalar, n: Scalar) -> Scalar:
    def ratio(function: str) -> _Ratio:
        return lambda n, angle: div(op(function, mul(_plus(n, 1), angle)), op(function, angle))

    size = _plus(n, 1)
    return _evaluate_by_angle(x, n, ratio("sin"), ratio("sinh"), ratio("sinh"), size, size)


def _halve(function: str) -> _Ratio:
    return lambda n, angle: div(op(function, mul(_plus(n, 0.5), angle)), op(function, _half(angle)))


def _third(x: Scalar, n: Scalar) -> Scalar:
    size = _plus(add(n, n), 1)
    return _evaluate_by_angle(x, n, _halve("cos"), _halve("cosh"), _halve("sinh"), like(1, x), size)


def _fourth(x: Scalar, n: Scalar) -> Scalar:
    size = _plus(add(n, n), 1)
    return _evaluate_by_angle(x, n, _halve("sin"), _halve("sinh"), _halve("cosh"), size, like(1, x))


def _rules() -> tuple[Rule, ...]:
    found = []
    for letter, function in (("t", _first), ("u", _second), ("v", _third), ("w", _fourth)):

        def plain(x: Scalar, n: Scalar, function: Callable[[Scalar, Scalar], Scalar] = function) -> Scalar:
            return function(x, op("trunc", n))

        def shift_argument(x: Scalar, n: Scalar, plain: Callable[[Scalar, Scalar], Scalar] = plain) -> Scalar:
            return plain(sub(add(x, x), like(1, x)), n)

        for name, chosen in (("chebyshev", plain), ("shifted_chebyshev", shift_argument)):
            base = f"special_{name}_polynomial_{letter}"
            targets = f"{base} {base}.x_scalar {base}.n_scalar"
            found.append(pointwise_rule(targets, compute_in_64_bits(chosen), kind=TO_FLOAT))
    return tuple(found)


RULES: Final[tuple[Rule, ...]] = _rules()
