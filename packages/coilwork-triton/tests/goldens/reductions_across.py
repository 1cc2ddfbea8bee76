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
def combine_argmin(a, ai, b, bi):
    # a NaN is the smallest of all; among equals the first position wins
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (ai < bi))
    return tl.where(first, a, b), tl.where(first, ai, bi)


@triton.jit
def combine_argmax(a, ai, b, bi):
    # a NaN is the largest of all; among equals the first position wins
    first = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (ai < bi))
    return tl.where(first, a, b), tl.where(first, ai, bi)


@triton.jit
def exp_for_sum(x):
    # exp of what is at most 0, for a sum that also has a term of 1: beside that one, what tl.exp2 flushes to 0 is nothing, and
    # without care for subnormal results an exponential takes three instructions less
    if x.dtype == tl.float32:
        return tl.exp2(x * 1.4426950408889634)
    return tl.exp(x)


@triton.jit
def online_softmax_step(m, s, x):
    # running maximum m and sum s of exp(. - m). Of exp(m - new) and exp(x - new) one is 1, the other exp(-|m - x|); -inf adds
    # nothing, and must not compute inf - inf where only -inf came before
    apart = tl.where(x == float("-inf"), 0.0, exp_for_sum(-tl.abs(m - x)))
    total = tl.where(x > m, s * apart + 1.0, s + apart)
    return tl.maximum(m, x, propagate_nan=tl.PropagateNan.ALL), total


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
    STAGES: tl.constexpr,
):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    sum_lanes3 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    prod_lanes4 = tl.full([XBLOCK, R0_BLOCK], 1.0, tl.float32)
    min_lanes5 = tl.full([XBLOCK, R0_BLOCK], float("inf"), tl.float32)
    max_lanes6 = tl.full([XBLOCK, R0_BLOCK], float("-inf"), tl.float32)
    best_lanes7 = tl.full([XBLOCK, R0_BLOCK], float("inf"), tl.float32)
    where_lanes8 = tl.broadcast_to(tl.arange(0, R0_BLOCK)[None, :].to(tl.int32), (XBLOCK, R0_BLOCK))
    best_lanes11 = tl.full([XBLOCK, R0_BLOCK], float("-inf"), tl.float32)
    where_lanes12 = tl.broadcast_to(tl.arange(0, R0_BLOCK)[None, :].to(tl.int32), (XBLOCK, R0_BLOCK))
    any_lanes15 = tl.full([XBLOCK, R0_BLOCK], False, tl.int1)
    all_lanes16 = tl.full([XBLOCK, R0_BLOCK], True, tl.int1)
    xor_lanes17 = tl.full([XBLOCK, R0_BLOCK], 0, tl.int64)
    mean_lanes18 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    m2_lanes19 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    weight_lanes20 = tl.full([1, R0_BLOCK], 0.0, tl.float32)
    max_lanes24 = tl.full([XBLOCK, R0_BLOCK], float("-inf"), tl.float32)
    sum_lanes25 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for r0_offset in tl.range(0, 500, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[None, :]
        rmask = r0 < 500
        in0_0 = tl.load(in0 + (r0 * 4096 + x0), rmask)
        in1_1 = tl.load(in1 + (r0 * 4096 + x0), rmask)
        in2_2 = tl.load(in2 + (r0 * 4096 + x0), rmask)
        sum_lanes3 = sum_lanes3 + tl.where(rmask, in0_0, 0.0)
        prod_lanes4 = prod_lanes4 * tl.where(rmask, in0_0, 1.0)
        min_lanes5 = tl.minimum(min_lanes5, tl.where(rmask, in0_0, float("inf")), propagate_nan=tl.PropagateNan.ALL)
        max_lanes6 = tl.maximum(max_lanes6, tl.where(rmask, in0_0, float("-inf")), propagate_nan=tl.PropagateNan.ALL)
        value9 = tl.where(rmask, in0_0, float("inf"))
        taken10 = ~(value9 >= best_lanes7) & (best_lanes7 == best_lanes7)
        best_lanes7 = tl.where(taken10, value9, best_lanes7)
        where_lanes8 = tl.where(taken10, r0, where_lanes8)
        value13 = tl.where(rmask, in0_0, float("-inf"))
        taken14 = ~(value13 <= best_lanes11) & (best_lanes11 == best_lanes11)
        best_lanes11 = tl.where(taken14, value13, best_lanes11)
        where_lanes12 = tl.where(taken14, r0, where_lanes12)
        any_lanes15 = any_lanes15 | tl.where(rmask, in1_1, tl.full([], False, tl.int1))
        all_lanes16 = all_lanes16 & tl.where(rmask, in1_1, tl.full([], True, tl.int1))
        xor_lanes17 = xor_lanes17 ^ tl.where(rmask, in2_2, tl.full([], 0, tl.int64))
        weight_lanes20 = weight_lanes20 + rmask.to(tl.float32)
        share21 = 1.0 / weight_lanes20
        delta22 = in0_0 - mean_lanes18
        moved23 = mean_lanes18 + delta22 * share21
        m2_lanes19 = tl.where(rmask, m2_lanes19 + delta22 * (in0_0 - moved23), m2_lanes19)
        mean_lanes18 = tl.where(rmask, moved23, mean_lanes18)
        max_lanes24, sum_lanes25 = online_softmax_step(max_lanes24, sum_lanes25, tl.where(rmask, in0_0, float("-inf")))
    sum26 = tl.sum(sum_lanes3, 1, keep_dims=True)
    prod27 = tl.reduce(prod_lanes4, 1, combine_mul, keep_dims=True)
    min28 = tl.reduce(min_lanes5, 1, combine_min_nan, keep_dims=True)
    max29 = tl.reduce(max_lanes6, 1, combine_max_nan, keep_dims=True)
    best30, argmin31 = tl.reduce((best_lanes7, where_lanes8), 1, combine_argmin, keep_dims=True)
    argmin32 = argmin31.to(tl.int64)
    best33, argmax34 = tl.reduce((best_lanes11, where_lanes12), 1, combine_argmax, keep_dims=True)
    argmax35 = argmax34.to(tl.int64)
    any36 = tl.max(any_lanes15.to(tl.int32), 1, keep_dims=True) != 0
    all37 = tl.min(all_lanes16.to(tl.int32), 1, keep_dims=True) != 0
    xor38 = tl.xor_sum(xor_lanes17, 1, keep_dims=True)
    mean39 = tl.sum(mean_lanes18 * weight_lanes20, 1, keep_dims=True) / 500.0
    apart40 = mean_lanes18 - mean39
    m2_41 = tl.sum(m2_lanes19 + weight_lanes20 * (apart40 * apart40), 1, keep_dims=True)
    max42 = tl.reduce(max_lanes24, 1, combine_max_nan, keep_dims=True)
    sum43 = tl.sum(sum_lanes25 * exp_for_sum(max_lanes24 - max42), 1, keep_dims=True)
    tl.store(out0 + x0, sum26)
    tl.store(out1 + x0, prod27)
    tl.store(out2 + x0, min28)
    tl.store(out3 + x0, max29)
    tl.store(out4 + x0, argmin32)
    tl.store(out5 + x0, argmax35)
    tl.store(out6 + x0, any36)
    tl.store(out7 + x0, all37)
    tl.store(out8 + x0, xor38)
    tl.store(out9 + x0, mean39)
    tl.store(out10 + x0, m2_41)
    tl.store(out11 + x0, max42)
    tl.store(out12 + x0, sum43)
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 16, 'R0_BLOCK': 128, 'STAGES': 1} warps 8
# try {'XBLOCK': 32, 'R0_BLOCK': 64, 'STAGES': 1} warps 8
