"""The text form of kernels and schedules: `parse_kernel(format_kernel(k)) == k`, and so for schedules.

kernel @sum_1f2e3d4c fast {
  size n0 in [2, inf]
  range x0: `n0` parallel
  range r0: `1024` reduction
  arg in0: f32 in span `1024*n0` aligned
  arg out0: f32 out span `n0`
  body {
    t0 = load %in0[1024*x0 + r0] : f32
    t1 = reduce sum 0 (t0) over (r0)
    store %out0[x0] = t1
  }
}
"""

from coilwork_ir.kernels.parsing import parse_kernel, parse_schedule
from coilwork_ir.kernels.printing import format_kernel, format_schedule

__all__ = ["format_kernel", "format_schedule", "parse_kernel", "parse_schedule"]
