"""
layer_norm_backward: one kernel for
  aten.native_layer_norm_backward.default model.py:21   x = self.ln_1(x)
"""

import triton
import triton.language as tl



@triton.jit
def combine_2_sums(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def layer_norm_backward(
    in0,
    in1,
    in2,
    in3,
    in4,
    out0,
    out1,
    out2,
    XBLOCK: tl.constexpr,
    WBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    x0 = tl.program_id(0)
    r0 = tl.arange(0, R0_BLOCK)[None, :]
    rmask = r0 < 768
    in1_0 = tl.load(in1 + r0, rmask).to(tl.float32)
    sum_lanes21 = tl.full([WBLOCK, R0_BLOCK], 0.0, tl.float32)
    sum_lanes22 = tl.full([WBLOCK, R0_BLOCK], 0.0, tl.float32)
    for w0_offset in tl.range(0, 19, WBLOCK, num_stages=STAGES):
        w0 = (w0_offset + tl.arange(0, WBLOCK))[:, None]
        wmask = w0 < 19
        lt1 = x0 * 19 + w0 < 5000
        in4_2 = tl.load(in4 + (x0 * 19 + w0), wmask & lt1, other=0.0)
        in0_3 = tl.load(in0 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt1, other=0.0).to(tl.float32)
        mul4 = in0_3 * in1_0
        in2_5 = tl.load(in2 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt1, other=0.0).to(tl.float32)
        in3_6 = tl.load(in3 + (x0 * 19 + w0), wmask & lt1, other=0.0)
        sub7 = in2_5 - in3_6
        mul8 = sub7 * in4_2
        mul9 = mul4 * mul8
        sum10, sum11 = tl.reduce((tl.where(rmask, mul4, 0.0), tl.where(rmask, mul9, 0.0)), 1, combine_2_sums, keep_dims=True)
        mul12 = sum10 * 0.0013020833333333333
        sub13 = mul4 - mul12
        mul14 = sum11 * 0.0013020833333333333
        mul15 = mul8 * mul14
        sub16 = sub13 - mul15
        mul17 = in4_2 * sub16
        mul18 = in0_3 * mul8
        where19 = tl.where(lt1, mul18, 0.0)
        where20 = tl.where(lt1, in0_3, 0.0)
        sum_lanes21 = sum_lanes21 + tl.where(wmask, where19, 0.0)
        sum_lanes22 = sum_lanes22 + tl.where(wmask, where20, 0.0)
        tl.store(out2 + (w0 * 768 + x0 * 14592 + r0), mul17.to(tl.bfloat16), wmask & rmask & lt1)
    sum23 = tl.sum(sum_lanes21, 0, keep_dims=True)
    sum24 = tl.sum(sum_lanes22, 0, keep_dims=True)
    tl.store(out0 + (x0 * 768 + r0), sum23, rmask)
    tl.store(out1 + (x0 * 768 + r0), sum24, rmask)
# grid 264
# try {'XBLOCK': 1, 'WBLOCK': 4, 'R0_BLOCK': 1024, 'STAGES': 3} warps 4
# try {'XBLOCK': 1, 'WBLOCK': 2, 'R0_BLOCK': 1024, 'STAGES': 4} warps 4
