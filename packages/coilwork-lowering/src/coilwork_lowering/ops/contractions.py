"""Matrix products and convolutions become nodes; later stages recognise the node, not the operator.

The operator table says which argument of a product is which operand. Whether a library or a generated kernel
computes a node is the scheduler's choice. Operands are whole buffers, as libraries take them.

- Products: an operand that is a view of other memory is a `View` node. Complex and quantised numbers, weights
  that the program computes, a summand times 0 (which is not read) and scales of parts of a row stay calls of
  ATen. `dot`, `vdot`, `outer` and `addr` are products of two vectors with a sum, or without one.
- Convolutions of floats and their gradients: operands are laid out as eager's are, because the strides of a
  library's result depend on theirs. A tensor that the forward graph saved in another layout stays in it. That
  layout was chosen for this node, and the scheduler lays the other operands out to match.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.device_traits import ATEN_CPU, CUBLAS, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.loops import Body, Convolution, Window
from coilwork_ir.loops.convolutions import make_result
from coilwork_ir.loops.matrix_products import Activation, make_grouped_product, make_product
from coilwork_ir.operators import ProductRoles, find_info, list_operators
from coilwork_ir.scalar import load
from coilwork_ir.scalar.nodes import Literal_
from coilwork_lowering.aten_layouts.row_padding import UNPADDED
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.values import (
    TensorValue,
    Value,
    format_device,
    get_dtype,
    is_whole,
    make_whole_value,
)
from coilwork_lowering.facts.fx_nodes import CONVOLUTION, CONVOLUTION_GRADIENTS
from coilwork_lowering.rules import Call, NotLowered, Rule

# ---- Products ----


# Types that ATen multiplies. Complex numbers are its own, and go from call to call.
_MULTIPLIED_TYPES: Final = frozenset(
    {DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8}
)
_FLOATS_OF_8_BITS: Final = frozenset({DType.F8E4M3, DType.F8E5M2, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ})


# Factors of which ATen leaves the sums in f32, if it is asked to.
_HALVES: Final = frozenset({DType.F16, DType.BF16})
_FACTORS: Final[Mapping[str, frozenset[DType]]] = MappingProxyType(
    {"bytes": frozenset({DType.I8}), "float8": _FLOATS_OF_8_BITS}
)


def _lower_product(row: ProductRoles, builder: Builder, call: Call) -> Value:
    """Return the contraction of one call.

    Raises:
        NotLowered: it has no form that a contraction says.
    """
    alpha, beta = _weights(row, call)
    scales = _scales(call) if row.has_scales else None
    added = row.added if beta != 0 and call.arguments.get(row.added) is not None else ""
    tensors = [call.tensor(name) for name in (row.left, row.right, added) if name]
    types = _FACTORS.get(row.factors, frozenset({call.dtype}))
    is_wide = not added and scales is None and call.arguments.get("out_dtype") is not None
    if is_wide and call.fake.dim() == 2 and has_trait(call.device, CUBLAS):
        types |= _HALVES
    alike = all(item.dtype in types for item in tensors[:2]) and all(
        item.dtype is call.dtype for item in tensors[2:]
    )
    if not alike or any(item.device != call.device for item in (*tensors, *(scales or ()))):
        raise NotLowered("a product of several types, or on several devices")
    first, second, *summand = (
        _place(builder, row, call, name) for name in (row.left, row.right, added) if name
    )
    scaling = None if scales is None else [builder.materialize(item, None).buffer for item in scales]
    output = builder.declare(
        call.shape(builder), call.dtype, call.device, strides=builder.sizes.exprs(call.fake.stride())
    )
    builder.add(
        make_product(
            output,
            first,
            second,
            summand[0] if summand else None,
            alpha=alpha,
            beta=beta if summand else 1,
            activation=_activation(call) if row.has_activation else "",
            scales=None if scaling is None else (scaling[0], scaling[1]),
            approximate=row.has_scales and bool(call["use_fast_accum"]),
            origins=builder.origins,
        )
    )
    return make_whole_value(output)


def _lower_grouped(row: ProductRoles, builder: Builder, call: Call) -> Value:
    """Return the contraction of one call that multiplies groups of unequal size; a batch where all are of one
    size.

    Raises:
        NotLowered: it has no form that a contraction says.
    """
    if call.dtype not in _MULTIPLIED_TYPES or any(
        call.arguments.get(name) is not None for name in ("bias", "scale_result")
    ):
        raise NotLowered("groups that something is added to, or whose results are scaled")
    names = (row.left, row.right, *(("scale_a", "scale_b") if row.has_scales else ()))
    tensors = [call.tensor(name) for name in names]
    types = _FACTORS.get(row.factors, frozenset({call.dtype}))
    if any(item.dtype not in types for item in tensors[:2]):
        raise NotLowered("a product of several types")
    if any(item.dtype is not DType.F32 or len(item.shape) > 2 for item in tensors[2:]):
        raise NotLowered("scales of parts of a row")
    has_ends = call.arguments.get(row.ends) is not None
    if any(item.device != call.device for item in (*tensors, *([call.tensor(row.ends)] if has_ends else []))):
        raise NotLowered("a product on several devices")
    # a library's kernels ask how factors lie
    first, second = (
        builder.materialize(call.tensor(name), builder.sizes.exprs(call.fakes[name].stride())).buffer
        for name in (row.left, row.right)
    )
    scales = [builder.materialize(item, None).buffer for item in tensors[2:]]
    ends = builder.materialize(call.tensor(row.ends), None).buffer if has_ends else None
    output = builder.declare(
        call.shape(builder), call.dtype, call.device, strides=builder.sizes.exprs(call.fake.stride())
    )
    if ends is None and not scales:
        builder.add(make_product(output, first, second, origins=builder.origins))
        return make_whole_value(output)
    node = make_grouped_product(
        output,
        first,
        second,
        ends,
        scales=(scales[0], scales[1]) if scales else None,
        approximate=row.has_scales and bool(call["use_fast_accum"]),
        origins=builder.origins,
    )
    builder.add(node)
    return make_whole_value(output)


def _place(builder: Builder, row: ProductRoles, call: Call, name: str) -> Buffer:
    """Return the buffer that holds the operand `name`."""
    strides = builder.sizes.exprs(call.fakes[name].stride()) if row.is_of_vector else None
    return builder.materialize(call.tensor(name), strides).buffer


def _weights(row: ProductRoles, call: Call) -> tuple[Literal_, Literal_]:
    """Return what the product and what is added to it are multiplied by."""
    if call.dtype not in _MULTIPLIED_TYPES or call.quantized is not None:
        raise NotLowered(f"a product in {call.dtype.text}")
    alpha, beta = (call.arguments.get(name, 1) for name in ("alpha", "beta"))
    if type(alpha) not in (int, float) or type(beta) not in (int, float):
        raise NotLowered("a product whose weights are computed")
    assert isinstance(alpha, int | float) and isinstance(beta, int | float)
    if beta == 0 and not row.has_activation:
        # what is added to it is not read then
        raise NotLowered("a product that nothing is added to")
    if not call.dtype.is_float and (type(alpha) is float or type(beta) is float):
        raise NotLowered("integers weighted by floats")
    return alpha, beta


def _activation(call: Call) -> Activation:
    """Return what ATen's kernels do to the sums: their GELU is the exact one on CPUs, and its tanh form on
    NVIDIA GPUs.
    """
    if not call["use_gelu"]:
        return "relu"
    if has_trait(call.device, ATEN_CPU):
        return "gelu"
    if torch.version.hip is not None:
        raise NotLowered("a GELU whose form the library chooses")
    return "gelu_tanh"


def _scales(call: Call) -> tuple[TensorValue, TensorValue]:
    """Return one scale for each factor, or one for each row of the left and each column of the right."""
    left, right = call.tensor("scale_a"), call.tensor("scale_b")
    if call.arguments.get("scale_result") is not None or call.dtype not in _MULTIPLIED_TYPES:
        raise NotLowered("a result that is scaled to floats of 8 bits")
    if left.dtype is not DType.F32 or right.dtype is not DType.F32:
        raise NotLowered("scales of parts of a row")
    shapes = (call.tensor("self").shape[0], as_expr(1)), (as_expr(1), call.tensor("mat2").shape[1])
    for scale, whole_shape in zip((left, right), shapes, strict=True):
        is_number = len(scale.shape) <= 2 and all(as_int(size) == 1 for size in scale.shape)
        if not is_number and scale.shape != whole_shape:
            raise NotLowered("scales of parts of a row")
    return left, right


def _product_rule(name: str) -> Rule:
    """Return the rule of ATen's operator `name`."""
    roles = find_info(name).product
    assert roles is not None
    lower = _lower_grouped if roles.ends else _lower_product
    # the second one leaves sums in a wider type
    overloads = [one for one in ("default", "dtype") if hasattr(getattr(torch.ops.aten, name), one)]
    return Rule(tuple(f"aten.{name}.{overload}" for overload in overloads), partial(lower, roles))


