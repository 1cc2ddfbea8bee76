import sys
sys.path.insert(0,"packages/coilwork-triton/tests")
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
def kernel(heads=16, group=1, length=64, keys=4096, mask=True, score="t5 = mul(t3, t4)", batch=2):
    kh = heads//group
    span = batch*heads*keys*length; kspan = batch*kh*keys*length
    at = f"{keys*length*kh} * y0 + {keys*length} * " + ("y1" if group == 1 else f"(y1 // {group})")
    return f"""kernel @causal fast {{
  range y0: `{batch}` parallel
  range y1: `{heads}` parallel
  range y2: `{keys}` parallel
  range x0: `{length}` parallel
  range r0: `{keys}` reduction
  range r1: `{length}` reduction
  arg in0: bf16 in span `{span}` aligned
  arg in1: bf16 in span `{kspan}` aligned
  arg in2: bf16 in span `{kspan}` aligned
  arg in3: f32 in span `{heads}` aligned
  arg out0: bf16 out span `{span}` aligned
  arg out1: f32 out span `{batch*heads*keys}`
  attention f32 (y0, y1, y2, x0) over (r0, r1) {{
    t0 = load %in0[{keys*length*heads} * y0 + {keys*length} * y1 + {length} * y2 + r1] : bf16
    t1 = load %in1[{at} + {length} * r0 + r1] : bf16
    t2 = load %in2[{at} + {length} * r0 + x0] : bf16
    t3 = parameter 0 : f32
    t4 = const 0.125 : f32
    {score}
    t7 = index [y2]
    t8 = index [r0]
    t9 = ge(t7, t8)
    query t0, key t1, value t2
    score t5
    {"mask t9" if mask else ""}
    logarithms binary
  }}
  body {{
    t0 = parameter 0 : f32
    t1 = cast(t0) : bf16
    t2 = parameter 1 : f32
    store %out0[{keys*length*heads} * y0 + {keys*length} * y1 + {length} * y2 + x0] = t1
    store %out1[{keys*heads} * y0 + {keys} * y1 + y2] = t2
  }}
}}
"""
ALIBI = "t20 = load %in3[y1] : f32\n t21 = index [r0 - y2]\n t22 = cast(t21) : f32\n t23 = mul(t20, t22)\n t24 = mul(t3, t4)\n t5 = add(t24, t23)"
CAP = "t20 = mul(t3, t4)\n t21 = tanh(t20)\n t22 = const 20.0 : f32\n t5 = mul(t21, t22)"
if __name__ == "__main__":
    src = TritonCodegen().emit(parse_kernel(kernel()), get_target("sm_90"), {})
    print(src.text); print(src.grid, src.configs); print(src.versions)
