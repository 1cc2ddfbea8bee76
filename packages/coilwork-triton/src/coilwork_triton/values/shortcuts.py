"""Which values of a kernel are written in a shorter way than one operation after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar
from coilwork_triton.facts.kernel_analysis import users_of
from coilwork_triton.facts.precision_analysis import (
    beside_one,
    factors,
    idle_bounds,
    narrow_positions,
    one_plus,
    only_rounded,
    short_casts,
    softmax_numerators,
)
from coilwork_triton.facts.vectorization import Run, load_runs
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.statements.loads import Joined, absorbed_by, find_windows, in_own_order, joined_loads
from coilwork_triton.text.types import reciprocal_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """Attributes:

    narrow: positions for which 32 bits do.
    short_casts: casts to 64 bit integers for which 32 bits do.
    idle_bounds: minima and maxima that are their first operand.
    rounded: f32 values that only reach memory rounded to 16 bits or fewer.
    factors: those of them that are rounded, or multiplied with others, at once.
    beside_one: exponentials that only sums of at least 1 see.
    sums: values that are 1 plus a function, and that function.
    joined: selections between loads that are one load.
    windows: loads from a common address.
    runs: loads that come together with others, in order.
    own_order: buffers of which loads start from the address of their row, also those at fixed distances.
    absorbed: values that are written as part of others alone.
    """

    narrow: frozenset[IndexValue]
    short_casts: frozenset[Scalar]
    idle_bounds: Mapping[Scalar, Scalar]
    rounded: frozenset[Scalar]
    factors: frozenset[Scalar]
    beside_one: frozenset[Scalar]
    sums: Mapping[Scalar, Op]
    joined: Mapping[Scalar, Joined]
    windows: frozenset[Load]
    runs: Mapping[Load, Run]
    own_order: frozenset[str]
    absorbed: frozenset[Scalar]

    def factor(self, node: Op) -> float | None:
        """Return what to multiply with instead of dividing by a constant, where that is as good."""
        if node.op != "div" or node not in self.rounded:
            return None
        value, divisor = node.operands
        if isinstance(value, Const) or not isinstance(divisor, Const):
            return None
        return reciprocal_of(float(divisor.value))


def find_shortcuts(
    kernel: Kernel, shape: Shape, order: Sequence[Scalar], roots: Sequence[Scalar]
) -> Shortcuts:
    """Return those of `kernel`, whose scalars are `order`, operands first, and which stores and checks
    `roots`.
    """
    users = users_of(order)
    rounded = only_rounded(order, roots, users) if kernel.numerics == "fast" else frozenset()
    if shape.walk == "persistent":
        # one exponential serves the sum and the quotient, as long as both are written alike
        rounded -= softmax_numerators(rounded)
    sums = one_plus(rounded, users)
    joined = {} if shape.scalar_access else joined_loads(kernel, order, users)
    return Shortcuts(
        narrow=narrow_positions(order, roots),
        short_casts=short_casts(order, roots, users),
        idle_bounds=idle_bounds(order),
        rounded=rounded,
        factors=factors(rounded, users),
        beside_one=beside_one(order, roots, users) if kernel.numerics == "fast" else frozenset(),
        sums=sums,
        joined=joined,
        windows=find_windows(order),
        runs={} if shape.step == 1 else load_runs(order, kernel.ranges[-1].symbol),
        own_order=frozenset() if shape.step == 1 else in_own_order(order, kernel.ranges[-1].symbol),
        absorbed=absorbed_by(joined, order, users).union(sums.values()),
    )
