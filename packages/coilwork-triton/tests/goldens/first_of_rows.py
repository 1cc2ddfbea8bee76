"""
sorted_rows.
"""

import triton
import triton.language as tl



@triton.jit
def sort_key_float(x, position, DESCENDING: tl.constexpr):
    bits = x.to(tl.int32, bitcast=True)
    sign = bits >> 31
    order = (bits ^ (sign & 0x7FFFFFFF)) - sign
    order = tl.where(x != x, 0x7FFFFFFF, order)
    if DESCENDING:
        order = order ^ -1
    return (order.to(tl.int64) << 16) | ((position << 1).to(tl.int32) | (sign & 1)).to(tl.int64)


@triton.jit
def sorted_float(keys, DTYPE: tl.constexpr, DESCENDING: tl.constexpr):
    order = (keys >> 16).to(tl.int32)
    if DESCENDING:
        order = order ^ -1
    bits = tl.where(order < 0, (order ^ 0x7FFFFFFF) + 1, order)
    bits = tl.where((order == 0) & ((keys & 1) != 0), -2147483648, bits)
    return bits.to(DTYPE, bitcast=True)


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
def sort_least(keys, RUN: tl.constexpr, COUNT: tl.constexpr, LENGTH: tl.constexpr, TURNS: tl.constexpr):
    # the COUNT least of each LENGTH keys in order: runs of COUNT are sorted; the least of two runs, one rising and one falling,
    # are the lesser of their elements in pairs (Shanbhag, Pirk and Madden, SIGMOD 2018). Runs of RUN keys are sorted already,
    # every second one falling; with TURNS, so are the results
    found = keys
    for log in tl.static_range(1, 16):
        if 2**log <= COUNT and 2**log > RUN:
            found = sort_merge(found, log, False)
    for half in tl.static_range(1, 16):
        if 2**half * COUNT <= LENGTH:
            found = tl.reshape(found, [found.numel // (2 * COUNT), 2, COUNT])
            found = tl.reshape(tl.min(found, 1), [keys.numel // 2**half])
            for log in tl.static_range(0, 16):
                if 2**log == COUNT:
                    found = sort_merge(found, log, 2**half * COUNT == LENGTH and not TURNS)
    return found


@triton.jit
def sort_first_of_all(
    keys, LENGTH: tl.constexpr, COUNT: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr, SHARE: tl.constexpr
):
    # the COUNT least of each row in order; SHARE threads hold a run together
    narrow: tl.constexpr = WIDTH if WIDTH < COUNT // SHARE else COUNT // SHARE
    deep: tl.constexpr = COUNT // SHARE // narrow
    found = tl.reshape(
        keys,
        [
            keys.numel // LENGTH,
            LENGTH // (THREADS * WIDTH) // deep,
            deep,
            THREADS // SHARE,
            SHARE,
            WIDTH // narrow,
            narrow,
        ],
    )
    found = tl.reshape(tl.permute(found, [0, 3, 1, 5, 4, 2, 6]), [keys.numel])
    return sort_least(found, 1, COUNT, LENGTH, False)


@triton.jit
def sort_first(
    keys,
    LENGTH: tl.constexpr,
    COUNT: tl.constexpr,
    THREADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARE: tl.constexpr,
    KEPT: tl.constexpr,
):
    # the COUNT least of each row in order. They are nearly always among the KEPT least of what each thread holds, which it finds
    # by itself. They need not be if all that some thread has kept comes before the last one found. Then the whole row is gone
    # through, unless no more than COUNT of it reach that one
    if KEPT == 0:
        found = sort_first_of_all(keys, LENGTH, COUNT, THREADS, WIDTH, SHARE)
    else:
        rows: tl.constexpr = keys.numel // LENGTH
        own: tl.constexpr = LENGTH // THREADS
        held = tl.reshape(keys, [rows, own // WIDTH, THREADS, WIDTH])
        held = tl.reshape(tl.permute(held, [0, 2, 1, 3]), [keys.numel])
        kept = sort_least(held, 1, KEPT, own, True)
        found = sort_least(kept, KEPT, COUNT, THREADS * KEPT, False)
        greatest = tl.max(tl.reshape(kept, [rows, THREADS, KEPT]), 2)
        last = tl.max(tl.reshape(found, [rows, COUNT]), 1, keep_dims=True)
        again = tl.max(tl.reshape((greatest < last).to(tl.int32), [rows * THREADS]), 0) > 0
        if rows == 1:
            if again:
                reached = tl.reshape(keys, [keys.numel]) <= tl.max(found, 0)
                again = tl.sum(reached.to(tl.int32), 0) > COUNT
        if again:
            found = sort_first_of_all(keys, LENGTH, COUNT, THREADS, WIDTH, SHARE)
    return found


@triton.jit
def sorted_rows(
    in0,
    out0,
    out1,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    SORT_THREADS: tl.constexpr,
    SORT_WIDTH: tl.constexpr,
    SORT_SHARE: tl.constexpr,
    SORT_KEPT: tl.constexpr,
):
    x0 = tl.program_id(0)
    r0 = tl.arange(0, R0_BLOCK)
    rmask = r0 < 4000
    c0 = tl.arange(0, 64)
    cmask = c0 < 50
    in0_0 = tl.load(in0 + (x0 * 4000 + r0), rmask)
    keys1 = sort_float_keys(tl.where(rmask, sort_key_float(in0_0, r0, True), 1125899906842624))
    ordered2 = sort_integer_keys(tl.reshape(sort_first(keys1, R0_BLOCK, 64, SORT_THREADS, SORT_WIDTH, SORT_SHARE, SORT_KEPT), (64,)))
    value3 = sorted_float(ordered2, tl.float32, True)
    position4 = sorted_position(ordered2)
    tl.store(out0 + (x0 * 50 + c0), value3, cmask)
    tl.store(out1 + (x0 * 50 + c0), position4, cmask)
# grid 16384
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'SORT_THREADS': 128, 'SORT_WIDTH': 4, 'SORT_SHARE': 8, 'SORT_KEPT': 8} warps 4
