"""
cumulative_sum.
"""

import triton
import triton.language as tl



@triton.jit
def exclusive_add(e, t, f, u):
    # e and f come before runs of which t and u are all that there is up to their ends
    return t + f, t + u


@triton.jit
def dealt_in_runs(LENGTH: tl.constexpr, RUN: tl.constexpr):
    # positions of which a thread gets RUN neighbours: of a block, threads are given one after the other, then the next to each
    lane = tl.arange(0, LENGTH)
    return lane % (LENGTH // RUN) * RUN + lane // (LENGTH // RUN)


@triton.jit
def cumulative_sum(
    in0,
    out0,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    RUN: tl.constexpr,
):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    carry1 = tl.full([XBLOCK, 1], 0.0, tl.float32)
    for r0_offset in tl.range(0, 8192, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + dealt_in_runs(R0_BLOCK, RUN))[None, :]
        in0_0 = tl.load(in0 + (r0 * 4096 + x0)).to(tl.float32)
        runs2 = tl.reshape(tl.broadcast_to(in0_0, (XBLOCK, R0_BLOCK)), (XBLOCK, RUN, R0_BLOCK // RUN))
        running3 = tl.cumsum(runs2, 1)
        whole4 = tl.sum(tl.where((tl.arange(0, RUN) == RUN - 1)[None, :, None], running3, tl.zeros_like(running3)), 1)
        before5, upto6 = tl.associative_scan((tl.full([XBLOCK, R0_BLOCK // RUN], 0.0, tl.float32), whole4), 1, exclusive_add)
        running7 = carry1 + before5
        block8 = tl.sum(tl.where((tl.arange(0, R0_BLOCK // RUN) == R0_BLOCK // RUN - 1)[None, :], upto6, tl.zeros_like(upto6)), 1, keep_dims=True)
        running9 = carry1 + block8
        carry1 = running9
        running10 = running7[:, None, :] + running3
        running11 = tl.reshape(running10, (XBLOCK, R0_BLOCK))
        tl.store(out0 + (r0 * 4096 + x0), running11.to(tl.bfloat16))
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 32, 'R0_BLOCK': 512, 'STAGES': 3, 'RUN': 8} warps 8
# try {'XBLOCK': 32, 'R0_BLOCK': 256, 'STAGES': 3, 'RUN': 8} warps 4
# try {'XBLOCK': 32, 'R0_BLOCK': 256, 'STAGES': 4, 'RUN': 4} warps 8
