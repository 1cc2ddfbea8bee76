"""
reflected.
"""

import triton
import triton.language as tl



@triton.jit
def reflected(in0, out0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    tl.assume(xoffset >= 0)
    xindex = xoffset + tl.arange(0, XBLOCK)
    x2 = xindex % 128
    xrow = xindex // 128
    x0 = xrow // 58
    x1 = xrow % 58
    xmask = x2 < 118
    in0_0 = tl.load(in0 + (x0 * 6048 + 6047 - tl.abs(tl.abs(x1 - 2) - 53) * 112) + tl.abs(tl.abs(x2 - 3) - 111) * -1, xmask)
    tl.store(out0 + (xrow * 118 + x2), in0_0, xmask)
# grid -((-475136) // XBLOCK)
# try {'XBLOCK': 1024} warps 1
# try {'XBLOCK': 2048} warps 2
# try {'XBLOCK': 2048} warps 4
