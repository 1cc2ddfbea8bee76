"""
int8_linear.
"""

import triton
import triton.language as tl



@triton.jit
def grouped(program, rows, columns, GROUP: tl.constexpr):
    # blocks column by column within GROUP rows of them: programs of about the same time share what they read
    first = program // (GROUP * columns) * GROUP
    within = program % (GROUP * columns)
    height = tl.minimum(rows - first, GROUP)
    return first + within % height, within // height


@triton.jit
def int8_linear(
    in0,
    in1,
    in2,
    out0,
    YBLOCK: tl.constexpr,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    yprograms = tl.cdiv(16, YBLOCK)
    xprograms = tl.cdiv(96, XBLOCK)
    program = tl.program_id(0)
    yprogram, xprogram = grouped(program, yprograms, xprograms, GROUP)
    yoffset = yprogram * YBLOCK
    x0 = (yoffset + tl.arange(0, YBLOCK))[:, None]
    xoffset = xprogram * XBLOCK
    x1 = (xoffset + tl.arange(0, XBLOCK))[None, :]
    xmask = x1 < 96
    sums = tl.full([YBLOCK, XBLOCK], 0.0, tl.float32)
    for r0_offset in tl.range(0, 512, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[None, :]
        in0_0 = tl.load(in0 + (x0 * 512 + r0))
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[:, None]
        in1_1 = tl.load(in1 + (x1 * 512 + r0), xmask, other=0).to(tl.bfloat16)
        sums = tl.dot(in0_0, in1_1, sums)
    in2_2 = tl.load(in2 + x1, xmask).to(tl.float32)
    mul3 = sums.to(tl.bfloat16).to(tl.float32) * in2_2
    tl.store(out0 + (x0 * 96 + x1), mul3.to(tl.bfloat16), xmask)
# grid ((-96) // XBLOCK)*((-16) // YBLOCK)
# try {'YBLOCK': 16, 'XBLOCK': 32, 'R0_BLOCK': 256, 'GROUP': 8, 'STAGES': 4} warps 4
# try {'YBLOCK': 16, 'XBLOCK': 64, 'R0_BLOCK': 256, 'GROUP': 8, 'STAGES': 3} warps 4
# try {'YBLOCK': 16, 'XBLOCK': 32, 'R0_BLOCK': 128, 'GROUP': 8, 'STAGES': 5} warps 4
