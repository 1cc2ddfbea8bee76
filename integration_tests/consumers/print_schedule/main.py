"""Use coilwork-ir and coilwork-scheduler without torch and without a GPU: what would run on an H200, and on a
CPU.
"""

from __future__ import annotations

from coilwork_ir.kernels.text import format_schedule
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.program.text import format_program
from coilwork_ir.target import Capabilities, RowWalks, Targets, get_target
from coilwork_scheduler import explain, schedule
from coilwork_scheduler.memory import plan

SOFTMAX = """
graph @softmax {
  input %x: f32[4096, 1024]
  (%largest: f32[4096]) = reduce max [i0: 4096 | r0: 1024] {
    t0 = load %x[i0, r0] : f32
    yield t0
  }
  %powers: f32[4096, 1024] = pointwise [i0: 4096, i1: 1024] {
    t0 = load %x[i0, i1] : f32
    t1 = load %largest[i0] : f32
    t2 = sub(t0, t1)
    t3 = exp(t2)
    yield t3
  }
  (%total: f32[4096]) = reduce sum [i0: 4096 | r0: 1024] {
    t0 = load %powers[i0, r0] : f32
    yield t0
  }
  %y: f32[4096, 1024] = pointwise [i0: 4096, i1: 1024] {
    t0 = load %powers[i0, i1] : f32
    t1 = load %total[i0] : f32
    t2 = div(t0, t1)
    yield t2
  }
  return (%y)
}
"""


# What the generators of kernels can do, as they would declare it: rows of 64 KiB stay on a GPU's chip.
DECLARED = (
    ("sm_90", Capabilities(rows=RowWalks(kept_bytes=65536))),
    ("x86-64-avx512", Capabilities(rows=RowWalks(kept_bytes=1 << 20), cuts_rows=True)),
)


def main() -> None:
    graph = parse_graph(SOFTMAX)
    for name in ("sm_90", "x86-64-avx512"):
        scheduled = schedule(graph, Targets(main=get_target(name), declared=DECLARED))
        print(f"== {name}: {len(graph.nodes)} operations in {len(scheduled.kernels)} kernel")
        print(format_schedule(scheduled, decisions=False))
        print(explain(scheduled.decisions))
    print("== memory")
    print(format_program(plan(schedule(graph, Targets(main=get_target("sm_90"), declared=DECLARED)))))


main()
