"""Lists of tensors take one launch on GPUs, where the options say so."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.backend import resolve
from coilwork.compile_options import CompileOptions
from coilwork.registries import find_codegen
from coilwork.stages import lower_to_program
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.program.nodes import Launch
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import lower
from coilwork_tools.explain.report import StageClock
from coilwork_tools.explain.trace_folder import Trace


def add_one(*steps: torch.Tensor) -> tuple[()]:
    for step in steps:
        torch.ops.aten.copy_.default(step, torch.ops.aten.add.Tensor(step, 1))
    return ()


def launches(options: CompileOptions, target: str = "sm_90") -> int:
    inputs = [torch.zeros(64 * (k + 1)) for k in range(20)]
    graph = lower(make_fx(add_one, tracing_mode="fake")(*inputs), name="g").graph
    targets = declare_capabilities(Targets(main=TARGETS[target]), find_codegen)
    program = lower_to_program(graph, targets, options, trace=Trace(None), clock=StageClock())
    return sum(isinstance(instruction, Launch) for instruction in program.instructions)


def test_one_launch_for_a_list() -> None:
    assert launches(resolve(options={"verify": True})) == 1


@pytest.mark.parametrize("option, count", [("combine", 20), ("fusion", 40)])
def test_off_each_tensor_has_its_own(option: str, count: int) -> None:
    assert launches(resolve(options={"verify": True, option: False})) == count


def test_cpus_have_no_launches_to_save() -> None:
    assert launches(resolve(options={"verify": True}), "x86-64-avx2") == 20
