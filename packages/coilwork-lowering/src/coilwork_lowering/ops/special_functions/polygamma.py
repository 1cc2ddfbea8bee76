"""Derivatives of digamma: a sum that ends in Euler and Maclaurin's series, and reflected below 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from coilwork_ir.scalar import Scalar, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import TO_FLOAT, compute_type, elementwise, overloads
from coilwork_lowering.ops.powers import integer_power
from coilwork_lowering.ops.special_functions.chebyshev import compute_in_64_bits
from coilwork_lowering.ops.special_functions.special import digamma
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, both, div, eq, le, like, lt, mul, select, sub

# Of derivatives beyond it more terms are wanted.
_HIGHEST: Final = 8
# Terms that are added one by one.
_FIRST: Final = 12
# Bernoulli's numbers B(2), B(4), ...
_BERNOULLI: Final = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6),
    *(-3617 / 510, 43867 / 798, -174611 / 330),
)


def _above(x: Scalar, order: int) -> Scalar:
    """Of numbers above 0: `(-1) ** (order + 1) * order! * zeta(order + 1, x)`."""
    s, one = order + 1, like(1, x)
    total, at = like(0, x), x
    for _ in range(_FIRST):
        total = add(total, div(one, integer_power(at, s)))
        at = add(at, one)
    inverse = div(one, at)
    square = mul(inverse, inverse)
    rest = like(0, x)
    for k in reversed(range(1, len(_BERNOULLI) + 1)):
        rising = math.prod(range(s, s + 2 * k - 1)) / math.factorial(2 * k)
        rest = add(mul(rest, square), like(_BERNOULLI[k - 1] * rising, x))
    rest = mul(rest, square)
    # in units of `at ** (1 - s)`
    tail = add(add(like(1 / (s - 1), x), mul(like(0.5, x), inverse)), rest)
    total = add(total, div(tail, integer_power(at, s - 1)))
    # eager's sum, which derivatives beyond the first go through, makes no number of infinity
    total = select(op("isinf", x), like(0 if order == 1 else math.nan, x), total)
    return mul(total, like((-1) ** s * math.factorial(order), x))


def _cotangent_slope(x: Scalar, order: int) -> Scalar:
    """The derivative of `cot(pi x)`, `order` times, as a polynomial in it."""
    polynomial = [0, 1]
    for _ in range(order):
        slope = [k * c for k, c in enumerate(polynomial)][1:]
        polynomial = [
            -((slope[k] if k < len(slope) else 0) + (slope[k - 2] if k >= 2 else 0))
            for k in range(len(slope) + 2)
        ]
    angle = mul(like(math.pi, x), sub(x, op("round", x)))
    cotangent = div(op("cos", angle), op("sin", angle))
    found = like(polynomial[-1], x)
    for coefficient in reversed(polynomial[:-1]):
        found = add(mul(found, cotangent), like(coefficient, x))
    return mul(found, like(math.pi**order, x))


def trigamma(x: Scalar) -> Scalar:
    """The first derivative of digamma, by torch's own formula (`trigamma` in ATen/native/Math.h) and in its
    type: below 0, where poles are, what eager gives depends on how far the type's pi is from pi.
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
        value = _above(select(below, sub(like(1, x), x), x), order)
        reflected = sub(mul(like((-1) ** order, x), value), mul(like(math.pi, x), _cotangent_slope(x, order)))
        found = select(below, reflected, value)
        pole = both(le(x, zero), eq(x, op("trunc", x)))
        return select(pole, like(math.inf if order % 2 else -math.inf, x), found)

    return function


def _lower(builder: Builder, call: Call) -> Value:
    order = call.integer("n")
    if not 0 <= order <= _HIGHEST:
        raise NotLowered("a high derivative of digamma")
    compute = compute_type(TO_FLOAT, [call.fakes["self"]])
    function = (digamma, trigamma)[order] if order < 2 else compute_in_64_bits(_polygamma(order))
    return elementwise(builder, call, function, operands=[call["self"]], compute=[compute])


RULES: Final[tuple[Rule, ...]] = (Rule(overloads("polygamma special_polygamma"), _lower),)
