"""
histograms.
"""

import triton
import triton.language as tl



@triton.jit
def histograms(in0, io0, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x1 = xoffset + tl.arange(0, XBLOCK)
    x0 = tl.program_id(1)
    in0_0 = tl.load(in0 + (x0 * 786432 + x1)).to(tl.int64)
    number1 = in0_0.to(tl.int32)
    counts2 = tl.histogram(number1, 256)
    bins3 = tl.arange(0, 256)
    tl.atomic_add(io0 + (x0 * 256 + bins3), counts2, mask=counts2 != 0, sem="relaxed")
# grid -((-786432) // XBLOCK), 512
# try {'YBLOCK': 1, 'XBLOCK': 8192} warps 8
# try {'YBLOCK': 1, 'XBLOCK': 16384} warps 16
