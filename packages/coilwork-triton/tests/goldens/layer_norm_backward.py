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
    r0 = tl.arange(0, R0_BLOCK)
    in1_0 = tl.load(in1 + r0).to(tl.float32)
    sum_lanes18 = tl.full([R0_BLOCK], 0.0, tl.float32)
    sum_lanes19 = tl.full([R0_BLOCK], 0.0, tl.float32)
    for w0_offset in tl.range(0, 64, WBLOCK, num_stages=STAGES):
        w0 = w0_offset
        in4_1 = tl.load(in4 + (x0 * 64 + w0))
        in0_2 = tl.load(in0 + (w0 * 4096 + x0 * 262144 + r0)).to(tl.float32)
        mul3 = in0_2 * in1_0
        in2_4 = tl.load(in2 + (w0 * 4096 + x0 * 262144 + r0)).to(tl.float32)
        in3_5 = tl.load(in3 + (x0 * 64 + w0))
        sub6 = in2_4 - in3_5
        mul7 = sub6 * in4_1
        mul8 = mul3 * mul7
        sum9, sum10 = tl.reduce((mul3, mul8), 0, combine_2_sums)
        mul11 = sum9 * 0.000244140625
        sub12 = mul3 - mul11
        mul13 = sum10 * 0.000244140625
        mul14 = mul7 * mul13
        sub15 = sub12 - mul14
        mul16 = in4_1 * sub15
        mul17 = in0_2 * mul7
        sum_lanes18 = sum_lanes18 + mul17
        sum_lanes19 = sum_lanes19 + in0_2
        tl.store(out2 + (w0 * 4096 + x0 * 262144 + r0), mul16.to(tl.bfloat16))
    tl.store(out0 + (x0 * 4096 + r0), sum_lanes18)
    tl.store(out1 + (x0 * 4096 + r0), sum_lanes19)
# grid 256
# try {'XBLOCK': 1, 'WBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 3} warps 4
# try {'XBLOCK': 1, 'WBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 3} warps 8
# try {'XBLOCK': 1, 'WBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 1} warps 8
