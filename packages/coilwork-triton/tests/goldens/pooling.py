"""
stepped.
"""

import triton
import triton.language as tl



@triton.jit
def parted_4(run):
    even, odd = tl.split(tl.reshape(run, [run.shape[0], 2, 2]))
    a, c = tl.split(even)
    b, d = tl.split(odd)
    return a, b, c, d


@triton.jit
def parted_8(run):
    even, odd = tl.split(tl.reshape(run, [run.shape[0], 4, 2]))
    a, c, e, g = parted_4(even)
    b, d, f, h = parted_4(odd)
    return a, b, c, d, e, f, g, h


@triton.jit
def joined_4(a, b, c, d):
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [a.shape[0], 4])


@triton.jit
def joined_8(a, b, c, d, e, f, g, h):
    return tl.reshape(tl.join(joined_4(a, c, e, g), joined_4(b, d, f, h)), [a.shape[0], 8])


@triton.jit
def stepped(in0, out0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    x1 = xindex % 7
    in0_at0 = in0 + xindex * 16
    in0_1 = tl.load(in0_at0 + -1, x1 * 16 - 1 >= 0, other=float("-inf"))
    in0_2, in0_3, in0_4, in0_5, in0_6, in0_7, in0_8, in0_9 = parted_8(tl.load(in0_at0[:, None] + tl.arange(0, 8)[None, :]))
    maximum10 = tl.maximum(in0_1, in0_2, propagate_nan=tl.PropagateNan.ALL)
    maximum11 = tl.maximum(maximum10, in0_3, propagate_nan=tl.PropagateNan.ALL)
    maximum12 = tl.maximum(in0_3, in0_4, propagate_nan=tl.PropagateNan.ALL)
    maximum13 = tl.maximum(maximum12, in0_5, propagate_nan=tl.PropagateNan.ALL)
    maximum14 = tl.maximum(in0_5, in0_6, propagate_nan=tl.PropagateNan.ALL)
    maximum15 = tl.maximum(maximum14, in0_7, propagate_nan=tl.PropagateNan.ALL)
    maximum16 = tl.maximum(in0_7, in0_8, propagate_nan=tl.PropagateNan.ALL)
    maximum17 = tl.maximum(maximum16, in0_9, propagate_nan=tl.PropagateNan.ALL)
    in0_18, in0_19, in0_20, in0_21, in0_22, in0_23, in0_24, in0_25 = parted_8(tl.load((in0_at0 + 8)[:, None] + tl.arange(0, 8)[None, :]))
    maximum26 = tl.maximum(in0_9, in0_18, propagate_nan=tl.PropagateNan.ALL)
    maximum27 = tl.maximum(maximum26, in0_19, propagate_nan=tl.PropagateNan.ALL)
    maximum28 = tl.maximum(in0_19, in0_20, propagate_nan=tl.PropagateNan.ALL)
    maximum29 = tl.maximum(maximum28, in0_21, propagate_nan=tl.PropagateNan.ALL)
    maximum30 = tl.maximum(in0_21, in0_22, propagate_nan=tl.PropagateNan.ALL)
    maximum31 = tl.maximum(maximum30, in0_23, propagate_nan=tl.PropagateNan.ALL)
    maximum32 = tl.maximum(in0_23, in0_24, propagate_nan=tl.PropagateNan.ALL)
    maximum33 = tl.maximum(maximum32, in0_25, propagate_nan=tl.PropagateNan.ALL)
    step34 = joined_8(maximum11, maximum13, maximum15, maximum17, maximum27, maximum29, maximum31, maximum33)
    tl.store((out0 + xindex * 8)[:, None] + tl.arange(0, 8)[None, :], step34)
# grid -((-28672) // XBLOCK)
# try {'XBLOCK': 128} warps 4
