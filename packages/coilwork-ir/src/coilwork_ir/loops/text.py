"""The text form of loop IR: `parse_graph(format_graph(g)) == g`.

graph @norm {
  symbol s0 in [2, inf]
  input %x: f32[s0, 1024]
  (%ss: f32[s0]) = reduce sum [i0: s0 | r0: 1024] {
    t0 = load %x[i0, r0] : f32
    yield t0
  } loc("sum_1" "aten.sum.dim_IntList" "model.py":12 "y = x.sum(1)" "norm")
  return (%ss)
}
"""

from coilwork_ir.loops.parsing import parse_graph
from coilwork_ir.loops.printing import format_graph

__all__ = ["format_graph", "parse_graph"]
