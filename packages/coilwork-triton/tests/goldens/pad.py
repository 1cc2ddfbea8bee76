"""
pad.
"""

import triton
import triton.language as tl



@triton.jit
def pad(in0, out0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    tl.assume(xoffset >= 0)
    xindex = xoffset + tl.arange(0, XBLOCK)
    x0 = xindex // 34
    x1 = xindex % 34
    xmask = xindex < 3400
    bitwise_and0 = (x1 >= 1) & (x1 < 33)
    in0_1 = tl.load(in0 + (x0 * 32 + x1 - 1), xmask & bitwise_and0, other=0.0)
    tl.store(out0 + xindex, in0_1, xmask)
# grid -((-3400) // XBLOCK)
# try {'XBLOCK': 128} warps 1
