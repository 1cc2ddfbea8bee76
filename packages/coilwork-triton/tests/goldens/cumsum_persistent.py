"""
cumulative_sum.
"""

import triton
import triton.language as tl



@triton.jit
def cumulative_sum(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    x0 = tl.program_id(0)
    r0 = tl.arange(0, R0_BLOCK)
    rmask = r0 < 5000
    in0_0 = tl.load(in0 + (x0 * 5000 + r0), rmask)
    running1 = tl.cumsum(tl.broadcast_to(tl.where(rmask, in0_0, 0.0), (R0_BLOCK,)), 0)
    tl.store(out0 + (x0 * 5000 + r0), running1, rmask)
# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 8192} warps 8
# try {'XBLOCK': 1, 'R0_BLOCK': 8192} warps 4
