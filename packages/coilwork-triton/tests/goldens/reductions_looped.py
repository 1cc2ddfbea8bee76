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
def online_softmax_step(m, s, x):
    # running maximum m and sum s of exp(. - m); lanes that have seen only -inf must not compute inf - inf
    m_new = tl.maximum(m, x, propagate_nan=tl.PropagateNan.ALL)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    return m_new, s * tl.exp(m - shift) + tl.exp(x - shift)


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
    x0 = tl.program_id(0)
    sum_lanes3 = tl.full([R0_BLOCK], 0.0, tl.float32)
    prod_lanes4 = tl.full([R0_BLOCK], 1.0, tl.float32)
    min_lanes5 = tl.full([R0_BLOCK], float("inf"), tl.float32)
    max_lanes6 = tl.full([R0_BLOCK], float("-inf"), tl.float32)
    best_lanes7 = tl.full([R0_BLOCK], float("inf"), tl.float32)
    where_lanes8 = tl.full([R0_BLOCK], 2147483647, tl.int32)
    best_lanes9 = tl.full([R0_BLOCK], float("-inf"), tl.float32)
    where_lanes10 = tl.full([R0_BLOCK], 2147483647, tl.int32)
    any_lanes11 = tl.full([R0_BLOCK], False, tl.int1)
    all_lanes12 = tl.full([R0_BLOCK], True, tl.int1)
    xor_lanes13 = tl.full([R0_BLOCK], 0, tl.int64)
    mean_lanes14 = tl.full([R0_BLOCK], 0.0, tl.float32)
    m2_lanes15 = tl.full([R0_BLOCK], 0.0, tl.float32)
    weight_lanes16 = tl.full([R0_BLOCK], 0.0, tl.float32)
    max_lanes19 = tl.full([R0_BLOCK], float("-inf"), tl.float32)
    sum_lanes20 = tl.full([R0_BLOCK], 0.0, tl.float32)
    for r0_offset in range(0, 500, R0_BLOCK):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 500
        in0_0 = tl.load(in0 + (x0 * 500 + r0), rmask)
        in1_1 = tl.load(in1 + (x0 * 500 + r0), rmask)
        in2_2 = tl.load(in2 + (x0 * 500 + r0), rmask)
        sum_lanes3 = sum_lanes3 + tl.where(rmask, in0_0, 0.0)
        prod_lanes4 = prod_lanes4 * tl.where(rmask, in0_0, 1.0)
        min_lanes5 = tl.minimum(min_lanes5, tl.where(rmask, in0_0, float("inf")), propagate_nan=tl.PropagateNan.ALL)
        max_lanes6 = tl.maximum(max_lanes6, tl.where(rmask, in0_0, float("-inf")), propagate_nan=tl.PropagateNan.ALL)
        best_lanes7, where_lanes8 = combine_argmin(best_lanes7, where_lanes8, tl.where(rmask, in0_0, float("inf")), tl.broadcast_to(tl.where(rmask, r0, tl.full([], 2147483647, tl.int32)), (R0_BLOCK,)))
        best_lanes9, where_lanes10 = combine_argmax(best_lanes9, where_lanes10, tl.where(rmask, in0_0, float("-inf")), tl.broadcast_to(tl.where(rmask, r0, tl.full([], 2147483647, tl.int32)), (R0_BLOCK,)))
        any_lanes11 = any_lanes11 | tl.where(rmask, in1_1, tl.full([], False, tl.int1))
        all_lanes12 = all_lanes12 & tl.where(rmask, in1_1, tl.full([], True, tl.int1))
        xor_lanes13 = xor_lanes13 ^ tl.where(rmask, in2_2, tl.full([], 0, tl.int64))
        weight_lanes16 = weight_lanes16 + rmask.to(tl.float32)
        delta17 = in0_0 - mean_lanes14
        moved18 = mean_lanes14 + delta17 / weight_lanes16
        m2_lanes15 = tl.where(rmask, m2_lanes15 + delta17 * (in0_0 - moved18), m2_lanes15)
        mean_lanes14 = tl.where(rmask, moved18, mean_lanes14)
        max_lanes19, sum_lanes20 = online_softmax_step(max_lanes19, sum_lanes20, tl.where(rmask, in0_0, float("-inf")))
    sum21 = tl.sum(sum_lanes3, 0)
    prod22 = tl.reduce(prod_lanes4, 0, combine_mul)
    min23 = tl.reduce(min_lanes5, 0, combine_min_nan)
    max24 = tl.reduce(max_lanes6, 0, combine_max_nan)
    best25, argmin26 = tl.reduce((best_lanes7, where_lanes8), 0, combine_argmin)
    argmin27 = argmin26.to(tl.int64)
    best28, argmax29 = tl.reduce((best_lanes9, where_lanes10), 0, combine_argmax)
    argmax30 = argmax29.to(tl.int64)
    any31 = tl.max(any_lanes11.to(tl.int32), 0) != 0
    all32 = tl.min(all_lanes12.to(tl.int32), 0) != 0
    xor33 = tl.xor_sum(xor_lanes13, 0)
    mean34 = tl.sum(mean_lanes14 * weight_lanes16, 0) / 500.0
    apart35 = mean_lanes14 - mean34
    m2_36 = tl.sum(m2_lanes15 + weight_lanes16 * (apart35 * apart35), 0)
    max37 = tl.reduce(max_lanes19, 0, combine_max_nan)
    sum38 = tl.sum(sum_lanes20 * tl.exp(max_lanes19 - max37), 0)
    tl.store(out0 + x0, sum21)
    tl.store(out1 + x0, prod22)
    tl.store(out2 + x0, min23)
    tl.store(out3 + x0, max24)
    tl.store(out4 + x0, argmin27)
    tl.store(out5 + x0, argmax30)
    tl.store(out6 + x0, any31)
    tl.store(out7 + x0, all32)
    tl.store(out8 + x0, xor33)
    tl.store(out9 + x0, mean34)
    tl.store(out10 + x0, m2_36)
    tl.store(out11 + x0, max37)
    tl.store(out12 + x0, sum38)

# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 512} warps 4
