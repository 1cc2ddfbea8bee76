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
    sum_lanes22 = tl.full([WBLOCK, R0_BLOCK], 0.0, tl.float32)
    sum_lanes23 = tl.full([WBLOCK, R0_BLOCK], 0.0, tl.float32)
    for w0_offset in tl.range(0, 19, WBLOCK, num_stages=STAGES):
        w0 = (w0_offset + tl.arange(0, WBLOCK))[:, None]
        wmask = w0 < 19
        index1 = tl.cast(x0 * 19 + w0, tl.int64)
        lt2 = index1 < tl.full([], 5000, tl.int64)
        in4_3 = tl.load(in4 + (x0 * 19 + w0), wmask & lt2, other=0.0)
        in0_4 = tl.load(in0 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt2, other=0.0).to(tl.float32)
        mul5 = in0_4 * in1_0
        sum6 = tl.sum(tl.where(rmask, mul5, 0.0), 1, keep_dims=True)
        mul7 = sum6 * 0.0013020833333333333
        sub8 = mul5 - mul7
        in2_9 = tl.load(in2 + (w0 * 768 + x0 * 14592 + r0), wmask & rmask & lt2, other=0.0).to(tl.float32)
        in3_10 = tl.load(in3 + (x0 * 19 + w0), wmask & lt2, other=0.0)
        sub11 = in2_9 - in3_10
        mul12 = sub11 * in4_3
        mul13 = mul5 * mul12
        sum14 = tl.sum(tl.where(rmask, mul13, 0.0), 1, keep_dims=True)
        mul15 = sum14 * 0.0013020833333333333
        mul16 = mul12 * mul15
        sub17 = sub8 - mul16
        mul18 = in4_3 * sub17
        mul19 = in0_4 * mul12
        where20 = tl.where(lt2, mul19, 0.0)
        where21 = tl.where(lt2, in0_4, 0.0)
        sum_lanes22 = sum_lanes22 + tl.where(wmask, where20, 0.0)
        sum_lanes23 = sum_lanes23 + tl.where(wmask, where21, 0.0)
        tl.store(out2 + (w0 * 768 + x0 * 14592 + r0), mul18.to(tl.bfloat16), wmask & rmask & lt2)
    sum24 = tl.sum(sum_lanes22, 0, keep_dims=True)
    sum25 = tl.sum(sum_lanes23, 0, keep_dims=True)
    tl.store(out0 + (x0 * 768 + r0), sum24, rmask)
    tl.store(out1 + (x0 * 768 + r0), sum25, rmask)
# grid 264
# try {'XBLOCK': 1, 'WBLOCK': 4, 'R0_BLOCK': 1024, 'STAGES': 2} warps 8
# try {'XBLOCK': 1, 'WBLOCK': 2, 'R0_BLOCK': 1024, 'STAGES': 2} warps 4
# try {'XBLOCK': 1, 'WBLOCK': 4, 'R0_BLOCK': 1024, 'STAGES': 1} warps 8
