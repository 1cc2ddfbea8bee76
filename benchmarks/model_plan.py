"""What Coilwork would launch for a model of the suite, without a GPU: `python -m benchmarks.model_plan gpt2
[--train]`.

Per graph the kernels and ATen calls that move most bytes by the program's own account (what a call of ATen
computes is not counted), how long that takes at the device's bandwidth, and what is in memory when most is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from torch import Tensor

from benchmarks.lifetimes import Peak, peak_of
from benchmarks.memory_bound.traffic import Moved, traffic
from benchmarks.models import CASES, ModelCase, Setting, Size, find_case, instantiate
from benchmarks.planner import Planner
from coilwork_ir.program.nodes import Program
from coilwork_ir.target import TARGETS, Target

DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}


def programs_of(
    case: ModelCase, *, target: str, train: bool, dtype: torch.dtype, size: Size = Size.FULL
) -> list[Program]:
    """The programs of one inference call, or of forward and backward, at the sizes of a GPU."""
    setting = Setting(size=size, device=torch.device("cpu"), dtype=dtype, absent_gpu=True)
    instance = instantiate(case, setting, training=train)
    planner = Planner(target=target)
    torch._dynamo.reset()

    def call(*inputs: Tensor) -> Tensor:
        found = instance.module(*inputs)
        return case.loss(found, inputs) if train and case.loss is not None else found

    with torch._dynamo.config.patch(dict(case.dynamo)), torch.set_grad_enabled(train):
        result = torch.compile(call, backend=planner, dynamic=False)(*instance.inputs)
        if train:
            result.backward()
    return planner.programs


def text_of(program: Program, target: Target, *, most: int) -> str:
    """The table of one program, with the `most` expensive steps."""
    per_us = target.bandwidth_gb_s * 1e3
    steps = traffic(program)
    kernels = [step for step in steps if not step.extern]
    moved = sum(step.total for step in kernels)
    lines = [
        f"{program.name}: {len(kernels)} kernels, {moved / 1e6:.1f} MB, {moved / per_us:.0f} us at full "
        "bandwidth; "
        f"{len(steps) - len(kernels)} ATen calls"
    ]
    groups = Counter(steps)
    ordered = sorted(groups.items(), key=lambda entry: -entry[0].total * entry[1])
    lines += [_line(step, times, per_us) for step, times in ordered[:most]]
    return "\n".join((*lines, *_peak_lines(peak_of(program), most)))


def _line(step: Moved, times: int, per_us: float) -> str:
    kind = "ATen" if step.extern else f"[{step.walk}]"
    return (
        f"  {times * step.total / per_us:8.1f} us {times:4} x {step.name[:60]:60} "
        f"{step.read / 1e6:8.1f} read "
        f"{step.written / 1e6:8.1f} written {kind}"
    )


def _peak_lines(peak: Peak, most: int) -> list[str]:
    lines = [f"  at most {peak.size_bytes / 1e6:.1f} MB, after instruction {peak.instruction}:"]
    lines += [
        f"  {block.size_bytes / 1e6:8.1f} MB {block.made_by}: {', '.join(block.buffers[-3:])}"
        for block in peak.blocks[:most]
    ]
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model_plan", description=__doc__)
    parser.add_argument("models", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--train", action="store_true", help="forward with loss, and backward")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--target", choices=sorted(TARGETS), default="sm_90")
    parser.add_argument("--most", type=int, default=15, help="lines per table")
    found = parser.parse_args(arguments)
    for name in found.models:
        case = find_case(name)
        if found.train and not case.train:
            parser.error(f"{name} has no training step")
        dtype = DTYPES[found.dtype]
        for program in programs_of(case, target=found.target, train=found.train, dtype=dtype):
            print(f"{name} {text_of(program, TARGETS[found.target], most=found.most)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
