"""
running.
"""

import triton
import triton.language as tl



@triton.jit
def combine_argmin(a, ai, b, bi):
    # a NaN is the smallest of all; among equals the first position wins
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (ai < bi))
    return tl.where(first, a, b), tl.where(first, ai, bi)


@triton.jit
def combine_running_min(a, ai, b, bi):
    # b comes later and wins among equals, as in torch.cummin
    later = (b <= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, bi, ai)


@triton.jit
def tell(word, bits):
    # a word says by itself that it is there: nothing else has to be seen before it
    tl.atomic_xchg(word, (1 << 32) | (bits.to(tl.int64) & 0xFFFFFFFF), sem="relaxed")


@triton.jit
def told(words, there):
    # the words of earlier pieces, whose programs run already: asked for until all are there
    found = tl.load(words, mask=there, other=1 << 32, volatile=True)
    while tl.min(found, 0) == 0:
        found = tl.load(words, mask=there, other=1 << 32, volatile=True)
    return found


@triton.jit
def running(in0, io0, out0, out1, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    ticket = (tl.atomic_add(io0, 1, sem="relaxed") % 15).to(tl.int32)
    row = ticket % 3
    piece = ticket // 3
    r0_offset = (4 - piece) * R0_BLOCK
    x0 = row
    r0 = r0_offset + tl.arange(0, R0_BLOCK)
    rmask = r0 < 20000
    in0_0 = tl.load(in0 + (x0 * 20000 + r0), rmask)
    kept1 = tl.broadcast_to(tl.where(rmask, in0_0, tl.full([], float("inf"), tl.float64)), (R0_BLOCK,))
    kept2 = tl.broadcast_to(r0, (R0_BLOCK,))
    running3, position4 = tl.associative_scan((kept1, kept2), 0, combine_running_min, reverse=True)
    whole5 = tl.sum(tl.where(tl.arange(0, R0_BLOCK) == 0, running3, tl.zeros_like(running3)), 0)
    whole6 = tl.sum(tl.where(tl.arange(0, R0_BLOCK) == 0, position4, tl.zeros_like(position4)), 0)
    tell(io0 + 1 + row * 5 + piece, whole5.to(tl.int64, bitcast=True))
    tell(io0 + 1 + (3 + row) * 5 + piece, whole5.to(tl.int64, bitcast=True) >> 32)
    tell(io0 + 1 + (6 + row) * 5 + piece, whole6)
    lane7 = tl.arange(0, 8)
    earlier8 = piece - 1 - lane7
    there9 = earlier8 >= 0
    word10 = told(io0 + 1 + row * 5 + earlier8, there9)
    word11 = told(io0 + 1 + (3 + row) * 5 + earlier8, there9)
    part12 = tl.where(there9, (word11 << 32 | word10 & 4294967295).to(tl.float64, bitcast=True), tl.full([], float("inf"), tl.float64))
    word13 = told(io0 + 1 + (6 + row) * 5 + earlier8, there9)
    part14 = tl.where(there9, word13.to(tl.int32), 0)
    before15, nearest16 = tl.reduce((part12, lane7), 0, combine_argmin)
    before17 = tl.sum(tl.where(lane7 == nearest16, part14, tl.zeros_like(part14)), 0)
    running18, position19 = combine_running_min(before15, before17, running3, position4)
    position20 = position19.to(tl.int64)
    tl.store(out0 + (x0 * 20000 + r0), running18, rmask)
    tl.store(out1 + (x0 * 20000 + r0), position20, rmask)
# grid 15
# try {'XBLOCK': 1, 'R0_BLOCK': 4096} warps 2
# try {'XBLOCK': 1, 'R0_BLOCK': 4096} warps 4
