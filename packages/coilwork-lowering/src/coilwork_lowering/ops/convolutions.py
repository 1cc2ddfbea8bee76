"""Convolutions on accelerators: those of single channels are generated; of others, the bias is added by whatever reads the result.

There, ATen adds a bias in a kernel of its own, which reads and writes the whole result; here the addition is generated code,
which joins what follows. It rounds as eager's does: the convolution's result first, then the sum. CPU libraries add
the bias inside the convolution, and keep it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.extern.calls import call_extern
from coilwork_lowering.ops.depthwise import depthwise
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, to_dtype
from coilwork_lowering.torch_compat.operators import Overload


def _convolution(builder: Builder, call: Call) -> Value:
    bias = call["bias"]
    target = call.node.target
    if call.fake.device.type == "cpu" or not isinstance(target, Overload):
        raise NotLowered("a convolution that adds its own bias")
    made = depthwise(builder, call)
    if made is not None:
        return made
    if not isinstance(bias, TensorValue):
        raise NotLowered("a convolution without a bias")
    without = replace(call, arguments={**call.arguments, "bias": None}, fakes={**call.fakes, "bias": None})
    result = call_extern(builder, without, target)
    assert isinstance(result, TensorValue)
    wide = call.dtype.compute
    # of [batch, channels, ...] or, without a batch, [channels, ...]
    channels = len(result.shape) - len(call.integers("stride")) - 1

    def body(point: tuple[Expr, ...]) -> Scalar:
        element = to_dtype(builder.read(result, point), wide)
        return to_dtype(add(element, to_dtype(builder.read(bias, (point[channels],)), wide)), call.dtype)

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
    )


RULES: Final[tuple[Rule, ...]] = (Rule(overloads("convolution"), _convolution),)
