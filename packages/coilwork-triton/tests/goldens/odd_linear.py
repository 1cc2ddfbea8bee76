"""
product.
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
def product(
    in0,
    in1,
    in2,
    in3,
    out0,
    YBLOCK: tl.constexpr,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
):
    yprograms = tl.cdiv(300, YBLOCK)
    xprograms = tl.cdiv(333, XBLOCK)
    program = tl.program_id(0)
    zprogram = program // (yprograms * xprograms)
    program = program % (yprograms * xprograms)
    yprogram, xprogram = grouped(program, yprograms, xprograms, GROUP)
    yoffset = yprogram * YBLOCK
    x1 = (yoffset + tl.arange(0, YBLOCK))[:, None]
    ymask = x1 < 300
    xoffset = xprogram * XBLOCK
    x2 = (xoffset + tl.arange(0, XBLOCK))[None, :]
    xmask = x2 < 333
    sums = tl.full([YBLOCK, XBLOCK], 0.0, tl.float32)
    for r0_offset in tl.range(0, 200, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[None, :]
        rmask = r0 < 200
        in0_0 = tl.load(in0 + (x1 * 200 + r0), ymask & rmask, other=0.0)
        r0 = (r0_offset + tl.arange(0, R0_BLOCK))[:, None]
        rmask = r0 < 200
        in1_1 = tl.load(in1 + (r0 * 333 + x2), rmask & xmask, other=0.0)
        sums = tl.dot(in0_0, in1_1, sums)
    in2_2 = tl.load(in2 + x2, x2 // 8 * 8 < 333).to(tl.float32)
    add3 = sums + in2_2
    maximum4 = tl.maximum(add3, 0.0, propagate_nan=tl.PropagateNan.ALL)
    in3_5 = tl.load(in3 + (x1 * 333 + x2), ymask & xmask).to(tl.float32)
    add6 = maximum4 + in3_5
    tl.store(out0 + (x1 * 333 + x2), add6.to(tl.bfloat16), ymask & xmask)
# grid ((-333) // XBLOCK)*((-300) // YBLOCK)
# try {'YBLOCK': 128, 'XBLOCK': 64, 'R0_BLOCK': 64, 'GROUP': 8, 'STAGES': 2} warps 4
# try {'YBLOCK': 64, 'XBLOCK': 128, 'R0_BLOCK': 64, 'GROUP': 8, 'STAGES': 2} warps 4
