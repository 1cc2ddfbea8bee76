"""Operators that overwrite memory in the captured graph: `copy_` into an input, and `copy`, its functional
form.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, is_whole
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.ops.parts import may_overlap, same_place
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import to_dtype


def _copy_into(builder: Builder, call: Call) -> Value:
    """The new contents go straight into the old memory when they are laid over a whole buffer, where updates
    in place are already.
    """
    old = builder.current(call.tensor("self"))
    if not is_whole(old):
        raise NotLowered("a copy into part of a buffer")
    source = call.tensor("src")
    if same_place(source, old):
        return old
    return write_into(builder, old, source)


def write_into(builder: Builder, old: TensorValue, source: TensorValue) -> TensorValue:
    """Overwrite the buffer of `old` with `source`, converted and broadcast."""
    moved = bring_to_device(builder, [source], old.device)[0]
    assert isinstance(moved, TensorValue)

    def body(point: tuple[Expr, ...]) -> Scalar:
        return to_dtype(builder.read_broadcast(moved, point), old.dtype)

    if may_overlap(old.shape, old.buffer.strides):
        raise NotLowered("a copy into overlapping memory")
    return builder.pointwise(old.shape, old.dtype, old.device, body, into=old.buffer)


def _copy(builder: Builder, call: Call) -> Value:
    (source,) = bring_to_device(builder, [call["src"]], call.device)
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return scalar_operand(builder, source, point, dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body, strides=call.strides(builder))


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("copy_"), _copy_into),
    Rule(overloads("copy"), _copy),
)
