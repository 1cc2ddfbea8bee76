"""
embedding.
"""

import triton
import triton.language as tl



@triton.jit
def embedding(in0, in1, in2, out0, n0, XBLOCK: tl.constexpr):
    xnumel = n0 * 768
    xoffset = tl.program_id(0).to(tl.int64) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    x0 = xindex // 768
    x1 = xindex % 768
    xmask = xindex < xnumel
    in1_0 = tl.load(in1 + x0, xmask)
    add1 = in1_0 + 50257
    where2 = tl.where(in1_0 < 0, add1, in1_0)
    bitwise_and3 = (where2 >= 0) & (where2 < 50257)
    tl.device_assert(bitwise_and3 | ~xmask, "IndexError: index out of range in self")
    in0_4 = tl.load(in0 + (where2 * 768 + x1), xmask).to(tl.float32)
    in2_5 = tl.load(in2 + x1, xmask).to(tl.float32)
    add6 = in0_4 + in2_5
    tl.store(out0 + xindex, add6.to(tl.bfloat16), xmask)
# grid -((-768*n0) // XBLOCK)
# try {'XBLOCK': 2048} warps 4
# try {'XBLOCK': 1024} warps 4
