"""
looked_up_across.
"""

import triton
import triton.language as tl



@triton.jit
def looked_up_across(in0, in1, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[None, :]
    r0 = tl.arange(0, R0_BLOCK)[:, None]
    in1_0 = tl.load(in1 + x0)
    in0_1 = tl.load(in0 + (r0 * 1024 + in1_0.to(tl.int32)))
    sum2 = tl.sum(in0_1, 0, keep_dims=True)
    tl.store(out0 + x0, sum2)
# grid -((-16384) // XBLOCK)
# try {'XBLOCK': 64, 'R0_BLOCK': 16} warps 1
