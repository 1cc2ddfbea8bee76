"""
cumulative_logcumsumexp.
"""

import triton
import triton.language as tl



@triton.jit
def signbit(x):
    if x.dtype == tl.float64:
        negative = x.to(tl.int64, bitcast=True) < 0
    else:
        negative = x.to(tl.int32, bitcast=True) < 0
    return negative


@triton.jit
def whole_power(x, y):
    # by squaring, for whole |y| <= 64: exact where the result is
    left = tl.abs(y).to(tl.int32)
    factor = x
    result = y * 0.0 + 1.0
    for _ in tl.static_range(7):
        result = tl.where((left & 1) == 1, result * factor, result)
        factor = factor * factor
        left = left >> 1
    return tl.where(y < 0.0, 1.0 / result, result)


@triton.jit
def power(x, y):
    # f32 goes through f64, whose logarithm has digits to spare
    base = x.to(tl.float64)
    exponent = y.to(tl.float64)
    a = tl.abs(base)
    result = tl.exp(exponent * tl.log(a))
    whole = tl.floor(exponent) == exponent
    half = exponent * 0.5
    odd = whole & (tl.floor(half) != half) & (tl.abs(exponent) < float("inf"))
    result = tl.where(signbit(base) & odd, result * -1.0, result)
    finite = (a < float("inf")) & (tl.abs(exponent) < float("inf"))
    if x.dtype == tl.float64:
        few = whole & (tl.abs(exponent) <= 64.0)
        near = whole_power(base, tl.where(few, exponent, 1.0))
        result = tl.where(few & (tl.abs(near) < float("inf")) & (near != 0.0), near, result)
    result = tl.where((base < 0.0) & finite & (whole == 0), float("nan"), result)
    one = (exponent == 0.0) | (base == 1.0) | ((base == -1.0) & (tl.abs(exponent) == float("inf")))
    return tl.where(one, 1.0, result).to(x.dtype)


@triton.jit
def combine_logsumexp(m, s, n, t):
    # sums s and t of exp(. - m) and exp(. - n); equal infinities would give inf - inf
    apart = tl.exp(-tl.abs(tl.where(m == n, 0.0, m - n)))
    total = tl.where(m > n, s + t * apart, t + s * apart)
    return tl.maximum(m, n, propagate_nan=tl.PropagateNan.ALL), total


@triton.jit
def log_of_normal(x):
    # of a positive number that is not subnormal, of inf or NaN. x = 2^k * (1 + f) with 1 + f in [2/3, 4/3), where the polynomial is
    # off by 1.1e-8 at most
    if x.dtype == tl.float64:
        result = tl.log(x)
    else:
        bits = x.to(tl.int32, bitcast=True)
        power = (bits - 0x3F2AAAAB) & -0x800000
        f = (bits - power).to(tl.float32, bitcast=True) - 1.0
        p = 0.14026342 * f - 0.15388556
        p = p * f + 0.1399581
        p = p * f - 0.16415958
        p = p * f + 0.20011169
        p = p * f - 0.25007819
        p = p * f + 0.33333198
        p = p * f - 0.49999936
        # log(2) / 2^23
        near = power.to(tl.float32) * 8.262958294867817e-8 + (p * (f * f) + f)
        result = tl.where(x < float("inf"), near, x)
    return result


@triton.jit
def exclusive_logsumexp(e, ei, t, ti, f, fi, u, ui):
    before, beside = combine_logsumexp(t, ti, f, fi)
    upto, there = combine_logsumexp(t, ti, u, ui)
    return before, beside, upto, there


