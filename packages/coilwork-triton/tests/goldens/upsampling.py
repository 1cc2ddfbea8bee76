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
def joined_4(a, b, c, d):
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [a.shape[0], 4])


@triton.jit
def joined_8(a, b, c, d, e, f, g, h):
    return tl.reshape(tl.join(joined_4(a, c, e, g), joined_4(b, d, f, h)), [a.shape[0], 8])


@triton.jit
def stepped(in0, out0, XBLOCK: tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)
    x0 = xindex // 32
    x1 = xindex % 32
    in0_0 = tl.load(in0 + tl.maximum((xindex + 32) // 64 - 1, 0) * 128 + tl.maximum(x1 * 4 - 1, 0)).to(tl.float32)
    in0_1 = tl.load(in0 + tl.maximum((xindex + 32) // 64 - 1, 0) * 128 + tl.maximum(x1 * 4, 1)).to(tl.float32)
    sub2 = in0_1 - in0_0
    mul3 = (tl.maximum(x1 * 16 - 1, 0) % 4).to(tl.float32) * 0.25
    mul4 = sub2 * mul3
    add5 = in0_0 + mul4
    in0_6 = tl.load(in0 + tl.minimum(tl.maximum((xindex + 32) // 64, 1), 127) * 128 + tl.maximum(x1 * 4 - 1, 0)).to(tl.float32)
    in0_7 = tl.load(in0 + tl.minimum(tl.maximum((xindex + 32) // 64, 1), 127) * 128 + tl.maximum(x1 * 4, 1)).to(tl.float32)
    sub8 = in0_7 - in0_6
    mul9 = sub8 * mul3
    add10 = in0_6 + mul9
    sub11 = add10 - add5
    mul12 = (tl.maximum(x0 * 2 - 1, 0) % 4).to(tl.float32) * 0.25
    mul13 = sub11 * mul12
    add14 = add5 + mul13
    in0_at15 = in0 + tl.maximum((xindex + 32) // 64 - 1, 0) * 128 + x1 * 4
    in0_16, in0_17, in0_18, in0_19 = parted_4(tl.load(in0_at15[:, None] + tl.arange(0, 4)[None, :]))
    in0_20 = in0_16.to(tl.float32)
    in0_21 = in0_17.to(tl.float32)
    sub22 = in0_21 - in0_20
    mul23 = sub22 * 0.25
    add24 = in0_20 + mul23
    in0_at25 = in0 + tl.minimum(tl.maximum((xindex + 32) // 64, 1), 127) * 128 + x1 * 4
    in0_26, in0_27, in0_28, in0_29 = parted_4(tl.load(in0_at25[:, None] + tl.arange(0, 4)[None, :]))
    in0_30 = in0_26.to(tl.float32)
    in0_31 = in0_27.to(tl.float32)
    sub32 = in0_31 - in0_30
    mul33 = sub32 * 0.25
    add34 = in0_30 + mul33
    sub35 = add34 - add24
    mul36 = sub35 * mul12
    add37 = add24 + mul36
    mul38 = sub22 * 0.75
    add39 = in0_20 + mul38
    mul40 = sub32 * 0.75
    add41 = in0_30 + mul40
    sub42 = add41 - add39
    mul43 = sub42 * mul12
    add44 = add39 + mul43
    in0_45 = in0_18.to(tl.float32)
    sub46 = in0_45 - in0_21
    mul47 = sub46 * 0.25
    add48 = in0_21 + mul47
    in0_49 = in0_28.to(tl.float32)
    sub50 = in0_49 - in0_31
    mul51 = sub50 * 0.25
    add52 = in0_31 + mul51
    sub53 = add52 - add48
    mul54 = sub53 * mul12
    add55 = add48 + mul54
    mul56 = sub46 * 0.75
    add57 = in0_21 + mul56
    mul58 = sub50 * 0.75
    add59 = in0_31 + mul58
    sub60 = add59 - add57
    mul61 = sub60 * mul12
    add62 = add57 + mul61
    in0_63 = in0_19.to(tl.float32)
    sub64 = in0_63 - in0_45
    mul65 = sub64 * 0.25
    add66 = in0_45 + mul65
    in0_67 = in0_29.to(tl.float32)
    sub68 = in0_67 - in0_49
    mul69 = sub68 * 0.25
    add70 = in0_49 + mul69
    sub71 = add70 - add66
    mul72 = sub71 * mul12
    add73 = add66 + mul72
    mul74 = sub64 * 0.75
    add75 = in0_45 + mul74
    mul76 = sub68 * 0.75
    add77 = in0_49 + mul76
    sub78 = add77 - add75
    mul79 = sub78 * mul12
    add80 = add75 + mul79
    in0_81 = tl.load(in0 + tl.maximum((xindex + 32) // 64 - 1, 0) * 128 + tl.minimum(x1 * 4 + 4, 127)).to(tl.float32)
    sub82 = in0_81 - in0_63
    mul83 = sub82 * 0.25
    add84 = in0_63 + mul83
    in0_85 = tl.load(in0 + tl.minimum(tl.maximum((xindex + 32) // 64, 1), 127) * 128 + tl.minimum(x1 * 4 + 4, 127)).to(tl.float32)
    sub86 = in0_85 - in0_67
    mul87 = sub86 * 0.25
    add88 = in0_67 + mul87
    sub89 = add88 - add84
    mul90 = sub89 * mul12
    add91 = add84 + mul90
    step92 = joined_8(add14.to(tl.bfloat16), add37.to(tl.bfloat16), add44.to(tl.bfloat16), add55.to(tl.bfloat16), add62.to(tl.bfloat16), add73.to(tl.bfloat16), add80.to(tl.bfloat16), add91.to(tl.bfloat16))
    tl.store((out0 + xindex * 8)[:, None] + tl.arange(0, 8)[None, :], step92)
# grid -((-8192) // XBLOCK)
# try {'XBLOCK': 32} warps 1
