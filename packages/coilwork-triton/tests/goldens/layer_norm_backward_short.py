"""
layer_norm_backward: one kernel for
  aten.native_layer_norm_backward.default model.py:21   x = self.ln_1(x)
"""

import triton
import triton.language as tl



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
        lt1 = x0 * 19 + w0 < tl.full([], 5000, tl.int64)
        in4_2 = tl.load(in4 + (x0 * 19 + w0), wmask & lt1, other=0.0)
        in0_3 = tl.load(in0 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt1, other=0.0).to(tl.float32)
        mul4 = in0_3 * in1_0
        sum5 = tl.sum(tl.where(rmask, mul4, 0.0), 1, keep_dims=True)
        mul6 = sum5 * 0.0013020833333333333
        sub7 = mul4 - mul6
        in2_8 = tl.load(in2 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt1, other=0.0).to(tl.float32)
        in3_9 = tl.load(in3 + (x0 * 19 + w0), wmask & lt1, other=0.0)
        sub10 = in2_8 - in3_9
        mul11 = sub10 * in4_2
        mul12 = mul4 * mul11
        sum13 = tl.sum(tl.where(rmask, mul12, 0.0), 1, keep_dims=True)
        mul14 = sum13 * 0.0013020833333333333
        mul15 = mul11 * mul14
        sub16 = sub7 - mul15
        mul17 = in4_2 * sub16
        mul18 = in0_3 * mul11
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
# try {'XBLOCK': 1, 'WBLOCK': 4, 'R0_BLOCK': 1024, 'STAGES': 3} warps 8
# try {'XBLOCK': 1, 'WBLOCK': 2, 'R0_BLOCK': 1024, 'STAGES': 3} warps 4
# try {'XBLOCK': 1, 'WBLOCK': 4, 'R0_BLOCK': 1024, 'STAGES': 1} warps 8
