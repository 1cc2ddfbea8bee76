"""Convolutions of floats and their gradients become nodes; what comes behind lowering recognises the node.

Who computes one, a library or a kernel, is decided by the scheduler. What a node reads are whole buffers,
laid out as eager's are, because the strides of libraries' results depend on theirs. Only tensors that the
forward graph saved in another layout stay in it: it chose that for this node, and the scheduler lays the rest
out beside it.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from coilwork_ir.buffers import Buffer, contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops import Body, Convolution, Window
from coilwork_ir.loops.convolutions import make_result
from coilwork_ir.scalar import load
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.values import TensorValue, Value, device_text, dtype_of, is_whole, whole
from coilwork_lowering.facts.fx_nodes import CONVOLUTION, CONVOLUTION_GRADIENTS
from coilwork_lowering.layout.row_padding import UNPADDED
from coilwork_lowering.rules import Call, NotLowered, Rule

# Types that libraries convolve. Integers and complex numbers are ATen's own, and go from call to call.
_TYPES: Final = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})


def _convolution(builder: Builder, call: Call) -> Value:
    windows = _windows(call)
    operands = [_operand(builder, call, name) for name in ("input", "weight")]
    bias = None if call["bias"] is None else _operand(builder, call, "bias")
    output = _result(builder, call, call.fake)
    result = make_result(
        node_ranges("i", output.shape),
        "" if bias is None else bias.name,
        dtype=output.dtype,
        accumulate=output.dtype.compute,
    )
    value, weight = (_whole(name, buffer) for name, buffer in zip("xw", operands, strict=True))
    builder.add(
        Convolution(
            outputs=(output,),
            value=value,
            weight=weight,
            epilogue=result,
            windows=windows,
            groups=call.integer("groups"),
            transposed=bool(call["transposed"]),
            accumulate=output.dtype.compute,
            origins=builder.origins,
        )
    )
    return whole(output)


def _convolution_backward(builder: Builder, call: Call) -> Value:
    windows = _windows(call)
    operands = [_operand(builder, call, name) for name in ("grad_output", "input", "weight")]
    outputs = tuple(None if one is None else _result(builder, call, one) for one in call.result)
    if all(output is None for output in outputs):
        raise NotLowered("no gradient is wanted")
    gradient, value, weight = (_whole(name, buffer) for name, buffer in zip("gxw", operands, strict=True))
    builder.add(
        Convolution(
            outputs=outputs,
            value=value,
            weight=weight,
            gradient=gradient,
            windows=windows,
            groups=call.integer("groups"),
            transposed=bool(call["transposed"]),
            accumulate=operands[0].dtype.compute,
            origins=builder.origins,
        )
    )
    return tuple(None if output is None else whole(output) for output in outputs)


def _windows(call: Call) -> tuple[Window, ...]:
    """The windows along each dimension of space.

    Raises:
        NotLowered: the convolution is none of nodes: of other types, of operands without elements, or with
            numbers of the run's.
    """
    tensors = [value for value in call.arguments.values() if isinstance(value, TensorValue)]
    types = {value.dtype for value in tensors}
    if len(types) != 1 or not types <= _TYPES or call.quantized is not None:
        raise NotLowered("a convolution of several types, or of others than floats")
    if len({value.device for value in tensors}) != 1:
        raise NotLowered("a convolution on several devices")
    value, rank = call.tensor("input"), len(call.tensor("weight").shape) - 2
    if len(value.shape) != rank + 2 or rank < 1:
        raise NotLowered("a convolution without a batch")
    if any(as_int(size) == 0 for one in tensors for size in one.shape):
        raise NotLowered("a convolution of nothing")
    lists = [call.integers(name) for name in ("stride", "padding", "dilation", "output_padding")]
    if not call["transposed"]:
        lists[3] = (0,)
    each = [given * rank if len(given) == 1 else given for given in lists]
    return tuple(
        Window(stride=stride, padding=padding, dilation=dilation, extra=extra)
        for stride, padding, dilation, extra in zip(*each, strict=True)
    )


def _operand(builder: Builder, call: Call, name: str) -> Buffer:
    value = builder.current(call.tensor(name))
    if is_whole(value) and value.buffer.name in builder.relaid_inputs:
        return value.buffer
    strides = builder.sizes.exprs(call.fakes[name].stride())
    return builder.materialize(value, strides).buffer


def _whole(prefix: str, buffer: Buffer) -> Body:
    ranges = node_ranges(prefix, buffer.shape)
    return Body(ranges=ranges, value=load(buffer.name, ranges, buffer.dtype))


def _result(builder: Builder, call: Call, fake: Any) -> Buffer:
    """The buffer of a result, as libraries lay it out."""
    if not isinstance(fake, torch.Tensor):
        raise NotLowered("a result that is no tensor")
    shape: tuple[Expr, ...] = builder.sizes.exprs(fake.shape)
    # a distance in memory that nothing but memory tells: the run copies what lies otherwise
    is_dense = UNPADDED in call.node.meta or bool(builder.sizes.unmet(fake.stride()))
    strides = contiguous_strides(shape) if is_dense else builder.sizes.exprs(fake.stride())
    return builder.declare(shape, dtype_of(fake.dtype), device_text(fake.device), strides=strides)


RULES: Final[tuple[Rule, ...]] = (
    Rule((CONVOLUTION,), _convolution),
    Rule((CONVOLUTION_GRADIENTS,), _convolution_backward),
)
