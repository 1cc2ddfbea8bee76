"""Products whose warps have roles, in Triton's interpreter: what is off of each mapping of each product.

The text of a kernel is Gluon, whose roles run one at a time there. A stage that is overwritten too early, or
a barrier that nobody arrives at, shows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.index import evaluate
from coilwork_ir.interpretation.ops import torch_dtype
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.text import parse_kernel
from coilwork_ir.mapping import parse_mapping
from coilwork_ir.target import get_target
from coilwork_runtime import Builder
from coilwork_triton import TritonCodegen
from integration_tests.emitted_kernels import spec_of

# A bias, a maximum with 0, a residual; results in two types.
EPILOGUE: Final = """kernel @epilogue fast {{
  range x0: `{m}` parallel
  range x1: `{n}` parallel
  range r0: `{k}` reduction
  arg in0: bf16 in span `{m}*{k}` aligned
  arg in1: bf16 in span `{n}*{k}` aligned
  arg in2: bf16 in span `{n}` aligned
  arg in3: bf16 in span `{m}*{n}` aligned
  arg out0: bf16 out span `{m}*{n}` aligned
  arg out1: f32 out span `{m}*{n}` aligned
  body {{
    t0 = load %in0[{left}] : bf16
    t1 = load %in1[{right}] : bf16
    t2 = contract (t0, t1) over (r0) : f32
    t3 = load %in2[x1] : bf16
    t4 = cast(t3) : f32
    t5 = add(t2, t4)
    t6 = const 0.0 : f32
    t7 = maximum(t5, t6)
    t8 = load %in3[{n}*x0 + x1] : bf16
    t9 = cast(t8) : f32
    t10 = add(t7, t9)
    t11 = cast(t10) : bf16
    store %out0[{n}*x0 + x1] = t11
    store %out1[{n}*x0 + x1] = t10
  }}
}}
"""
GATED: Final = """kernel @gated fast {{
  range x0: `{m}` parallel
  range x1: `{n}` parallel
  range r0: `{k}` reduction
  arg in0: f16 in span `{m}*{k}` aligned
  arg in1: f16 in span `{n}*{k}` aligned
  arg in2: f16 in span `{n}*{k}` aligned
  arg out0: f16 out span `{m}*{n}` aligned
  body {{
    t0 = load %in0[{left}] : f16
    t1 = load %in1[{right}] : f16
    t2 = contract (t0, t1) over (r0) : f32
    t3 = sigmoid(t2)
    t4 = mul(t2, t3)
    t5 = load %in2[{right}] : f16
    t6 = contract (t0, t5) over (r0) : f32
    t7 = mul(t4, t6)
    t8 = cast(t7) : f16
    store %out0[{n}*x0 + x1] = t8
  }}
}}
"""
# Rows whose number the call says.
OPEN: Final = """kernel @open fast {{
  size s0 in [1, 100000]
  range x0: `s0` parallel
  range x1: `{n}` parallel
  range r0: `{k}` reduction
  arg in0: bf16 in span `s0*{k}` aligned
  arg in1: bf16 in span `{n}*{k}` aligned
  arg out0: bf16 out span `s0*{n}` aligned
  body {{
    t0 = load %in0[{left}] : bf16
    t1 = load %in1[{right}] : bf16
    t2 = contract (t0, t1) over (r0) : f32
    t3 = cast(t2) : bf16
    store %out0[{n}*x0 + x1] = t3
  }}
}}
"""
LEFT: Final = ("{k}*x0 + r0", "{m}*r0 + x0")
RIGHT: Final = ("{k}*x1 + r0", "{n}*r0 + x1")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A product, and how it runs: `rows` by `columns` results of a tile, `stages` of 16 terms."""

    text: str = EPILOGUE
    m: int = 200
    n: int = 136
    k: int = 72
    by_rows: tuple[bool, bool] = (True, True)
    rows: int = 128
    columns: int = 64
    stages: int = 3
    consumers: int = 2
    pingpong: bool = False
    programs: int = 2

    @property
    def kernel(self) -> Kernel:
        sizes = {"m": self.m, "n": self.n, "k": self.k}
        left, right = (
            form[not rows].format(**sizes) for form, rows in zip((LEFT, RIGHT), self.by_rows, strict=True)
        )
        return parse_kernel(self.text.format(left=left, right=right, **sizes))

    @property
    def mapping(self) -> str:
        """Directives."""
        fetched = "in0, in1, in2" if self.text is GATED else "in0, in1"
        return (
            f"tile x1 by {self.columns} tile x0 by {self.rows} flat resident {self.programs} "
            f"order x0, x1 grouped 2 loop r0 by 16 stages {self.stages} unit mma fetch {fetched} "
            f"specialise {self.consumers} consumers {'pingpong' if self.pingpong else ''} warps 4 index i32"
        )


CASES: Final = {
    "shared": Case(),
    "pingpong": Case(rows=64, pingpong=True),
    "one consumer": Case(rows=64, consumers=1),
    "two stages": Case(stages=2),
    "one tile": Case(m=40, n=48, programs=3),
    "one tile, pingpong": Case(m=40, n=48, rows=64, pingpong=True, programs=3, stages=2),
    "by columns": Case(by_rows=(False, False)),
    "by columns, pingpong": Case(by_rows=(True, False), rows=64, pingpong=True, stages=4),
    "gated": Case(text=GATED),
    "open": Case(text=OPEN),
    "open, pingpong": Case(text=OPEN, rows=64, pingpong=True),
    "gated, pingpong": Case(text=GATED, rows=64, pingpong=True, by_rows=(False, True)),
}


def explain_fault(case: Case) -> str:
    """Return how far results are off, if they are."""
    kernel = case.kernel
    source = TritonCodegen().emit_mapping(kernel, parse_mapping(case.mapping), get_target("sm_90"))
    assert "warp_specialize" in source.text
    generator = torch.Generator().manual_seed(0)
    sizes = (case.m,) if kernel.sizes else ()
    known = {size.name: case.m for size in kernel.sizes}
    tensors = {
        arg.name: torch.randn(evaluate(arg.span, known), generator=generator).to(torch_dtype(arg.dtype))
        for arg in kernel.args
    }
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    interpret_kernel(kernel, expected, sizes)
    Builder().build([spec_of(source)])[kernel.name](*tensors.values(), *sizes)
    for name, tensor in tensors.items():
        try:
            torch.testing.assert_close(tensor, expected[name], rtol=1e-2, atol=2e-2)
        except AssertionError as error:
            return f"{name}: {error}"
    return ""


if __name__ == "__main__":
    print(json.dumps({name: explain_fault(case) for name, case in CASES.items()}))
