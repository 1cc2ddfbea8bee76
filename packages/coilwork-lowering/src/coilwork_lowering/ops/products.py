"""Products of matrices: `mm`, `bmm`, `addmm`, `baddbmm` and `_int_mm` become contractions; what comes behind lowering recognises the node.

Who computes a contraction, a library or a kernel, is decided by the scheduler. What it reads are whole buffers, views of other memory where an
operand is one, as libraries take them.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.loops.matrix_products import make_product
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Value, whole
from coilwork_lowering.rules import Call, NotLowered, Rule

# Types that ATen multiplies. Complex numbers are its own, and go from call to call.
_TYPES: Final = frozenset(
    {DType.F64, DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I16, DType.I8, DType.U8}
)


def _mm(builder: Builder, call: Call) -> Value:
    return _product(builder, call, "self", "mat2")


def _addmm(builder: Builder, call: Call) -> Value:
    return _product(builder, call, "mat1", "mat2", "self")


def _baddbmm(builder: Builder, call: Call) -> Value:
    return _product(builder, call, "batch1", "batch2", "self")


def _int_mm(builder: Builder, call: Call) -> Value:
    return _product(builder, call, "self", "mat2", factors=DType.I8)


def _product(
    builder: Builder, call: Call, left: str, right: str, added: str = "", *, factors: DType | None = None
) -> Value:
    """The contraction, of `factors` other than the result's type where that is so."""
    weights = [call.arguments.get(name, 1) for name in ("alpha", "beta")]
    if call.dtype not in _TYPES or call.quantized is not None:
        raise NotLowered(f"a product in {call.dtype.text}")
    if not all(type(weight) in (int, float) for weight in weights) or weights[1] == 0:
        # what is added to it is not read then
        raise NotLowered("a product whose weights are computed, or nothing")
    if not call.dtype.is_float and any(type(weight) is float for weight in weights):
        raise NotLowered("integers weighted by floats")
    tensors = [call.tensor(name) for name in (added, left, right) if name]
    types = [call.dtype] * bool(added) + [factors or call.dtype] * 2
    if any(one.dtype is not dtype for one, dtype in zip(tensors, types, strict=True)) or any(
        one.device != call.device for one in tensors
    ):
        raise NotLowered("a product of several types, or on several devices")
    *before, first, second = (builder.placed(one, None).buffer for one in tensors)
    output = builder.declare(
        call.shape(builder), call.dtype, call.device, strides=builder.sizes.exprs(call.fake.stride())
    )
    alpha, beta = weights
    assert isinstance(alpha, int | float) and isinstance(beta, int | float)
    builder.add(
        make_product(
            output,
            first,
            second,
            before[0] if before else None,
            alpha=alpha,
            beta=beta,
            origins=builder.origins,
        )
    )
    return whole(output)


RULES: Final[tuple[Rule, ...]] = (
    Rule(("aten.mm.default", "aten.bmm.default"), _mm),
    Rule(("aten.addmm.default",), _addmm),
    Rule(("aten.baddbmm.default",), _baddbmm),
    Rule(("aten._int_mm.default",), _int_mm),
)
