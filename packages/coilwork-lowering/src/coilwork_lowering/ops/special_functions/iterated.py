"""Functions that take a loop as long as their operands say: each is a row of the op table, and fuses as any
other.

Common divisors and multiples, the incomplete gamma functions, Hurwitz' zeta function, and orthogonal
polynomials whose degrees are tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.scalar import Scalar, cast, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import TO_FLOAT, pointwise_rule
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import either, eq, like, lt, mul, select, sub


def _lcm(a: Scalar, b: Scalar) -> Scalar:
    """The size of `a / gcd * b`, computed in 32 bits or more, as C++ does it; 0 where both are."""
    divisor = op("gcd", a, b)
    if a.dtype.itemsize < 4:
        a, b, divisor = (cast(value, DType.I32) for value in (a, b, divisor))
    zero, one = like(0, a), like(1, a)
    # the least number divided by -1 would stop the process; its negative wraps around
    backwards = eq(divisor, sub(zero, one))
    safe = select(either(eq(divisor, zero), backwards), one, divisor)
    product = mul(op("truncdiv", select(backwards, sub(zero, a), a), safe), b)
    size = select(lt(product, zero), sub(zero, product), product)
    return select(eq(divisor, zero), zero, size)


def _row(name: str) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda a, b: op(name, a, b)


def _not_in_16_bits(rule: Rule) -> Rule:
    """Return which of them eager has in 16 bits is not the same on every device: it says so itself."""

    def lower(builder: Builder, call: Call) -> Value:
        if call.dtype.is_low_precision:
            raise NotLowered(f"{call.target} of 16 bits")
        return rule.lower(builder, call)

    return Rule(rule.targets, lower)


def _polynomial(name: str, row: str) -> Rule:
    base = f"special_{name}_polynomial_{row.rpartition(' ')[2]}"
    targets = f"{base} {base}.x_scalar {base}.n_scalar"
    return pointwise_rule(targets, _row(row.partition(" ")[0]), kind=TO_FLOAT)


RULES: Final[tuple[Rule, ...]] = (
    pointwise_rule("gcd", _row("gcd")),
    pointwise_rule("lcm", _lcm),
    *(
        _not_in_16_bits(rule)
        for rule in (
            pointwise_rule("igamma", _row("igamma"), kind=TO_FLOAT),
            pointwise_rule("igammac", _row("igammac"), kind=TO_FLOAT),
            pointwise_rule(
                "special_zeta special_zeta.self_scalar special_zeta.other_scalar", _row("zeta"), kind=TO_FLOAT
            ),
            _polynomial("hermite", "hermite_h h"),
            _polynomial("hermite", "hermite_he he"),
            _polynomial("laguerre", "laguerre l"),
            _polynomial("legendre", "legendre p"),
        )
    ),
)
