"""
softmax: one kernel for
  aten._softmax.default            model.py:31   p = scores.softmax(-1)
"""

import triton
import triton.language as tl



@triton.jit
def exp_rounded(x):
    # f32, for results of 16 bits. tl.exp2 flushes what is subnormal, a square does not
    root = tl.exp2(x * 0.7213475204444817)
    return root * root


@triton.jit
def combine_max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exp_for_sum(x):
    # exp of what is at most 0, for a sum that also has a term of 1: beside that one, what tl.exp2 flushes to 0 is nothing, and
    # without care for subnormal results an exponential takes three instructions less
    if x.dtype == tl.float32:
        return tl.exp2(x * 1.4426950408889634)
    return tl.exp(x)


@triton.jit
def online_softmax_chunks(m, s, x, CHUNK: tl.constexpr):
    # as online_softmax_step, for lanes of CHUNK neighbours each, all of one thread: one rescaling for all of them
    parts = tl.reshape(x, [x.shape[0] // CHUNK, CHUNK])
    m_new = tl.maximum(m, tl.reduce(parts, 1, combine_max_nan), propagate_nan=tl.PropagateNan.ALL)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    within = tl.sum(exp_for_sum(parts - shift[:, None]), 1)
    return m_new, s * exp_for_sum(m - shift) + within


@triton.jit
def softmax(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr, STAGES: tl.constexpr):
    x0 = tl.program_id(0)
    max_lanes1 = tl.full([R0_BLOCK // 4], float("-inf"), tl.float32)
    sum_lanes2 = tl.full([R0_BLOCK // 4], 0.0, tl.float32)
    for r0_offset in tl.range(0, 50304, R0_BLOCK, num_stages=STAGES):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 50304
        in0_0 = tl.load(in0 + (x0 * 50304 + r0), rmask, eviction_policy="evict_last").to(tl.float32)
        max_lanes1, sum_lanes2 = online_softmax_chunks(max_lanes1, sum_lanes2, tl.where(rmask, in0_0, float("-inf")), 4)
    max3 = tl.reduce(max_lanes1, 0, combine_max_nan)
    sum4 = tl.sum(sum_lanes2 * exp_for_sum(max_lanes1 - max3), 0)
    for r0_offset in tl.range(0, 50304, R0_BLOCK, num_stages=STAGES):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 50304
        in0_5 = tl.load(in0 + (x0 * 50304 + r0), rmask, eviction_policy="evict_first").to(tl.float32)
        sub6 = in0_5 - max3
        exp7 = exp_rounded(sub6)
        div8 = exp7 / sum4
        tl.store(out0 + (x0 * 50304 + r0), div8.to(tl.bfloat16), rmask)
# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 1} warps 8
# try {'XBLOCK': 1, 'R0_BLOCK': 8192, 'STAGES': 1} warps 32
