"""Use coilwork-ir and coilwork-triton by themselves: a kernel written by hand, printed as Triton for two
vendors' GPUs.
"""

from __future__ import annotations

from coilwork_ir.index import format_expr
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen

GATE = """
kernel @silu_gate fast {
  size n0 in [1, 1000000000]
  range x0: `n0` parallel
  arg gate: bf16 in span `n0` aligned
  arg value: bf16 in span `n0` aligned
  arg out: bf16 out span `n0` aligned
  body {
    t0 = load %gate[x0] : bf16
    t1 = cast(t0) : f32
    t2 = sigmoid(t1)
    t3 = mul(t1, t2)
    t4 = load %value[x0] : bf16
    t5 = cast(t4) : f32
    t6 = mul(t3, t5)
    t7 = cast(t6) : bf16
    store %out[x0] = t7
  }
}
"""


def main() -> None:
    kernel = parse_kernel(GATE)
    verify_kernel(kernel)
    codegen = TritonCodegen()
    for name in ("sm_90", "gfx942"):
        source = codegen.emit(kernel, get_target(name), {})
        print(f"== {name}")
        print("arguments:", ", ".join(f"{arg.name} {arg.role} {arg.dtype.text}" for arg in source.args))
        print("grid:", ", ".join(map(format_expr, source.grid)))
        for config in source.configs:
            print("configuration:", dict(config.meta), f"warps {config.num_warps}")
    print(source.text)


main()
