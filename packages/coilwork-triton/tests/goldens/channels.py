"""
channels.
"""

import triton
import triton.language as tl



@triton.jit
def channels(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    x0 = tl.program_id(0)
    rindex = tl.arange(0, R0_BLOCK)
    r0 = rindex // 49
    r1 = rindex % 49
    rmask = rindex < 12544
    in0_0 = tl.load(in0 + (x0 * 49 + r0 * 100352 + r1), rmask).to(tl.float32)
    mean1 = tl.sum(tl.where(rmask, in0_0, 0.0), 0) / 12544.0
    centred2 = tl.where(rmask, in0_0 - mean1, 0.0)
    m2_3 = tl.sum(centred2 * centred2, 0)
    sub4 = in0_0 - mean1
    tl.store(out0 + (x0 * 49 + r0 * 100352 + r1), sub4.to(tl.bfloat16), rmask)
# grid 2048
# try {'XBLOCK': 1, 'R0_BLOCK': 16384} warps 16
# try {'XBLOCK': 1, 'R0_BLOCK': 16384} warps 8
