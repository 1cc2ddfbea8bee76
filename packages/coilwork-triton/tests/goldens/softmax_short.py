"""
softmax: one kernel for
  aten._softmax.default            model.py:31   p = scores.softmax(-1)
"""

import triton
import triton.language as tl



@triton.jit
def combine_max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def softmax(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    r0 = tl.max_contiguous(tl.arange(0, R0_BLOCK), 4)[None, :]
    rmask = r0 < 384
    in0_0 = tl.load(in0 + (x0 * 384 + r0), rmask).to(tl.float32)
    kept1 = tl.where(rmask, in0_0, float("-inf"))
    max2 = tl.reduce(kept1, 1, combine_max_nan, keep_dims=True)
    sum3 = tl.sum(tl.exp(kept1 - max2), 1, keep_dims=True)
    sub4 = in0_0 - max2
    exp5 = tl.exp(sub4)
    div6 = exp5 / sum3
    tl.store(out0 + (x0 * 384 + r0), div6.to(tl.bfloat16), rmask)
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 2, 'R0_BLOCK': 512} warps 1
# try {'XBLOCK': 4, 'R0_BLOCK': 512} warps 1
