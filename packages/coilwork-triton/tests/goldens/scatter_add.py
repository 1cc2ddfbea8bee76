"""
index_add.
"""

import triton
import triton.language as tl



@triton.jit
def index_add(in0, in1, io0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    x0 = xindex // 64
    x1 = xindex % 64
    in0_0 = tl.load(in0 + xindex)
    in1_1 = tl.load(in1 + x0)
    tl.atomic_add(io0 + (in1_1.to(tl.int32) * 64 + x1), in0_0, sem="relaxed")
# grid -((-262144) // XBLOCK)
# try {'XBLOCK': 1024} warps 4
# try {'XBLOCK': 512} warps 2
