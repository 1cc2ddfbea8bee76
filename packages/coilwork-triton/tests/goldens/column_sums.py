"""
column_sums.
"""

import triton
import triton.language as tl



@triton.jit
def column_sums(in0, out0, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr, STAGES: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    sum_lanes1 = tl.full([XBLOCK, R0_BLOCK], 0.0, tl.float32)
    for r0_offset in tl.range(0, 4096, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[None, :]
        in0_0 = tl.load(in0 + (r0 * 3072 + x0)).to(tl.float32)
        sum_lanes1 = sum_lanes1 + in0_0
    sum2 = tl.sum(sum_lanes1, 1, keep_dims=True)
    tl.store(out0 + x0, sum2)
# grid -((-3072) // XBLOCK)
# try {'XBLOCK': 16, 'R0_BLOCK': 256, 'STAGES': 1} warps 8
# try {'XBLOCK': 32, 'R0_BLOCK': 128, 'STAGES': 1} warps 8
# try {'XBLOCK': 64, 'R0_BLOCK': 64, 'STAGES': 3} warps 4
