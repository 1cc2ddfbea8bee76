"""A case of rows that programs may share, by values of one word and of two with their positions: two scans in
one kernel.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.conformance.case import Case

SHARED_ROWS: Final = Case(
    name="shared-rows",
    text="""kernel @shared fast {
      range x0: `3` parallel
      range r0: `75` reduction
      arg in0: f32 in span `225`
      arg in1: f64 in span `225`
      arg io0: i64 inout span `61`
      arg out0: f32 out span `225`
      arg out1: f64 out span `225`
      arg out2: i64 out span `225`
      workspace io0
      body {
        t0 = load %in0[75*x0 + r0] : f32
        t1 = scan sum 0 (t0) along r0
        t2 = load %in1[75*x0 + r0] : f64
        t3 = scan max 0 (t2) along r0
        t4 = scan max 1 (t2) along r0
        store %out0[75*x0 + r0] = t1
        store %out1[75*x0 + r0] = t3
        store %out2[75*x0 + r0] = t4
      }
    }""",
    fills=(("in1", "ties"), ("io0", "zero")),
)
