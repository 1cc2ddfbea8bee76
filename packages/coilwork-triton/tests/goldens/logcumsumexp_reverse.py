"""
cumulative_logcumsumexp.
"""

import triton
import triton.language as tl



@triton.jit
def log1p(x):
    # Kahan: the error of u = 1 + x cancels in log(u) * x / (u - 1)
    u = 1.0 + x
    below = u - 1.0
    inner = (below != 0.0) & (tl.abs(x) < 1.0e6)
    ratio = tl.log(u) * (x / tl.where(inner, below, 1.0))
    return tl.where(inner, ratio, tl.where(below == 0.0, x, tl.log(u)))


@triton.jit
def combine_logaddexp(a, b):
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    # equal infinities would give inf - inf
    return tl.where((high == low) & (tl.abs(high) == float("inf")), high, high + log1p(tl.exp(low - high)))


@triton.jit
def cumulative_logcumsumexp(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr, STAGES: tl.constexpr):
    x0 = tl.program_id(0)
    carry1 = tl.full([], float("-inf"), tl.float32)
    for r0_done in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0_offset = (tl.cdiv(5000, R0_BLOCK) - 1) * R0_BLOCK - r0_done
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 5000
        in0_0 = tl.load(in0 + (x0 * 5000 + r0), rmask)
        running2 = tl.associative_scan(tl.broadcast_to(tl.where(rmask, in0_0, float("-inf")), (R0_BLOCK,)), 0, combine_logaddexp, reverse=True)
        running3 = combine_logaddexp(carry1, running2)
        carry1 = tl.sum(tl.where(tl.arange(0, R0_BLOCK) == 0, running3, tl.zeros_like(running3)), 0)
        tl.store(out0 + (x0 * 5000 + r0), running3, rmask)
# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 1} warps 8
# try {'XBLOCK': 1, 'R0_BLOCK': 8192, 'STAGES': 1} warps 16
# try {'XBLOCK': 1, 'R0_BLOCK': 2048, 'STAGES': 1} warps 4
