"""
sorted_rows.
"""

import triton
import triton.language as tl



@triton.jit
def sort_key_word(x, position, DESCENDING: tl.constexpr):
    # integers of 32 bits
    order = x.to(tl.int64)
    if DESCENDING:
        order = order ^ -1
    return (order << 16) | (position << 1).to(tl.int64)


@triton.jit
def sorted_word(keys, DTYPE: tl.constexpr, DESCENDING: tl.constexpr):
    order = keys >> 16
    if DESCENDING:
        order = order ^ -1
    return order.to(DTYPE)


@triton.jit
def sorted_position(keys):
    return ((keys.to(tl.int32) & 65535) >> 1).to(tl.int64)


@triton.jit
def sort_float_keys(keys):
    # keys of 64 bits as the floats of the same bits: positive ones, not normal and no NaN, whose order is that of their bits.
    # Where f64 has units of its own, these compare them while others move the keys
    return (keys + 0x1000000000000).to(tl.float64, bitcast=True)


@triton.jit
def sort_integer_keys(keys):
    return keys.to(tl.int64, bitcast=True) - 0x1000000000000


@triton.jit
def sort_exchange(keys, DISTANCE: tl.constexpr):
    # the smaller of each two keys at this distance comes first; a sum less one of them is the other
    pairs = tl.reshape(keys, [keys.numel // (2 * DISTANCE), 2, DISTANCE])
    upper = tl.reshape(tl.arange(0, 2), [1, 2, 1]) == 1
    if keys.dtype == tl.float64:
        bits = pairs.to(tl.int64, bitcast=True)
        others = (tl.sum(bits, 1, keep_dims=True) - bits).to(tl.float64, bitcast=True)
    else:
        others = tl.sum(pairs, 1, keep_dims=True) - pairs
    if keys.dtype != tl.int32:
        # one comparison for both
        pairs = tl.where((pairs > others) != upper, others, pairs)
    else:
        pairs = tl.where(upper, tl.maximum(pairs, others), tl.minimum(pairs, others))
    return tl.reshape(pairs, [keys.numel])


@triton.jit
def sort_turn(keys, RUN: tl.constexpr):
    # every second run of keys in the opposite order
    runs = tl.reshape(keys, [keys.numel // (2 * RUN), 2, RUN])
    second = tl.reshape(tl.arange(0, 2), [1, 2, 1])
    if keys.dtype == tl.float64:
        runs = (runs.to(tl.int64, bitcast=True) ^ (second.to(tl.int64) << 63)).to(tl.float64, bitcast=True)
    else:
        runs = runs ^ -second.to(keys.dtype)
    return tl.reshape(runs, [keys.numel])


@triton.jit
def sort_merge(keys, LOG: tl.constexpr, LAST: tl.constexpr):
    # runs of 2**LOG keys, which rise and then fall, become runs that rise; every second one falls unless it is the last
    if LAST == 0:
        keys = sort_turn(keys, 2**LOG)
    for step in tl.static_range(LOG):
        keys = sort_exchange(keys, 2 ** (LOG - 1 - step))
    if LAST == 0:
        keys = sort_turn(keys, 2**LOG)
    return keys


@triton.jit
def sort_rows(keys, LENGTH: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr):
    # the bitonic network (Batcher 1968) over the last axis; keys know their positions, so it may start in any order: in one
    # where what a thread holds, WIDTH elements of each THREADS * WIDTH, is close together and most exchanges stay within it
    found = tl.reshape(keys, [keys.numel])
    if THREADS * WIDTH < LENGTH:
        found = tl.reshape(found, [keys.numel // LENGTH, LENGTH // (THREADS * WIDTH), THREADS, WIDTH])
        found = tl.reshape(tl.permute(found, [0, 2, 1, 3]), [keys.numel])
    for log in tl.static_range(1, 16):
        if 2**log <= LENGTH:
            found = sort_merge(found, log, 2**log == LENGTH)
    return tl.reshape(found, keys.shape)


@triton.jit
def sorted_rows(
    in0,
    out0,
    out1,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    SORT_THREADS: tl.constexpr,
    SORT_WIDTH: tl.constexpr,
):
    xoffset = tl.program_id(0) * XBLOCK
    x0 = (xoffset + tl.arange(0, XBLOCK))[:, None]
    r0 = tl.arange(0, R0_BLOCK)[None, :]
    rmask = r0 < 60
    in0_0 = tl.load(in0 + (x0 * 60 + r0), rmask)
    keys1 = sort_float_keys(tl.where(rmask, sort_key_word(in0_0, r0, True), 1125899906842624))
    ordered2 = sort_integer_keys(sort_rows(keys1, R0_BLOCK, SORT_THREADS, SORT_WIDTH))
    value3 = sorted_word(ordered2, tl.int32, True)
    position4 = sorted_position(ordered2)
    tl.store(out0 + (x0 * 60 + r0), value3, rmask)
    tl.store(out1 + (x0 * 60 + r0), position4, rmask)
# grid -((-100000) // XBLOCK)
# try {'XBLOCK': 16, 'R0_BLOCK': 64, 'SORT_THREADS': 16, 'SORT_WIDTH': 4} warps 1
# try {'XBLOCK': 8, 'R0_BLOCK': 64, 'SORT_THREADS': 16, 'SORT_WIDTH': 4} warps 1
