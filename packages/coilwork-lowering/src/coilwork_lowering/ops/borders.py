"""Padding by what a tensor holds: `reflection_pad*` and `replication_pad*`, as loads whose indices are
reflected or clamped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coilwork_ir.index import Expr, maximum, minimum
from coilwork_ir.scalar import Scalar
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule, require_size


def _make_padding(position: Callable[[Expr, Expr], Expr]) -> Lower:
    """`position` is where the element of a dimension of some size lies that a coordinate outside of it stands
    for.
    """

    def lower(builder: Builder, call: Call) -> Value:
        value = call.tensor("self")
        pads = [require_size(amount) for amount in call["padding"]]
        if call.dtype.is_bool:
            raise NotLowered("eager refuses booleans")

        def body(point: tuple[Expr, ...]) -> Scalar:
            at = list(point)
            for k, before in enumerate(pads[::2]):
                dim = len(point) - 1 - k
                at[dim] = position(point[dim] - before, value.shape[dim])
            return builder.read(value, at)

        return builder.pointwise(
            call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
        )

    return lower


def reflect(x: Expr, size: Expr) -> Expr:
    """`x` mirrored at the first element, and what lies behind the last one at that."""
    left = size - 1 - maximum(x, -x)
    return size - 1 - maximum(left, -left)


def clamp_position(x: Expr, size: Expr) -> Expr:
    """The element nearest to `x`."""
    return minimum(maximum(x, 0), size - 1)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("reflection_pad1d reflection_pad2d reflection_pad3d"), _make_padding(reflect)),
    Rule(overloads("replication_pad1d replication_pad2d replication_pad3d"), _make_padding(clamp_position)),
)
