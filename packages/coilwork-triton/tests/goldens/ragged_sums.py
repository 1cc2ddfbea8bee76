"""
ragged_sums.
"""

import triton
import triton.language as tl



@triton.jit
def ragged_sums(in0, in1, out0, YBLOCK: tl.constexpr, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x1 = (xoffset + tl.arange(0, XBLOCK))[None, :, None]
    yoffset = tl.program_id(1) * YBLOCK
    x0 = (yoffset + tl.arange(0, YBLOCK))[:, None, None]
    in0_0 = tl.load(in0 + (x0 + 1)).to(tl.int64)
    in0_1 = tl.load(in0 + x0).to(tl.int64)
    sub2 = in0_0 - in0_1
    sum_lanes8 = tl.full([YBLOCK, XBLOCK, R0_BLOCK], 0.0, tl.float32)
    rend9 = tl.minimum(tl.max(sub2), 700).to(tl.int32)
    for r0_offset in range(0, rend9, R0_BLOCK):
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[None, None, :]
        index3 = tl.cast(r0, tl.int64)
        lt4 = index3 < sub2
        add5 = in0_1 + index3
        in1_6 = tl.load(in1 + (add5.to(tl.int32) * 64 + x1), lt4, other=0.0)
        where7 = tl.where(lt4, in1_6, 0.0)
        sum_lanes8 = sum_lanes8 + where7
    sum10 = tl.sum(sum_lanes8, 2, keep_dims=True)
    tl.store(out0 + (x0 * 64 + x1), sum10)
# grid -((-64) // XBLOCK), -((-1000) // YBLOCK)
# try {'YBLOCK': 8, 'XBLOCK': 64, 'R0_BLOCK': 2} warps 2
# try {'YBLOCK': 8, 'XBLOCK': 64, 'R0_BLOCK': 1} warps 2