@triton.jit
def running_logsumexp(x, inside, AXIS: tl.constexpr, REVERSE: tl.constexpr):
    # m and s of which m + log(s) is the running value. While no sum is small beside the largest value of all, sums of exponentials
    # against that one are as good as against the largest so far: a scan of additions. Its sums are below 2^-11 or NaN before the
    # first large value and where only infinities came so far. Lanes that are no points do not count: of those that come first the sum is 0
    most = tl.max(x, AXIS, keep_dims=True)
    shift = tl.broadcast_to(tl.where(tl.abs(most) < float("inf"), most, 0.0), x.shape)
    near = tl.cumsum(tl.exp(x - shift), AXIS, reverse=REVERSE)
    least = near
    if inside is not None:
        least = tl.where(inside, near, 1.0)
    if tl.min(least) > 0.00048828125:
        m = shift
        if inside is not None:
            m = tl.where(near == 0.0, float("-inf"), shift)
        s = near
    else:
        m, s = tl.associative_scan((x, tl.full(x.shape, 1.0, x.dtype)), AXIS, combine_logsumexp, reverse=REVERSE)
    return m, s


@triton.jit
def dealt_in_runs(LENGTH: tl.constexpr, RUN: tl.constexpr):
    # positions of which a thread gets RUN neighbours: of a block, threads are given one after the other, then the next to each
    lane = tl.arange(0, LENGTH)
    return lane % (LENGTH // RUN) * RUN + lane // (LENGTH // RUN)


@triton.jit
def cumulative_logcumsumexp(
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
    carry_total2 = tl.full([XBLOCK, 1], 0.0, tl.float32)
    for r0_offset in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0 = (r0_offset + dealt_in_runs(R0_BLOCK, RUN))[None, :]
        rmask = r0 < 5000
        in0_0 = tl.load(in0 + (r0 * 4096 + x0), rmask).to(tl.float32)
        runs3 = tl.reshape(tl.broadcast_to(tl.where(rmask, in0_0, float("-inf")), (XBLOCK, R0_BLOCK)), (XBLOCK, RUN, R0_BLOCK // RUN))
        largest4, total5 = running_logsumexp(runs3, tl.reshape(tl.broadcast_to(rmask, (XBLOCK, R0_BLOCK)), (XBLOCK, RUN, R0_BLOCK // RUN)), 1, False)
        whole6 = tl.sum(tl.where((tl.arange(0, RUN) == RUN - 1)[None, :, None], largest4, tl.zeros_like(largest4)), 1)
        whole7 = tl.sum(tl.where((tl.arange(0, RUN) == RUN - 1)[None, :, None], total5, tl.zeros_like(total5)), 1)
        before8, before9, upto10, upto11 = tl.associative_scan((tl.full([XBLOCK, R0_BLOCK // RUN], float("-inf"), tl.float32), tl.full([XBLOCK, R0_BLOCK // RUN], 0.0, tl.float32), whole6, whole7), 1, exclusive_logsumexp)
        largest12, total13 = combine_logsumexp(carry1, carry_total2, before8, before9)
        block14 = tl.sum(tl.where((tl.arange(0, R0_BLOCK // RUN) == R0_BLOCK // RUN - 1)[None, :], upto10, tl.zeros_like(upto10)), 1, keep_dims=True)
        block15 = tl.sum(tl.where((tl.arange(0, R0_BLOCK // RUN) == R0_BLOCK // RUN - 1)[None, :], upto11, tl.zeros_like(upto11)), 1, keep_dims=True)
        largest16, total17 = combine_logsumexp(carry1, carry_total2, block14, block15)
        carry1 = largest16
        carry_total2 = total17
        largest18, total19 = combine_logsumexp(largest12[:, None, :], total13[:, None, :], largest4, total5)
        running20 = tl.reshape(largest18, (XBLOCK, R0_BLOCK))
        running21 = tl.reshape(total19, (XBLOCK, R0_BLOCK))
        running22 = running20 + log_of_normal(running21)
        tl.store(out0 + (r0 * 4096 + x0), running22.to(tl.bfloat16), rmask)
# grid -((-4096) // XBLOCK)
# try {'XBLOCK': 32, 'R0_BLOCK': 256, 'STAGES': 3, 'RUN': 4} warps 8
# try {'XBLOCK': 32, 'R0_BLOCK': 128, 'STAGES': 3, 'RUN': 4} warps 4
# try {'XBLOCK': 32, 'R0_BLOCK': 128, 'STAGES': 4, 'RUN': 2} warps 8
