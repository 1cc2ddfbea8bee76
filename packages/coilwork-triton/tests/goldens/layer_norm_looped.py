"""
layer_norm: one kernel for
  aten.native_layer_norm.default   model.py:21   x = self.ln_1(x)
"""

import triton
import triton.language as tl



@triton.jit
def layer_norm(
    in0,
    in1,
    in2,
    out0,
    out1,
    out2,
    XBLOCK: tl.constexpr,
    R0_BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    x0 = tl.program_id(0)
    mean_lanes1 = tl.full([R0_BLOCK], 0.0, tl.float32)
    m2_lanes2 = tl.full([R0_BLOCK], 0.0, tl.float32)
    weight_lanes3 = tl.full([R0_BLOCK], 0.0, tl.float32)
    for r0_offset in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 5000
        in0_0 = tl.load(in0 + (x0 * 5000 + r0), rmask, eviction_policy="evict_last").to(tl.float32)
        weight_lanes3 = weight_lanes3 + rmask.to(tl.float32)
        share4 = 1.0 / weight_lanes3
        delta5 = in0_0 - mean_lanes1
        moved6 = mean_lanes1 + delta5 * share4
        m2_lanes2 = tl.where(rmask, m2_lanes2 + delta5 * (in0_0 - moved6), m2_lanes2)
        mean_lanes1 = tl.where(rmask, moved6, mean_lanes1)
    mean7 = tl.sum(mean_lanes1 * weight_lanes3, 0) / 5000.0
    apart8 = mean_lanes1 - mean7
    m2_9 = tl.sum(m2_lanes2 + weight_lanes3 * (apart8 * apart8), 0)
    div10 = m2_9 / 5000.0
    add11 = div10 + 1e-05
    rsqrt12 = tl.rsqrt(add11)
    for r0_offset in tl.range(0, 5000, R0_BLOCK, num_stages=STAGES):
        r0 = r0_offset + tl.arange(0, R0_BLOCK)
        rmask = r0 < 5000
        in0_13 = tl.load(in0 + (x0 * 5000 + r0), rmask, eviction_policy="evict_first").to(tl.float32)
        sub14 = in0_13 - mean7
        mul15 = sub14 * rsqrt12
        in1_16 = tl.load(in1 + r0, rmask).to(tl.float32)
        mul17 = mul15 * in1_16
        in2_18 = tl.load(in2 + r0, rmask).to(tl.float32)
        add19 = mul17 + in2_18
        tl.store(out0 + (x0 * 5000 + r0), add19.to(tl.bfloat16), rmask)
    tl.store(out1 + x0, mean7)
    tl.store(out2 + x0, rsqrt12)
# grid 4096
# try {'XBLOCK': 1, 'R0_BLOCK': 4096, 'STAGES': 1} warps 8
# try {'XBLOCK': 1, 'R0_BLOCK': 2048, 'STAGES': 1} warps 4
# try {'XBLOCK': 1, 'R0_BLOCK': 1024, 'STAGES': 1} warps 4
