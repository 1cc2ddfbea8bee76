"""
cumulative_max.
"""

import triton
import triton.language as tl



@triton.jit
def combine_running_max(a, ai, b, bi):
    # b comes later and wins among equals, as in torch.cummax
    later = (b >= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, bi, ai)


@triton.jit
def exclusive_running_max(e, ei, t, ti, f, fi, u, ui):
    before, beside = combine_running_max(t, ti, f, fi)
    upto, there = combine_running_max(t, ti, u, ui)
    return before, beside, upto, there


@triton.jit
def dealt_in_runs(LENGTH: tl.constexpr, RUN: tl.constexpr):
    # positions of which a thread gets RUN neighbours: of a block, threads are given one after the other, then the next to each
    lane = tl.arange(0, LENGTH)
    return lane % (LENGTH // RUN) * RUN + lane // (LENGTH // RUN)


@triton.jit
def cumulative_max(
    in0,
    out0,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    RUN: tl.constexpr,
):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    carry1 = tl.full([XBLOCK, 1], float("-inf"), tl.float32)
    carry_position2 = tl.full([XBLOCK, 1], 0, tl.int32)
    for r0_offset in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + dealt_in_runs(R0_BLOCK, RUN))[None, :]
        rmask = r0 < 5000
        in0_0 = tl.load(in0 + (r0 * 4096 + x0), rmask).to(tl.float32)
        runs3 = tl.reshape(tl.broadcast_to(tl.where(rmask, in0_0, float("-inf")), (XBLOCK, R0_BLOCK)), (XBLOCK, RUN, R0_BLOCK // RUN))
        runs4 = tl.reshape(tl.broadcast_to(r0, (XBLOCK, R0_BLOCK)), (XBLOCK, RUN, R0_BLOCK // RUN))
        running5, position6 = tl.associative_scan((runs3, runs4), 1, combine_running_max)
        whole7 = tl.sum(tl.where((tl.arange(0, RUN) == RUN - 1)[None, :, None], running5, tl.zeros_like(running5)), 1)
        whole8 = tl.sum(tl.where((tl.arange(0, RUN) == RUN - 1)[None, :, None], position6, tl.zeros_like(position6)), 1)
        before9, before10, upto11, upto12 = tl.associative_scan((tl.full([XBLOCK, R0_BLOCK // RUN], float("-inf"), tl.float32), tl.full([XBLOCK, R0_BLOCK // RUN], 0, tl.int32), whole7, whole8), 1, exclusive_running_max)
        running13, position14 = combine_running_max(carry1, carry_position2, before9, before10)
        block15 = tl.sum(tl.where((tl.arange(0, R0_BLOCK // RUN) == R0_BLOCK // RUN - 1)[None, :], upto11, tl.zeros_like(upto11)), 1, keep_dims=True)
        block16 = tl.sum(tl.where((tl.arange(0, R0_BLOCK // RUN) == R0_BLOCK // RUN - 1)[None, :], upto12, tl.zeros_like(upto12)), 1, keep_dims=True)
        running17, position18 = combine_running_max(carry1, carry_position2, block15, block16)
        carry1 = running17
        carry_position2 = position18
        running19, position20 = combine_running_max(running13[:, None, :], position14[:, None, :], running5, position6)
        running21 = tl.reshape(running19, (XBLOCK, R0_BLOCK))
        running22 = tl.reshape(position20, (XBLOCK, R0_BLOCK))
        tl.store(out0 + (r0 * 4096 + x0), running21.to(tl.bfloat16), rmask)
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 32, 'R0_BLOCK': 256, 'STAGES': 3, 'RUN': 4} warps 8
# try {'XBLOCK': 32, 'R0_BLOCK': 128, 'STAGES': 3, 'RUN': 4} warps 4
# try {'XBLOCK': 32, 'R0_BLOCK': 128, 'STAGES': 4, 'RUN': 2} warps 8
