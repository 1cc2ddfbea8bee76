"""
pad.
"""

import triton
import triton.language as tl



@triton.jit
def pad(in0, out0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    x0 = xindex // 34
    x1 = xindex % 34
    xmask = xindex < 3400
    index0 = tl.cast(x1, tl.int64)
    bitwise_and1 = (index0 >= 1) & (index0 < 33)
    in0_2 = tl.load(in0 + (x0 * 32 + x1 - 1), xmask & bitwise_and1, other=0.0)
    tl.store(out0 + xindex, in0_2, xmask)
# grid -((-3400) // XBLOCK)
# try {'XBLOCK': 128} warps 1
