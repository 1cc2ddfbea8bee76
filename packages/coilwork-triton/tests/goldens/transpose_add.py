"""
add_transposed.
"""

import triton
import triton.language as tl



@triton.jit
def add_transposed(in0, in1, out0, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[None, :]
    xmask = x0 < 777
    yoffset = tl.program_id(1) * YBLOCK
    y0 = (yoffset + tl.arange(0, YBLOCK))[:, None]
    ymask = y0 < 1000
    in0_0 = tl.load(in0 + (y0 * 777 + x0), ymask & xmask)
    in1_1 = tl.load(in1 + (x0 * 1000 + y0), ymask & xmask)
    add2 = in0_0 + in1_1
    tl.store(out0 + (y0 * 777 + x0), add2, ymask & xmask)
# grid -((-777) // XBLOCK), -((-1000) // YBLOCK)
# try {'YBLOCK': 32, 'XBLOCK': 32} warps 4
# try {'YBLOCK': 64, 'XBLOCK': 64} warps 8
# try {'YBLOCK': 16, 'XBLOCK': 128} warps 4