# ---- Convolutions ----


# Types that libraries convolve. Integers and complex numbers are ATen's own, and go from call to call.
_CONVOLVED_TYPES: Final = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16})


def _convolution(builder: Builder, call: Call) -> Value:
    windows = _windows(call)
    operands = [_take_image(builder, call, name) for name in ("input", "weight")]
    bias = None if call["bias"] is None else _take_image(builder, call, "bias")
    output = _declare_image(builder, call, call.fake)
    result = make_result(
        make_node_ranges("i", output.shape),
        "" if bias is None else bias.name,
        dtype=output.dtype,
        accumulate=output.dtype.compute,
    )
    value, weight = (_load_whole(name, buffer) for name, buffer in zip("xw", operands, strict=True))
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
    return make_whole_value(output)


def _convolution_backward(builder: Builder, call: Call) -> Value:
    windows = _windows(call)
    operands = [_take_image(builder, call, name) for name in ("grad_output", "input", "weight")]
    outputs = tuple(None if item is None else _declare_image(builder, call, item) for item in call.result)
    if all(output is None for output in outputs):
        raise NotLowered("no gradient is wanted")
    gradient, value, weight = (
        _load_whole(name, buffer) for name, buffer in zip("gxw", operands, strict=True)
    )
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
    return tuple(None if output is None else make_whole_value(output) for output in outputs)


