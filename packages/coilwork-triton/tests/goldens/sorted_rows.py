"""
sorted_rows.
"""

import triton
import triton.language as tl



@triton.jit
def sort_key_half(x, position, DESCENDING: tl.constexpr):
    # floats of 16 bits
    bits = x.to(tl.int16, bitcast=True).to(tl.int32) << 16
    sign = bits >> 31
    order = (bits ^ (sign & 0x7FFFFFFF)) - sign
    wide = x.to(tl.float32)
    order = tl.where(wide != wide, 0x7FFF0000, order)
    if DESCENDING:
        order = order ^ -65536
    return order | ((position << 1).to(tl.int32) | (sign & 1))


@triton.jit
def sorted_half(keys, DTYPE: tl.constexpr, DESCENDING: tl.constexpr):
    order = keys & -65536
    if DESCENDING:
        order = order ^ -65536
    bits = tl.where(order < 0, (order ^ 0x7FFFFFFF) + 1, order) >> 16
    bits = tl.where((order == 0) & ((keys & 1) != 0), -32768, bits)
    return bits.to(tl.int16).to(DTYPE, bitcast=True)


@triton.jit
def sorted_position(keys):
    return ((keys.to(tl.int32) & 65535) >> 1).to(tl.int64)


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
    x0 = tl.program_id(0)
    r0 = tl.arange(0, R0_BLOCK)
    in0_0 = tl.load(in0 + (x0 * 1024 + r0))
    keys1 = sort_key_half(in0_0, r0, False)
    ordered2 = sort_rows(keys1, R0_BLOCK, SORT_THREADS, SORT_WIDTH)
    value3 = sorted_half(ordered2, tl.bfloat16, False)
    position4 = sorted_position(ordered2)
    tl.store(out0 + (x0 * 1024 + r0), value3)
    tl.store(out1 + (x0 * 1024 + r0), position4)
# grid 32768
# try {'XBLOCK': 1, 'R0_BLOCK': 1024, 'SORT_THREADS': 32, 'SORT_WIDTH': 8} warps 1
