"""
cumulative_max.
"""

import triton
import triton.language as tl



@triton.jit
def combine_running_max(a, ai, b, bi):
    # b comes later and wins among equals, as in torch.cummax
    later = (b >= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, bi, ai)


@triton.jit
def cumulative_max(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr, STAGES: tl.constexpr):
    x0 = tl.program_id(0)
    carry1 = tl.full([], float("-inf"), tl.float32)
    carry_position2 = tl.full([], 0, tl.int32)
    for r0_offset in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 5000
        in0_0 = tl.load(in0 + (x0 * 5000 + r0), rmask)
        running3, position4 = tl.associative_scan((tl.broadcast_to(tl.where(rmask, in0_0, float("-inf")), (R0_BLOCK,)), tl.broadcast_to(r0, (R0_BLOCK,))), 0, combine_running_max)
        running5, position6 = combine_running_max(carry1, carry_position2, running3, position4)
        carry1 = tl.sum(tl.where(tl.arange(0, R0_BLOCK) == R0_BLOCK - 1, running5, tl.zeros_like(running5)), 0)
        carry_position2 = tl.sum(tl.where(tl.arange(0, R0_BLOCK) == R0_BLOCK - 1, position6, tl.zeros_like(position6)), 0)
        tl.store(out0 + (x0 * 5000 + r0), running5, rmask)
# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 1} warps 8
# try {'XBLOCK': 1, 'R0_BLOCK': 8192, 'STAGES': 1} warps 16
# try {'XBLOCK': 1, 'R0_BLOCK': 2048, 'STAGES': 1} warps 4
