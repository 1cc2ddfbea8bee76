"""What Coilwork would launch for each case, without a GPU: `python -m benchmarks.memory_bound.plan [WORDS]
[--target sm_90]`.

Per case its kernels and what remains of ATen, with the bytes that each moves by the schedule, beside the
fewest bytes; what falls to ATen first, then what moves most in vain. Captured on the CPU, at full size,
without touching the inputs' memory. Open sizes are planned as if they were known.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.memory_bound.case import SETS, Case, FewestBytes, Make, call_of, fewest_bytes
from benchmarks.memory_bound.cases import select
from benchmarks.memory_bound.traffic import Moved, traffic
from benchmarks.planner import Planner
from coilwork_ir.errors import CoilworkIRError
from coilwork_ir.target import TARGETS

# A case falls to ATen if ATen moves at least this share of its bytes.
ATEN_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePlan:
    """What one case would launch; `failure` says why nothing is known."""

    case: Case
    fewest: FewestBytes
    steps: tuple[Moved, ...] = ()
    failure: str = ""

    @property
    def moved(self) -> int:
        return sum(step.total for step in self.steps)

    @property
    def excess(self) -> float:
        """Bytes moved as a multiple of the fewest."""
        return self.moved / self.fewest.total

    @property
    def aten_share(self) -> float:
        """Return what ATen moves of all bytes."""
        return sum(step.total for step in self.externs) / max(self.moved, 1)

    @property
    def externs(self) -> tuple[Moved, ...]:
        return tuple(step for step in self.steps if step.extern)


def plan_of(case: Case, *, target: str = "sm_90", tiny: bool = False) -> CasePlan:
    """Capture `case` and plan it for `target`."""
    inputs = case.make(Make(device=torch.device("cpu"), values=False), tiny=tiny)
    torch._dynamo.reset()
    planner = Planner(target=target)
    compiled = torch.compile(case.function, backend=planner, dynamic=False)
    failure = ""
    try:
        results = call_of(case, compiled, inputs)()
    except (torch._dynamo.exc.BackendCompilerFailed, CoilworkIRError) as error:
        failure = str(error).strip().splitlines()[0]
        results = []
    steps = tuple(step for program in planner.programs for step in traffic(program))
    return CasePlan(case=case, fewest=fewest_bytes(case, inputs, results), steps=steps, failure=failure)


def sort_rows(plans: Sequence[CasePlan]) -> list[CasePlan]:
    """Failures, then what falls to ATen, then by bytes moved in vain."""
    return sorted(plans, key=lambda p: (not p.failure, p.aten_share < ATEN_SHARE, -p.excess))


def table(plans: Sequence[CasePlan]) -> str:
    """One line per case and one per step."""
    lines = [f"{'case':58} {'fewest MB':>9} {'moved MB':>9} {'times':>6} {'kernels':>7} {'ATen':>5}"]
    for plan in plans:
        kernels = len(plan.steps) - len(plan.externs)
        lines.append(
            f"{plan.case.name:58} {plan.fewest.total / 1e6:9.1f} {plan.moved / 1e6:9.1f} "
            f"{plan.excess:6.2f} {kernels:7} {len(plan.externs):5}"
            + (f"  FAILED: {plan.failure}" if plan.failure else "")
        )
        for step, times in Counter(plan.steps).items():
            mark = f"{times} x " if times > 1 else ""
            kind = "ATen" if step.extern else f"[{step.walk}]"
            lines.append(
                f"    {mark}{step.name[:70]} {kind}: {step.read / 1e6:.1f} read + "
                f"{step.written / 1e6:.1f} written"
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_bound.plan", description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases whose name has one of these in it")
    parser.add_argument("--sets", default=",".join(SETS), help=f"comma-separated, of {', '.join(SETS)}")
    parser.add_argument("--target", choices=sorted(TARGETS), default="sm_90")
    found = parser.parse_args(arguments)
    plans = [plan_of(case, target=found.target) for case in select(found.words, found.sets.split(","))]
    print(table(sort_rows(plans)))
    return 1 if any(plan.failure for plan in plans) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
