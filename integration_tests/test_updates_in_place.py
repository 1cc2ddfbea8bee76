"""Updates in place, across the stages: random programs beside eager at every level, and the bytes that caches
move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.updates import CASES, plan_case
from coilwork import stage_settings
from coilwork.compile_options import CompileOptions
from coilwork.job import open_job
from coilwork.registries import find_codegen
from coilwork.stages import Compiled, run_stages
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.torch_compat.aot_autograd import compile_with_aot_autograd
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.machine import change_figures
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.target import TARGETS, Targets
from coilwork_lowering import LoweringOptions, decompositions, partition
from coilwork_scheduler import schedule
from integration_tests.updating_programs import function_of, inputs_of, program

pytestmark = pytest.mark.usefixtures("own_caches")

Level = Callable[[Compiled, list[Any]], Sequence[Any]]


def _schedule(compiled: Compiled, args: list[Any]) -> Sequence[Any]:
    scheduled = schedule(
        compiled.graph, declare_capabilities(Targets(main=TARGETS[compiled.target]), find_codegen)
    )
    return interpret_schedule(scheduled, args, compiled.written.constants)


LEVELS: dict[str, Level] = {
    "graph": lambda compiled, args: interpret_graph(compiled.graph, args, compiled.written.constants),
    "schedule": _schedule,
    "program": lambda compiled, args: interpret_program(compiled.program, args, compiled.written.constants),
}


class Interpreted:
    """A torch.compile backend that verifies every stage and interprets one of them."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        compilers = {role: partial(self._compile, role=role) for role in ("forward", "backward", "inference")}
        return compile_with_aot_autograd(
            gm, inputs, decompositions=decompositions(LoweringOptions()), partition=partition, **compilers
        )

    def _compile(self, gm: torch.fx.GraphModule, inputs: Sequence[Any], *, role: Role) -> Callable[..., Any]:
        options = CompileOptions(strict=True, verify=True)
        compiled = run_stages(open_job(gm, inputs, role=role, options=options), fallback=())

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            return self.level(compiled, given)

        vars(call)["_boxed_call"] = True
        return call


def copies(values: Sequence[Any]) -> list[Any]:
    return [value.clone() if isinstance(value, Tensor) else value for value in values]


def sharing(values: Sequence[Any]) -> list[list[bool]]:
    memory = [value.untyped_storage().data_ptr() for value in values if isinstance(value, Tensor)]
    return [[a == b for b in memory] for a in memory]


@pytest.mark.parametrize("seed", range(18))
def test_random_in_place_programs_agree_at_every_level(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    short = change_figures(TARGETS["x86-64-avx2"].machine, {"memory.launch_bytes": 64})
    monkeypatch.setattr(stage_settings, "find_machine_model", lambda device: short)
    source = program(seed)
    expected_inputs = copies(inputs_of(seed))
    expected = [*function_of(source)(*expected_inputs), *expected_inputs]
    level = list(LEVELS)[seed % len(LEVELS)]
    inputs = copies(inputs_of(seed))
    compiled = torch.compile(function_of(source), backend=Interpreted(LEVELS[level]), dynamic=seed % 4 == 3)
    found = [*compiled(*inputs), *inputs]
    torch.testing.assert_close(
        found, expected, rtol=1e-4, atol=1e-4, msg=lambda text: f"{text}\n{level}\n{source}"
    )
    assert sharing(found) == sharing(expected), source


@pytest.mark.parametrize("target", ["sm_90", "x86-64-avx2"])
@pytest.mark.parametrize("name", ["cache at a position", "cache, `index_copy_`", "4 layers of one cache"])
def test_a_cache_update_moves_only_new_rows(name: str, target: str) -> None:
    (case,) = (case for case in CASES if case.name == name)
    cache, new, _ = case.inputs()
    layers = cache.shape[0] if cache.dim() == 5 else 1
    plan = plan_case(case, target=target, in_place=True)
    assert plan.moved_bytes <= layers * (2 * new.nbytes + 64)
    assert plan.peak_bytes == 0
    assert plan_case(case, target=target, in_place=False).moved_bytes > 2 * cache.nbytes


def test_plans_in_place_never_move_more() -> None:
    for case in CASES:
        copied, done = (plan_case(case, target="sm_90", in_place=flag) for flag in (False, True))
        assert done.moved_bytes <= copied.moved_bytes, case.name
        assert done.peak_bytes <= copied.peak_bytes, case.name
