"""Kernels for mappings that the conformance kit has none for: rows that begin anywhere, lines of rows, first
elements, counts, steps.
"""

from __future__ import annotations

from triton_sample_kernels import sorted_rows

from coilwork_ir.conformance import CASES, Case
from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.text import format_kernel

ROWS = """kernel @rows fast {
  range x0: `5` parallel
  range r0: `1003` reduction
  arg in0: f32 in span `5015` aligned
  arg out0: f32 out span `5015` aligned
  body {
    t0 = load %in0[1003*x0 + r0] : f32
    t1 = reduce max 0 (t0) over (r0)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 = reduce sum 0 (t3) over (r0)
    t5 = div(t3, t4)
    store %out0[1003*x0 + r0] = t5
  }
}
"""
LINE = """kernel @line fast {
  range x0: `6` parallel
  range x1: `1003` parallel
  arg in0: bf16 in span `6018` aligned
  arg in1: f32 in span `6` aligned
  arg out0: bf16 out span `6018` aligned
  body {
    t0 = load %in0[1003*x0 + x1] : bf16
    t1 = cast(t0) : f32
    t2 = load %in1[x0] : f32
    t3 = mul(t1, t2)
    t4 = cast(t3) : bf16
    store %out0[1003*x0 + x1] = t4
  }
}
"""
OPEN_ROWS = """kernel @open_rows fast {
  size n0 in [1, inf]
  size n1 in [1, inf]
  range x0: `n0` parallel
  range r0: `n1` reduction
  arg in0: f16 in span `n0*n1` aligned
  arg out0: f32 out span `n0` aligned
  body {
    t0 = load %in0[n1*x0 + r0] : f16
    t1 = cast(t0) : f32
    t2 = reduce sum 0 (t1) over (r0)
    store %out0[x0] = t2
  }
}
"""
COUNTS = """kernel @counts fast {
  range x0: `3000` parallel
  arg in0: i64 in span `3000` aligned
  arg io0: i64 inout span `16` aligned
  body {
    t0 = load %in0[x0] : i64
    t1 = const 1 : i64
    store %io0[@0] using (t0) add = t1
  }
}
"""
STEPS = """kernel @steps fast {
  range x0: `7` parallel
  range x1: `12` parallel
  arg in0: f32 in span `91` aligned
  arg out0: f32 out span `168` aligned
  body {
    t0 = load %in0[13*x0 + x1] : f32
    t1 = load %in0[13*x0 + x1 + 1] : f32
    t2 = add(t0, t1)
    store %out0[24*x0 + 2*x1] = t0
    store %out0[24*x0 + 2*x1 + 1] = t2
  }
}
"""


def _first(count: int, length: int, dtype: DType) -> Case:
    kernel = sorted_rows(4, length, dtype, first=count, descending=True)
    return Case(name=f"first-{count}-of-{length}", text=format_kernel(kernel))


MORE = (
    Case(name="rows", text=ROWS),
    Case(name="line", text=LINE),
    Case(name="open-rows", text=OPEN_ROWS, sizes=({"n0": 3, "n1": 37}, {"n0": 5, "n1": 32})),
    Case(name="counts", text=COUNTS, fills=(("in0", "index"),), limit=16),
    Case(name="steps", text=STEPS),
    next(case for case in CASES if case.name == "rows-and-columns"),
    _first(5, 64, DType.F32),
    _first(20, 128, DType.I32),
)
