"""The wrapper `plan`: what `torch.compile(..., options={"wrapper": "plan"})` gets, and how a plan is saved
and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import KernelSource, write_kernels
from coilwork_ir.program.nodes import Program
from coilwork_ir.program.regions import inline_regions
from coilwork_ir.program.walk import list_kernels
from coilwork_ir.wrapper import Launcher, WrapOptions
from coilwork_runtime import Builder
from coilwork_runtime.module_loader import load_kernels
from plan_wrapper.plan import Plan, plan_program
from plan_wrapper.player import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArtifact:
    """A plan that can be played. `kernels` are manifests and texts (`coilwork_ir.kernel_source`)."""

    plan: Plan
    launchers: Mapping[str, Launcher]
    constants: Mapping[str, torch.Tensor]
    kernels: bytes

    def __call__(self, args: list[Any], /) -> Sequence[Any]:
        return Frame(launchers=self.launchers, constants=self.constants).play(self.plan, args)

    def save(self, folder: Path, /) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "plan.json").write_text(json.dumps(self.plan, indent=1))
        (folder / "kernels.bin").write_bytes(self.kernels)
        torch.save(dict(self.constants), folder / "constants.pt")


class PlanWrapper:
    name: Final = "plan"

    def refuses(self, program: Program) -> str:
        try:
            plan_program(inline_regions(program))
        except EmitError as error:
            return str(error)
        return ""

    def emit(
        self, program: Program, sources: Mapping[str, KernelSource], options: WrapOptions
    ) -> PlanArtifact:
        plan = plan_program(inline_regions(program))
        options.write("plan.json", json.dumps(plan, indent=1))
        used = [(sources[kernel.name], kernel.origins) for kernel in list_kernels(program)]
        return PlanArtifact(
            plan=plan,
            launchers=options.build(),
            constants=options.constants,
            kernels=write_kernels(used),
        )


PLAN: Final = PlanWrapper()


def load_plan(folder: Path) -> PlanArtifact:
    """The plan that was saved to `folder`, with its kernels built on this machine."""
    kernels = (folder / "kernels.bin").read_bytes()
    return PlanArtifact(
        plan=json.loads((folder / "plan.json").read_text()),
        launchers=Builder().build(load_kernels(kernels)),
        constants=torch.load(folder / "constants.pt", weights_only=True),
        kernels=kernels,
    )
