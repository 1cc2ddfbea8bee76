"""Products of matrices become contractions here, by the names of operators; what comes behind lowering
recognises the node.

The operator table says which argument of an operator plays which part. Who computes a contraction, a library
or a kernel, is decided by the scheduler. What it reads are whole buffers, views of other memory where an
operand is one, as libraries take them.

A product that has no such form stays a call of ATen's like any other operator: complex and quantised numbers,
weights that the program computes, a summand times 0, which is not read, scales of parts of a row. `dot`,
`vdot`, `outer` and `addr` come here as what they are, a product of two vectors and its sum, or no sum at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, as_int
from coilwork_ir.loops.matrix_products import Activation, make_grouped_product, make_product
from coilwork_ir.operators import ProductRoles, find_info, list_operators
from coilwork_ir.scalar.nodes import Literal_
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, whole
from coilwork_lowering.rules import Call, NotLowered, Rule

# Types that ATen multiplies. Complex numbers are its own, and go from call to call.
_TYPES: Final = frozenset(
    {DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8}
)
_FLOATS_OF_8_BITS: Final = frozenset({DType.F8E4M3, DType.F8E5M2, DType.F8E4M3FNUZ, DType.F8E5M2FNUZ})


_FACTORS: Final[Mapping[str, frozenset[DType]]] = MappingProxyType(
    {"bytes": frozenset({DType.I8}), "float8": _FLOATS_OF_8_BITS}
)


def _lower_product(row: ProductRoles, builder: Builder, call: Call) -> Value:
    """The contraction of one call.

    Raises:
        NotLowered: it has no form that a contraction says.
    """
    alpha, beta = _weights(row, call)
    scales = _scales(call) if row.has_scales else None
    added = row.added if beta != 0 and call.arguments.get(row.added) is not None else ""
    tensors = [call.tensor(name) for name in (row.left, row.right, added) if name]
    types = _FACTORS.get(row.factors, frozenset({call.dtype}))
    alike = all(one.dtype in types for one in tensors[:2]) and all(
        one.dtype is call.dtype for one in tensors[2:]
    )
    if not alike or any(one.device != call.device for one in (*tensors, *(scales or ()))):
        raise NotLowered("a product of several types, or on several devices")
    first, second, *summand = (
        _place(builder, row, call, name) for name in (row.left, row.right, added) if name
    )
    scaling = None if scales is None else [builder.materialize(one, None).buffer for one in scales]
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
    return whole(output)


def _lower_grouped(row: ProductRoles, builder: Builder, call: Call) -> Value:
    """The contraction of one call that multiplies groups of unequal size; a batch where all are of one size.

    Raises:
        NotLowered: it has no form that a contraction says.
    """
    if call.dtype not in _TYPES or any(
        call.arguments.get(name) is not None for name in ("bias", "scale_result")
    ):
        raise NotLowered("groups that something is added to, or whose results are scaled")
    names = (row.left, row.right, *(("scale_a", "scale_b") if row.has_scales else ()))
    tensors = [call.tensor(name) for name in names]
    types = _FACTORS.get(row.factors, frozenset({call.dtype}))
    if any(one.dtype not in types for one in tensors[:2]):
        raise NotLowered("a product of several types")
    if any(one.dtype is not DType.F32 or len(one.shape) > 2 for one in tensors[2:]):
        raise NotLowered("scales of parts of a row")
    has_ends = call.arguments.get(row.ends) is not None
    if any(one.device != call.device for one in (*tensors, *([call.tensor(row.ends)] if has_ends else []))):
        raise NotLowered("a product on several devices")
    # a library's kernels ask how factors lie
    first, second = (
        builder.materialize(call.tensor(name), builder.sizes.exprs(call.fakes[name].stride())).buffer
        for name in (row.left, row.right)
    )
    scales = [builder.materialize(one, None).buffer for one in tensors[2:]]
    ends = builder.materialize(call.tensor(row.ends), None).buffer if has_ends else None
    output = builder.declare(
        call.shape(builder), call.dtype, call.device, strides=builder.sizes.exprs(call.fake.stride())
    )
    if ends is None and not scales:
        builder.add(make_product(output, first, second, origins=builder.origins))
        return whole(output)
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
    return whole(output)


def _place(builder: Builder, row: ProductRoles, call: Call, name: str) -> Buffer:
    """The buffer that holds the operand `name`."""
    strides = builder.sizes.exprs(call.fakes[name].stride()) if row.is_of_vector else None
    return builder.materialize(call.tensor(name), strides).buffer


def _weights(row: ProductRoles, call: Call) -> tuple[Literal_, Literal_]:
    """Return what the product and what is added to it are multiplied by."""
    if call.dtype not in _TYPES or call.quantized is not None:
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
    """One number for each factor, or one for each row of the left and each column of the right one."""
    left, right = call.tensor("scale_a"), call.tensor("scale_b")
    if call.arguments.get("scale_result") is not None or call.dtype not in _TYPES:
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
    """The rule of ATen's operator `name`."""
    roles = find_info(name).product
    assert roles is not None
    lower = _lower_grouped if roles.ends else _lower_product
    return Rule((f"aten.{name}.default",), partial(lower, roles))


RULES: Final[tuple[Rule, ...]] = tuple(
    _product_rule(name) for name in list_operators(lambda info: info.product is not None)
)
