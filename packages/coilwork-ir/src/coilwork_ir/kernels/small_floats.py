"""8-bit floats as their bits, for code generators whose target has no instructions for them.

Conversions become integer arithmetic, which the type's row in `coilwork_ir.dtypes.FORMATS` says all of: to
the bit what torch makes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType, FloatFormat, bits_value, float_bits
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.roots import kernel_roots, with_roots
from coilwork_ir.scalar import Const, Load, Op, Scalar, cast, const, load, op, postorder, where, with_operands

_F32_INFINITY: Final = 0x7F800000
_F32_NAN: Final = 0x7FC00000


def store_small_floats_as_bits(kernel: Kernel, *, kept: Collection[DType] = ()) -> Kernel:
    """`kernel` with `u8` in the place of each 8-bit float type that is not `kept`, in memory and in values.

    Raises:
        EmitError: it combines such floats other than by arithmetic on single elements.
    """
    if kernel.combined is not None:
        body = store_small_floats_as_bits(kernel.combined.body, kept=kept)
        args = tuple(replace(arg, dtype=_memory_type(arg.dtype, kept)) for arg in kernel.args)
        return replace(kernel, args=args, combined=replace(kernel.combined, body=body))
    roots = kernel_roots(kernel)
    types = {arg.dtype for arg in kernel.args} | {node.dtype for node in postorder(roots)}
    if all(_memory_type(dtype, kept) is dtype for dtype in types):
        return kernel
    for store in kernel.stores:
        if store.mode != "store" and _memory_type(store.value.dtype, kept) is not store.value.dtype:
            raise EmitError(
                "small-float", f"{store.value.dtype.text} combined in memory", origins=kernel.origins
            )
    done: dict[Scalar, Scalar] = {}
    for node in postorder(roots):
        done[node] = _rewrite_as_bits(node, [done[operand] for operand in node.operands], kept)
    args = tuple(replace(arg, dtype=_memory_type(arg.dtype, kept)) for arg in kernel.args)
    return replace(with_roots(kernel, [done[root] for root in roots]), args=args)


def encode(value: Scalar, dtype: DType) -> Scalar:
    """The bits, a `u8`, of a number rounded to the 8-bit float type `dtype`, by way of f32 as in torch."""
    form = _require_format(dtype)
    bits = op("bitcast", cast(value, DType.F32), dtype=DType.I32)
    magnitude = _keep_bits(bits, 0x7FFFFFFF)
    if not form.signed:
        exponent, fraction = _shift_right(magnitude, 23), _keep_bits(magnitude, 0x7FFFFF)
        # from a half on it is the next power of two; of a subnormal f32, from above it
        half = op("add", _number(0x400000), cast(op("eq", exponent, _number(0)), DType.I32))
        up = op("bitwise_and", op("ge", fraction, half), op("ne", exponent, _number(0xFF)))
        return cast(op("add", exponent, cast(up, DType.I32)), DType.U8)
    shift = 23 - form.fraction
    odd = _keep_bits(_shift_right(magnitude, shift), 1)
    offset = (1 << shift - 1) - 1 - (127 - form.bias << 23)
    normal = _shift_right(op("add", op("add", magnitude, _number(offset)), odd), shift)
    # adding the number whose last place is the type's least lets the addition round
    aligner = const(bits_value(form.aligner, DType.F32), DType.F32)
    aligned = op("add", op("bitcast", magnitude, dtype=DType.F32), aligner)
    subnormal = op("sub", op("bitcast", aligned, dtype=DType.I32), _number(form.aligner))
    code = where(op("lt", magnitude, _number(form.least_normal)), subnormal, normal)
    beyond = where(op("gt", magnitude, _number(_F32_INFINITY)), _number(form.nan), _number(form.beyond))
    code = where(op("ge", magnitude, _number(form.limit)), beyond, code)
    sign = _keep_bits(_shift_right(bits, 24), 0x80)
    if not form.signed_zero:
        signed = op("bitwise_and", op("gt", code, _number(0)), op("lt", code, _number(0x80)))
        sign = where(signed, sign, _number(0))
    return cast(op("bitwise_or", code, sign), DType.U8)


def decode(bits: Scalar, dtype: DType) -> Scalar:
    """The f32 that `bits`, a `u8`, are as a float of the 8-bit type `dtype`."""
    form = _require_format(dtype)
    code = cast(bits, DType.I32)
    if not form.signed:
        power = where(op("eq", code, _number(0)), _number(0x400000), _shift_left(code, 23))
        power = where(op("eq", code, _number(form.nan)), _number(_F32_NAN), power)
        return op("bitcast", power, dtype=DType.F32)
    magnitude = _keep_bits(code, 0x7F)
    normal = op("add", _shift_left(magnitude, 23 - form.fraction), _number(127 - form.bias << 23))
    least = const(2.0 ** (1 - form.bias - form.fraction), DType.F32)
    subnormal = op("bitcast", op("mul", cast(magnitude, DType.F32), least), dtype=DType.I32)
    found = where(op("lt", magnitude, _number(1 << form.fraction)), subnormal, normal)
    if form.infinite:
        found = where(op("eq", magnitude, _number(form.beyond)), _number(_F32_INFINITY), found)
        found = where(op("gt", magnitude, _number(form.beyond)), _number(_F32_NAN), found)
    elif form.signed_zero:
        found = where(op("eq", magnitude, _number(form.nan)), _number(_F32_NAN), found)
    found = op("bitwise_or", found, _shift_left(_keep_bits(code, 0x80), 24))
    if not form.signed_zero:
        found = where(op("eq", code, _number(form.nan)), _number(_F32_NAN), found)
    return op("bitcast", found, dtype=DType.F32)


def _rewrite_as_bits(node: Scalar, operands: list[Scalar], kept: Collection[DType]) -> Scalar:
    """`node` of `operands`, which are bits already where they were such floats."""
    memory = _memory_type(node.dtype, kept)
    small = [_memory_type(operand.dtype, kept) is not operand.dtype for operand in node.operands]
    if memory is node.dtype and not any(small):
        return with_operands(node, operands)
    match node:
        case Const():
            return const(float_bits(float(node.value), node.dtype), DType.U8)
        case Load():
            count = len(node.indirect)
            mask = operands[count] if node.mask is not None else None
            other = float_bits(float(node.other), node.dtype)
            return load(node.buffer, node.index, DType.U8, indirect=operands[:count], mask=mask, other=other)
        case Op(op="where"):
            return where(*operands)
        case Op(op="bitcast"):
            return op("bitcast", operands[0], dtype=memory)
        case Op():
            wide = [
                decode(operand, old.dtype) if narrow else operand
                for operand, old, narrow in zip(operands, node.operands, small, strict=True)
            ]
            if node.op == "cast":
                return _narrow(wide[0], node.dtype, memory)
            found = op(node.op, *wide)
            return found if memory is node.dtype else encode(found, node.dtype)
        case _:
            kind = type(node).__name__.lower()
            raise EmitError("small-float", f"a {kind} of {node.operands[0].dtype.text}")


def _narrow(value: Scalar, dtype: DType, memory: DType) -> Scalar:
    return cast(value, dtype) if memory is dtype else encode(value, dtype)


def _memory_type(dtype: DType, kept: Collection[DType]) -> DType:
    return dtype if dtype.format is None or dtype in kept else DType.U8


def _require_format(dtype: DType) -> FloatFormat:
    if dtype.format is None:
        raise ValueError(f"{dtype.text} is no 8-bit float")
    return dtype.format


def _number(value: int) -> Scalar:
    return const(value, DType.I32)


def _keep_bits(value: Scalar, bits: int) -> Scalar:
    return op("bitwise_and", value, _number(bits))


def _shift_left(value: Scalar, places: int) -> Scalar:
    return op("lshift", value, _number(places))


def _shift_right(value: Scalar, places: int) -> Scalar:
    return op("rshift", value, _number(places))
