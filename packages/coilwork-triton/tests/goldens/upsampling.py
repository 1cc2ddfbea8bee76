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
    in0_0 = tl.load(in0 + tl.maximum(x0 - 1, 0) * 128 + tl.maximum(x1 * 4 - 1, 0)).to(tl.float32)
    in0_1 = tl.load(in0 + tl.maximum(x0 - 1, 0) * 128 + tl.maximum(x1 * 4, 1)).to(tl.float32)
    sub2 = in0_1 - in0_0
    mul3 = (tl.maximum(x1 * 16 - 1, 0) % 4).to(tl.float32) * 0.25
    mul4 = sub2 * mul3
    add5 = in0_0 + mul4
    in0_6 = tl.load(in0 + tl.minimum(tl.maximum(x0, 1), 127) * 128 + tl.maximum(x1 * 4 - 1, 0)).to(tl.float32)
    in0_7 = tl.load(in0 + tl.minimum(tl.maximum(x0, 1), 127) * 128 + tl.maximum(x1 * 4, 1)).to(tl.float32)
    sub8 = in0_7 - in0_6
    mul9 = sub8 * mul3
    add10 = in0_6 + mul9
    sub11 = add10 - add5
    mul12 = (tl.maximum(x0 * 4 - 3, 0) % 4).to(tl.float32) * 0.25
    mul13 = sub11 * mul12
    add14 = add5 + mul13
    ge15 = x0 * 2 - 1 >= 0
    in0_at16 = in0 + tl.maximum(x0 - 1, 0) * 128 + x1 * 4
    in0_17, in0_18, in0_19, in0_20 = parted_4(tl.load(in0_at16[:, None] + tl.arange(0, 4)[None, :]))
    in0_21 = in0_17.to(tl.float32)
    in0_22 = in0_18.to(tl.float32)
    sub23 = in0_22 - in0_21
    mul24 = sub23 * 0.25
    add25 = in0_21 + mul24
    in0_at26 = in0 + tl.minimum(tl.maximum(x0, 1), 127) * 128 + x1 * 4
    in0_27, in0_28, in0_29, in0_30 = parted_4(tl.load(in0_at26[:, None] + tl.arange(0, 4)[None, :]))
    in0_31 = in0_27.to(tl.float32)
    in0_32 = in0_28.to(tl.float32)
    sub33 = in0_32 - in0_31
    mul34 = sub33 * 0.25
    add35 = in0_31 + mul34
    sub36 = add35 - add25
    mul37 = sub36 * mul12
    add38 = add25 + mul37
    mul39 = sub23 * 0.75
    add40 = in0_21 + mul39
    mul41 = sub33 * 0.75
    add42 = in0_31 + mul41
    sub43 = add42 - add40
    mul44 = sub43 * mul12
    add45 = add40 + mul44
    in0_46 = in0_19.to(tl.float32)
    sub47 = in0_46 - in0_22
    mul48 = sub47 * 0.25
    add49 = in0_22 + mul48
    in0_50 = in0_29.to(tl.float32)
    sub51 = in0_50 - in0_32
    mul52 = sub51 * 0.25
    add53 = in0_32 + mul52
    sub54 = add53 - add49
    mul55 = sub54 * mul12
    add56 = add49 + mul55
    mul57 = sub47 * 0.75
    add58 = in0_22 + mul57
    mul59 = sub51 * 0.75
    add60 = in0_32 + mul59
    sub61 = add60 - add58
    mul62 = sub61 * mul12
    add63 = add58 + mul62
    in0_64 = in0_20.to(tl.float32)
    sub65 = in0_64 - in0_46
    mul66 = sub65 * 0.25
    add67 = in0_46 + mul66
    in0_68 = in0_30.to(tl.float32)
    sub69 = in0_68 - in0_50
    mul70 = sub69 * 0.25
    add71 = in0_50 + mul70
    sub72 = add71 - add67
    mul73 = sub72 * mul12
    add74 = add67 + mul73
    mul75 = sub65 * 0.75
    add76 = in0_46 + mul75
    mul77 = sub69 * 0.75
    add78 = in0_50 + mul77
    sub79 = add78 - add76
    mul80 = sub79 * mul12
    add81 = add76 + mul80
    in0_82 = tl.load(in0 + tl.maximum(x0 - 1, 0) * 128 + tl.minimum(x1 * 4 + 4, 127)).to(tl.float32)
    sub83 = in0_82 - in0_64
    mul84 = sub83 * 0.25
    add85 = in0_64 + mul84
    in0_86 = tl.load(in0 + tl.minimum(tl.maximum(x0, 1), 127) * 128 + tl.minimum(x1 * 4 + 4, 127)).to(tl.float32)
    sub87 = in0_86 - in0_68
    mul88 = sub87 * 0.25
    add89 = in0_68 + mul88
    sub90 = add89 - add85
    mul91 = sub90 * mul12
    add92 = add85 + mul91
    mul93 = (tl.maximum(x0 * 4 - 1, 0) % 4).to(tl.float32) * 0.25
    mul94 = sub11 * mul93
    add95 = add5 + mul94
    lt96 = x0 * 2 < 256
    mul97 = sub36 * mul93
    add98 = add25 + mul97
    mul99 = sub43 * mul93
    add100 = add40 + mul99
    mul101 = sub54 * mul93
    add102 = add49 + mul101
    mul103 = sub61 * mul93
    add104 = add58 + mul103
    mul105 = sub72 * mul93
    add106 = add67 + mul105
    mul107 = sub79 * mul93
    add108 = add76 + mul107
    mul109 = sub90 * mul93
    add110 = add85 + mul109
    step111 = joined_8(add14.to(tl.bfloat16), add38.to(tl.bfloat16), add45.to(tl.bfloat16), add56.to(tl.bfloat16), add63.to(tl.bfloat16), add74.to(tl.bfloat16), add81.to(tl.bfloat16), add92.to(tl.bfloat16))
    tl.store((out0 + (x0 * 512 + x1 * 8 - 256))[:, None] + tl.arange(0, 8)[None, :], step111, ge15[:, None])
    step112 = joined_8(add95.to(tl.bfloat16), add98.to(tl.bfloat16), add100.to(tl.bfloat16), add102.to(tl.bfloat16), add104.to(tl.bfloat16), add106.to(tl.bfloat16), add108.to(tl.bfloat16), add110.to(tl.bfloat16))
    tl.store((out0 + (x0 * 512 + x1 * 8))[:, None] + tl.arange(0, 8)[None, :], step112, lt96[:, None])
# grid -((-4128) // XBLOCK)
# try {'XBLOCK': 32} warps 1
