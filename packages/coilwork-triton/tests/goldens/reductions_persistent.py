"""
every_reduction.
"""

import triton
import triton.language as tl



@triton.jit
def combine_mul(a, b):
    return a * b


@triton.jit
def combine_min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def combine_max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def every_reduction(
    in0,
    in1,
    in2,
    out0,
    out1,
    out2,
    out3,
    out4,
    out5,
    out6,
    out7,
    out8,
    out9,
    out10,
    out11,
    out12,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    r0 = tl.arange(0, R0_BLOCK)[None, :]
    rmask = r0 < 500
    in0_0 = tl.load(in0 + (x0 * 500 + r0), rmask)
    in1_1 = tl.load(in1 + (x0 * 500 + r0), rmask)
    in2_2 = tl.load(in2 + (x0 * 500 + r0), rmask)
    sum3 = tl.sum(tl.where(rmask, in0_0, 0.0), 1, keep_dims=True)
    prod4 = tl.reduce(tl.where(rmask, in0_0, 1.0), 1, combine_mul, keep_dims=True)
    min5 = tl.reduce(tl.where(rmask, in0_0, float("inf")), 1, combine_min_nan, keep_dims=True)
    max6 = tl.reduce(tl.where(rmask, in0_0, float("-inf")), 1, combine_max_nan, keep_dims=True)
    value7 = tl.where(rmask, in0_0, float("inf"))
    best8 = tl.reduce(value7, 1, combine_min_nan, keep_dims=True)
    argmin9 = tl.min(tl.where((value7 == best8) | (value7 != value7), tl.broadcast_to(tl.where(rmask, r0, tl.full([], 2147483647, tl.int32)), (XBLOCK, R0_BLOCK)), tl.full([], 2147483647, tl.int32)), 1, keep_dims=True).to(tl.int64)
    value10 = tl.where(rmask, in0_0, float("-inf"))
    best11 = tl.reduce(value10, 1, combine_max_nan, keep_dims=True)
    argmax12 = tl.min(tl.where((value10 == best11) | (value10 != value10), tl.broadcast_to(tl.where(rmask, r0, tl.full([], 2147483647, tl.int32)), (XBLOCK, R0_BLOCK)), tl.full([], 2147483647, tl.int32)), 1, keep_dims=True).to(tl.int64)
    any13 = tl.max(tl.where(rmask, in1_1, tl.full([], False, tl.int1)).to(tl.int32), 1, keep_dims=True) != 0
    all14 = tl.min(tl.where(rmask, in1_1, tl.full([], True, tl.int1)).to(tl.int32), 1, keep_dims=True) != 0
    xor15 = tl.xor_sum(tl.where(rmask, in2_2, tl.full([], 0, tl.int64)), 1, keep_dims=True)
    mean16 = tl.sum(tl.where(rmask, in0_0, 0.0), 1, keep_dims=True) / 500.0
    centred17 = tl.where(rmask, in0_0 - mean16, 0.0)
    m2_18 = tl.sum(centred17 * centred17, 1, keep_dims=True)
    kept19 = tl.where(rmask, in0_0, float("-inf"))
    max20 = tl.reduce(kept19, 1, combine_max_nan, keep_dims=True)
    sum21 = tl.sum(tl.exp(kept19 - max20), 1, keep_dims=True)
    tl.store(out0 + x0, sum3)
    tl.store(out1 + x0, prod4)
    tl.store(out2 + x0, min5)
    tl.store(out3 + x0, max6)
    tl.store(out4 + x0, argmin9)
    tl.store(out5 + x0, argmax12)
    tl.store(out6 + x0, any13)
    tl.store(out7 + x0, all14)
    tl.store(out8 + x0, xor15)
    tl.store(out9 + x0, mean16)
    tl.store(out10 + x0, m2_18)
    tl.store(out11 + x0, max20)
    tl.store(out12 + x0, sum21)
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 8, 'R0_BLOCK': 512} warps 8
# try {'XBLOCK': 2, 'R0_BLOCK': 512} warps 2
