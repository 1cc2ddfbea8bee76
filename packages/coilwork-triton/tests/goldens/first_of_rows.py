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
def sort_wide(x):
    # the same numbers in 32 bits
    if x.dtype.is_floating():
        x = x.to(tl.float32)
    elif x.dtype != tl.uint32:
        x = x.to(tl.int32)
    return x


@triton.jit
def sort_order(x, DESCENDING: tl.constexpr):
    # numbers of 32 bits as integers that rise as the numbers come
    order = x.to(tl.int32, bitcast=True)
    if x.dtype == tl.float32:
        sign = order >> 31
        order = tl.where(x != x, 0x7FFFFFFF, (order ^ (sign & 0x7FFFFFFF)) - sign)
    if x.dtype == tl.uint32:
        order = order ^ -2147483648
    if DESCENDING:
        order = order ^ -1
    return order


@triton.jit
def sort_of_order(order, DTYPE: tl.constexpr, DESCENDING: tl.constexpr):
    # the numbers that sort_order made integers of, 0.0 for both zeros
    if DESCENDING:
        order = order ^ -1
    if DTYPE == tl.uint32:
        order = order ^ -2147483648
    if DTYPE == tl.float32:
        order = tl.where(order < 0, (order ^ 0x7FFFFFFF) + 1, order)
    return order.to(DTYPE, bitcast=True)


@triton.jit
def sort_greatest(a, b):
    # NaN is above all numbers
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sort_smallest(a, b):
    return tl.minimum(a, b)


@triton.jit
def sort_two_greatest(a, b, c, d):
    # of two pairs, the greater of each first
    return sort_greatest(a, c), sort_greatest(sort_smallest(a, c), sort_greatest(b, d))


@triton.jit
def sort_two_smallest(a, b, c, d):
    return sort_smallest(a, c), sort_smallest(sort_greatest(a, c), sort_smallest(b, d))