def _windows(call: Call) -> tuple[Window, ...]:
    """Return the windows along each dimension of space.

    Raises:
        NotLowered: the convolution is none of nodes: of other types, of operands without elements, or with
            numbers of the run's.
    """
    tensors = [value for value in call.arguments.values() if isinstance(value, TensorValue)]
    types = {value.dtype for value in tensors}
    if len(types) != 1 or not types <= _CONVOLVED_TYPES or call.quantized is not None:
        raise NotLowered("a convolution of several types, or of others than floats")
    if len({value.device for value in tensors}) != 1:
        raise NotLowered("a convolution on several devices")
    value, rank = call.tensor("input"), len(call.tensor("weight").shape) - 2
    if len(value.shape) != rank + 2 or rank < 1:
        raise NotLowered("a convolution without a batch")
    if any(as_int(size) == 0 for item in tensors for size in item.shape):
        raise NotLowered("a convolution of nothing")
    lists = [call.integers(name) for name in ("stride", "padding", "dilation", "output_padding")]
    if not call["transposed"]:
        lists[3] = (0,)
    each = [given * rank if len(given) == 1 else given for given in lists]
    return tuple(
        Window(stride=stride, padding=padding, dilation=dilation, extra=extra)
        for stride, padding, dilation, extra in zip(*each, strict=True)
    )


def _take_image(builder: Builder, call: Call, name: str) -> Buffer:
    value = builder.current(call.tensor(name))
    if is_whole(value) and value.buffer.name in builder.relaid_inputs:
        return value.buffer
    strides = builder.sizes.exprs(call.fakes[name].stride())
    return builder.materialize(value, strides).buffer


def _load_whole(prefix: str, buffer: Buffer) -> Body:
    ranges = make_node_ranges(prefix, buffer.shape)
    return Body(ranges=ranges, value=load(buffer.name, ranges, buffer.dtype))


def _declare_image(builder: Builder, call: Call, fake: Any) -> Buffer:
    """Return the buffer of a result, as libraries lay it out."""
    if not isinstance(fake, torch.Tensor):
        raise NotLowered("a result that is no tensor")
    shape: tuple[Expr, ...] = builder.sizes.exprs(fake.shape)
    # a distance in memory that nothing but memory tells: the run copies what lies otherwise
    is_dense = UNPADDED in call.node.meta or bool(builder.sizes.find_unmet(fake.stride()))
    strides = make_contiguous_strides(shape) if is_dense else builder.sizes.exprs(fake.stride())
    return builder.declare(shape, get_dtype(fake.dtype), format_device(fake.device), strides=strides)


RULES: Final[tuple[Rule, ...]] = (
    *(_product_rule(name) for name in list_operators(lambda info: info.product is not None)),
    Rule((CONVOLUTION,), _convolution),
    Rule((CONVOLUTION_GRADIENTS,), _convolution_backward),
)
