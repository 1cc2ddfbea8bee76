"""Convolutions of single channels on accelerators: each result is a sum over the few elements of a window.

There is no matrix product in them, so that libraries are bound by memory at best and read and write everything once more;
here the sum is written out in a pointwise node, which joins what follows it. The bias is part of the sum, as in ATen's own kernels.

Where channels lie side by side, neighbours want neighbouring weights, which have the taps innermost: those are laid out
anew first, in a small kernel before each such convolution.
"""

from __future__ import annotations

import math
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, floordiv, product
from coilwork_ir.scalar import Scalar, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue
from coilwork_lowering.ops.windows import Taps, WindowShape, each_tap, is_small, strided
from coilwork_lowering.rules import Call
from coilwork_lowering.scalar_math import add, to_dtype

# Every tap is a load. Libraries share them between neighbours, which shows where there are many; measured on an H200, in bf16,
# with a batch norm and an activation behind (us, with the library's kernel and generated): 3 x 3 of 128 x 32 x 112 x 112 192 and 107,
# in steps of two of 128 x 96 221 and 139; 5 x 5 of 128 x 144 x 56 x 56 in steps of two 141 and 92; 5 x 5 of 128 x 480 x 14 x 14
# 79 and 98; 7 x 7 of 128 x 96 x 56 x 56 357 and 607. With rows innermost: 3 x 3 in steps of two 354 and 212, 5 x 5 196 and 265.
MOST_TAPS: Final = 64
MOST_TAPS_PER_INPUT: Final = 9
# Sums and products up to which a launch less counts for more: 7 x 7 of 384 x 14 x 14 13 and 6 us, of 96 x 56 x 56 16 and 27.
FEW_PRODUCTS: Final = 4_000_000


def depthwise(builder: Builder, call: Call) -> TensorValue | None:
    """The convolution `call` as generated code; None if its channels are mixed or its windows are large."""
    value, weight, bias = call.tensor("input"), call.tensor("weight"), call["bias"]
    shape, rank = call.shape(builder), len(weight.shape) - 2
    taps = _taps(call, value.shape, weight.shape, shape)
    channels, groups = as_int(weight.shape[0]), call.integer("groups")
    if taps is None or channels is None or not value.dtype.is_float or value.dtype is not weight.dtype:
        return None
    along = len(shape) - rank - 1
    wide, strides = value.dtype.compute, call.strides(builder)
    side_by_side = as_int(strides[along]) == 1 and as_int(shape[-1]) != 1
    if not _pays(call, taps, shape, side_by_side=side_by_side):
        return None
    near = _with_channels_innermost(builder, weight) if side_by_side else weight

    def body(point: tuple[Expr, ...]) -> Scalar:
        channel = point[along]
        source = (*point[:along], floordiv(channel, as_expr(channels // groups)))
        total: Scalar = const(0, wide)
        if isinstance(bias, TensorValue):
            total = to_dtype(builder.read(bias, (channel,)), wide)
        for numbers, at, mask in each_tap(taps, point[along + 1 :]):
            element = to_dtype(builder.read(value, (*source, *at), mask=mask), wide)
            factor = to_dtype(builder.read(near, (channel, as_expr(0), *numbers)), wide)
            total = add(total, op("mul", element, factor))
        return to_dtype(total, call.dtype)

    return builder.pointwise(shape, call.dtype, call.device, body, strides=strides)


def _taps(call: Call, source: Shape, weight: Shape, result: Shape) -> list[Taps] | None:
    """The taps along each dimension of space; None if this is no convolution of single channels with few of them."""
    rank, groups = len(weight) - 2, call.integer("groups")
    kernel = [as_int(size) for size in weight[2:]]
    single = groups > 1 and as_int(source[-rank - 1]) == groups and as_int(weight[1]) == 1
    empty = any(as_int(size) == 0 for size in (*source, *result))
    if call["transposed"] or not single or empty:
        return None
    steps, paddings, dilations = (
        given * rank if len(given) == 1 else given
        for given in (call.integers(name) for name in ("stride", "padding", "dilation"))
    )
    taps: list[Taps] = []
    for d in range(rank):
        size = kernel[d]
        if size is None:
            return None
        window = WindowShape(
            kernel=size,
            step=steps[d],
            padding=paddings[d],
            dilation=dilations[d],
            ceil_mode=False,
            count_include_pad=True,
        )
        taps.append(strided(source[-rank:][d], result[-rank:][d], window).window)
    return taps if is_small(taps, MOST_TAPS) else None


def _pays(call: Call, taps: list[Taps], shape: Shape, *, side_by_side: bool) -> bool:
    """Whether generated code is faster than a library's kernel and one for what follows it."""
    count, points = (as_int(product(sizes)) for sizes in ([t.count for t in taps], shape))
    assert count is not None
    if points is not None and points * count <= FEW_PRODUCTS:
        return True
    steps = call.integers("stride")
    shared = math.prod(steps if len(steps) == len(taps) else steps * len(taps)) if side_by_side else 1
    return count <= MOST_TAPS_PER_INPUT * shared


def _with_channels_innermost(builder: Builder, weight: TensorValue) -> TensorValue:
    """`weight` laid out anew, in memory: as a view it is not computed inside what reads it, which would undo it."""
    strides = [as_expr(1)]
    step = weight.shape[0]
    for size in reversed(weight.shape[1:]):
        strides.insert(1, step)
        step = step * size
    laid_out = builder.copy(weight, strides=strides)
    return builder.view(laid_out.buffer, weight.shape, tuple(strides), as_expr(0))