@triton.jit
def sort_bound(
    x, worst, COUNT: tl.constexpr, DESCENDING: tl.constexpr, GROUPS: tl.constexpr, THREADS: tl.constexpr, WIDTH: tl.constexpr
):
    # a number for each row of x that COUNT of its elements reach: the COUNT-th of the best ones of its groups, each of which is
    # one thread's; with fewer than twice as many groups half as many of their second best ones, which a thread finds by itself
    rows: tl.constexpr = x.shape[0]
    among: tl.constexpr = COUNT if GROUPS >= 2 * COUNT else COUNT // 2
    held = tl.reshape(x, [rows, x.shape[1] // (THREADS * WIDTH), THREADS, WIDTH])
    held = tl.reshape(tl.permute(held, [0, 2, 1, 3]), [rows * GROUPS, x.shape[1] // GROUPS])
    if GROUPS >= 2 * COUNT:
        if DESCENDING:
            best = tl.reduce(held, 1, sort_greatest)
        else:
            best = tl.reduce(held, 1, sort_smallest)
    else:
        none = tl.full(held.shape, worst, held.dtype)
        if DESCENDING:
            _, best = tl.reduce((held, none), 1, sort_two_greatest)
        else:
            _, best = tl.reduce((held, none), 1, sort_two_smallest)
    found = sort_least(sort_order(best, DESCENDING), 1, among, GROUPS // 2, True)
    found = tl.min(tl.reshape(found, [rows, 2, among]), 1)
    return sort_of_order(tl.max(found, 1), x.dtype, DESCENDING)


@triton.jit
def sort_of_inside(x, inside):
    # a number of each row, 0 of lanes that are no rows
    if inside is not None:
        x = tl.where(tl.reshape(inside, x.shape), x, 0)
    return x


@triton.jit
def sort_bisected(keys, inside, COUNT: tl.constexpr, ROOM: tl.constexpr):
    # for each row a number that at least COUNT and at most ROOM of its keys, all different, do not exceed
    low = tl.min(keys, 1)
    high = tl.max(keys, 1)
    among = sort_of_inside(tl.full([keys.shape[0]], keys.shape[1], tl.int32), inside)
    while tl.max(among, 0) > ROOM:
        middle = (low & high) + ((low ^ high) >> 1)
        below = tl.sum((keys <= middle[:, None]).to(tl.int32), 1)
        halved = (among > ROOM) & (below >= COUNT)
        low = tl.where((among > ROOM) & (below < COUNT), middle, low)
        high = tl.where(halved, middle, high)
        among = tl.where(halved, below, among)
    return high


@triton.jit
def sort_words(flags):
    # 32 flags in a word
    bits = tl.reshape(flags, [flags.numel // 32, 32])
    bits = tl.where(bits, tl.full([1, 1], 1, tl.int32) << tl.arange(0, 32)[None, :], 0)
    return tl.sum(bits, 1).to(tl.uint32, bitcast=True)


@triton.jit
def sort_ones(words):
    # how many bits are set
    ones = words - ((words >> 1) & 0x55555555)
    ones = (ones & 0x33333333) + ((ones >> 2) & 0x33333333)
    ones = (ones + (ones >> 4)) & 0x0F0F0F0F
    return ((ones * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def sort_nth(words, n):
    # where the bit is that is set after n others: its byte by running sums of ones in bytes, then the half of it, and so on. If there
    # are not so many, any place
    pairs = words - ((words >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    sums = ((fours + (fours >> 4)) & 0x0F0F0F0F) * 0x01010101
    n = n.to(tl.uint32)
    passed = ((n * 0x01010101 | 0x80808080) - sums) & 0x80808080
    at = ((((passed >> 7) * 0x01010101) >> 24) << 3) & 31
    n -= ((sums << 8) >> at) & 255
    for log in tl.static_range(2, -1, -1):
        parts = fours if log == 2 else (pairs if log == 1 else words)
        ones = (parts >> at) & (2 ** (2**log) - 1)
        upper = n >= ones
        n = tl.where(upper, n - ones, n)
        at = tl.where(upper, at + 2**log, at)
    return at.to(tl.int32)


@triton.jit
def sort_places(words, ones, ROOM: tl.constexpr):
    # where the set bits of each row of words are, in rows of ROOM; what is behind the last one is any place of the row
    rows: tl.constexpr = ones.shape[0]
    each: tl.constexpr = ones.shape[1]
    before = tl.reshape(tl.cumsum(ones, 1) - ones, [rows * each])
    slot = tl.arange(0, rows * ROOM)
    word = slot // ROOM * each
    slot = slot % ROOM
    for log in tl.static_range(1, 16):
        if 2**log <= each:
            # the last word that not more come before
            later = word + each // 2**log
            word = tl.where(tl.gather(before, later, 0) <= slot, later, word)
    bit = sort_nth(tl.gather(words, word, 0), slot - tl.gather(before, word, 0))
    return word * 32 + bit


@triton.jit
def sort_apart(keys, LOG: tl.constexpr, LAST: tl.constexpr, DEEP: tl.constexpr, WIDE: tl.constexpr):
    # sort_merge of keys whose order is that of WIDE runs of DEEP, keys of a run being WIDE apart
    if LAST == 0:
        keys = sort_turn(keys, 2**LOG * WIDE if 2**LOG < DEEP else 2**LOG // DEEP)
    for step in tl.static_range(LOG):
        if 2 ** (LOG - 1 - step) < DEEP:
            keys = sort_exchange(keys, 2 ** (LOG - 1 - step) * WIDE)
        else:
            keys = sort_exchange(keys, 2 ** (LOG - 1 - step) // DEEP)
    if LAST == 0:
        keys = sort_turn(keys, 2**LOG * WIDE if 2**LOG < DEEP else 2**LOG // DEEP)
    return keys


@triton.jit
def sort_few(keys, ROOM: tl.constexpr, SPREAD: tl.constexpr):
    # rows of ROOM keys, a power of two, in order. Of SPREAD threads each has every SPREAD-th key: these are exchanged most
    deep: tl.constexpr = ROOM // SPREAD if SPREAD < ROOM else 1
    for log in tl.static_range(1, 16):
        if 2**log <= ROOM:
            keys = sort_apart(keys, log, 2**log == ROOM, deep, ROOM // deep)
    keys = tl.reshape(keys, [keys.numel // ROOM, deep, ROOM // deep])
    return tl.reshape(tl.permute(keys, [0, 2, 1]), [keys.numel])


@triton.jit
def sort_of_rows(x, row):
    # a number of each row, by which row it is
    if x.numel == 1:
        found = tl.max(x, 0)
    else:
        found = tl.gather(x, row, 0)
    return found


@triton.jit
def sort_by_digits(x, taken, DESCENDING: tl.constexpr, ROOM: tl.constexpr, SPREAD: tl.constexpr):
    # where the elements of each row of ROOM are in order, those not taken last. A key is a digit and where the element is. One digit
    # does for numbers that are as close as the best ones of a row mostly are; else digits of 16 bits, the lower ones first
    slot = tl.arange(0, x.numel)
    order = sort_order(sort_wide(x), DESCENDING)
    most: tl.constexpr = 4294967296 // ROOM - 1
    found = slot
    passes = 1
    if x.dtype.primitive_bitwidth <= 16:
        if x.dtype.is_floating():
            # the lower bits are all alike
            order = order >> 13
        above = tl.where(taken, order + 1048576, most).to(tl.uint32, bitcast=True)
        digit = above
    else:
        least = tl.min(tl.reshape(tl.where(taken, order, 2147483647), [x.numel // ROOM, ROOM]), 1)
        above = (order - sort_of_rows(least, slot // ROOM)).to(tl.uint32, bitcast=True)
        above = tl.where(taken, above, 4294967295)
        digit = tl.minimum(above, most)
        if tl.max(tl.where(taken, above, 0), 0) > most:
            passes = 2
            digit = above & 65535
    for _ in range(passes):
        keys = (digit * ROOM | (slot % ROOM).to(tl.uint32)).to(tl.int32, bitcast=True) ^ -2147483648
        at = (sort_few(keys, ROOM, SPREAD) & (ROOM - 1)) | (slot & -ROOM)
        found = tl.gather(found, at, 0)
        digit = tl.gather(above, at, 0) >> 16
    return found


@triton.jit
def sort_first_of_few(
    x,
    position,
    valid,
    inside,
    KEY: tl.constexpr,
    LARGEST: tl.constexpr,
    DESCENDING: tl.constexpr,
    LENGTH: tl.constexpr,
    COUNT: tl.constexpr,
    THREADS: tl.constexpr,
    WIDTH: tl.constexpr,
    GROUPS: tl.constexpr,
    ROOM: tl.constexpr,
    SPREAD: tl.constexpr,
):
    # the COUNT first elements of each row in order, and where they were. They are looked for among those that reach a bound, at
    # most ROOM. If these are more, or too few as NaN is not compared, as many are found by halving the range of keys
    rows: tl.constexpr = x.numel // LENGTH
    wide = sort_wide(x)
    if x.dtype.is_floating():
        worst: tl.constexpr = float("-inf") if DESCENDING else float("inf")
    elif x.dtype == tl.uint32:
        worst: tl.constexpr = 0 if DESCENDING else 4294967295
    else:
        worst: tl.constexpr = -2147483648 if DESCENDING else 2147483647
    if valid is not None:
        wide = tl.where(valid, wide, worst)
    wide = tl.reshape(wide, [rows, LENGTH])
    bound = sort_bound(wide, worst, COUNT, DESCENDING, GROUPS, THREADS, WIDTH)[:, None]
    if DESCENDING:
        reach = (wide < bound) == 0
    else:
        reach = wide <= bound
    if valid is not None:
        reach = reach & tl.reshape(tl.broadcast_to(valid, x.shape), [rows, LENGTH])
    words = sort_words(reach)
    ones = tl.reshape(sort_ones(words), [rows, LENGTH // 32])
    total = tl.sum(ones, 1)
    if tl.max(sort_of_inside(((total > ROOM) | (total < COUNT)).to(tl.int32), inside), 0) > 0:
        keys = KEY(x, position, DESCENDING)
        if valid is not None:
            keys = tl.where(valid, keys, LARGEST)
        keys = tl.reshape(keys, [rows, LENGTH])
        words = sort_words(keys <= sort_bisected(keys, inside, COUNT, ROOM)[:, None])
        ones = tl.reshape(sort_ones(words), [rows, LENGTH // 32])
        total = tl.sum(ones, 1)
    place = sort_places(words, ones, ROOM)
    total = sort_of_inside(total, inside)
    few = tl.gather(tl.reshape(x, [x.numel]), place, 0)
    slot = tl.arange(0, rows * ROOM)
    taken = slot % ROOM < sort_of_rows(total, slot // ROOM)
    found = sort_by_digits(few, taken, DESCENDING, ROOM, SPREAD)
    found = tl.permute(tl.reshape(found, [rows, ROOM // COUNT, COUNT]), [0, 2, 1])
    first = tl.arange(0, ROOM // COUNT)[None, None, :] == 0
    found = tl.reshape(tl.sum(tl.where(first, found, 0), 2), [rows * COUNT])
    return tl.gather(few, found, 0), tl.gather(place, found, 0) & (LENGTH - 1)


@triton.jit
def sort_first(
    x,
    position,
    valid,
    inside,
    KEY: tl.constexpr,
    VALUE: tl.constexpr,
    DTYPE: tl.constexpr,
    FLOATS: tl.constexpr,
    LARGEST: tl.constexpr,
    DESCENDING: tl.constexpr,
    LENGTH: tl.constexpr,
    COUNT: tl.constexpr,
    THREADS: tl.constexpr,
    WIDTH: tl.constexpr,
    SHARE: tl.constexpr,
    GROUPS: tl.constexpr,
    ROOM: tl.constexpr,
    SPREAD: tl.constexpr,
):
    # the values of the COUNT first elements of each row in order, and their positions
    if ROOM > 0:
        value, place = sort_first_of_few(
            x, position, valid, inside, KEY, LARGEST, DESCENDING, LENGTH, COUNT, THREADS, WIDTH, GROUPS, ROOM, SPREAD
        )
        place = place.to(tl.int64)
    else:
        keys = KEY(x, position, DESCENDING)
        if valid is not None:
            keys = tl.where(valid, keys, LARGEST)
        if FLOATS:
            keys = sort_float_keys(keys)
        keys = sort_first_of_all(keys, LENGTH, COUNT, THREADS, WIDTH, SHARE)
        if FLOATS:
            keys = sort_integer_keys(keys)
        value = VALUE(keys, DTYPE, DESCENDING)
        place = sorted_position(keys)
    return value, place


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
    SORT_GROUPS: tl.constexpr,
    SORT_ROOM: tl.constexpr,
    SORT_SPREAD: tl.constexpr,
):
    x0 = tl.program_id(0)
    r0 = tl.arange(0, R0_BLOCK)
    rmask = r0 < 4000
    c0 = tl.arange(0, 64)
    cmask = c0 < 50
    in0_0 = tl.load(in0 + (x0 * 4000 + r0), rmask)
    firsts1, places2 = sort_first(in0_0, r0, rmask, None, sort_key_float, sorted_float, tl.float32, True, 1125899906842624, True, R0_BLOCK, 64, SORT_THREADS, SORT_WIDTH, SORT_SHARE, SORT_GROUPS, SORT_ROOM, SORT_SPREAD)
    value3 = tl.reshape(firsts1, (64,))
    position4 = tl.reshape(places2, (64,))
    tl.store(out0 + (x0 * 50 + c0), value3, cmask)
    tl.store(out1 + (x0 * 50 + c0), position4, cmask)
# grid 16384
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'SORT_THREADS': 128, 'SORT_WIDTH': 4, 'SORT_SHARE': 8, 'SORT_GROUPS': 128, 'SORT_ROOM': 128, 'SORT_SPREAD': 128} warps 4
