"""A torch.compile backend that runs every graph at every level of the compiler and compares them on each
call.

eager == interpret(graph) == interpret(schedule) == interpret(program) == Python == native == FX == C++,
results and overwritten inputs alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from coilwork.compile_graph import make_call
from coilwork.compile_options import CompileOptions, Executor
from coilwork.job import Job, open_job
from coilwork.registries import find_codegen
from coilwork.stages import Compiled, run_stages
from coilwork_cache import Store
from coilwork_frontend.calling_convention.convention import Role
from coilwork_frontend.capture.eager_fallback import box_graph
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.errors import EmitError
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.program.interpreter import interpret_program
from coilwork_ir.target import TARGETS, Targets
from coilwork_runtime import Builder
from coilwork_scheduler import ScheduleOptions, schedule
from coilwork_tools.explain.report import StageClock
from integration_tests.aot_backend import compile_by_role

Call = Callable[[list[Any]], Sequence[Any]]
DRIVERS: tuple[tuple[str, str, Executor], ...] = (
    ("python", "python", "python"),
    ("native", "python", "native"),
    ("fx", "fx", "auto"),
    ("cpp", "cpp", "auto"),
)


class LevelError(AssertionError):
    """A level disagrees with the graph as captured; the message names the level and the graph."""


@dataclass(slots=True, kw_only=True)
class AllLevels:
    """Use as `torch.compile(..., backend=AllLevels(store=...))`.

    Attributes:
        store: keeps built kernels.
        graphs: the roles of the graphs that were compiled.
        calls: how often every level was run and compared.
        refused: what C++ could not drive, by name.
    """

    store: Store
    graphs: list[str] = field(default_factory=list)
    calls: int = 0
    refused: list[str] = field(default_factory=list)

    def __call__(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        return compile_by_role(gm, example_inputs, self._compile)

    def _compile(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], *, role: Role) -> Call:
        options = CompileOptions(strict=True, verify=True)
        job = open_job(gm, example_inputs, role=role, options=options)
        compiled = run_stages(job, fallback=())
        levels = self._levels(job, compiled)
        self.graphs.append(role)
        eager = box_graph(gm)

        def call(args: list[Any]) -> Sequence[Any]:
            given = list(args)
            args.clear()
            outcomes = {
                name: run(level, given, donated=job.convention.donated) for name, level in levels.items()
            }
            expected = run(eager, given, keep=True)
            for name, outcome in outcomes.items():
                _check(f"{name} of {job.graph_id}", outcome, Outcome(results=expected.results, inputs=given))
            first = outcomes["python"]
            for name in ("native", "fx", "cpp"):
                if name in outcomes:
                    _check(f"{name} against python, of {job.graph_id}", outcomes[name], first, exact=True)
            self.calls += 1
            return expected.results

        call._boxed_call = True
        return call

    def _levels(self, job: Job, compiled: Compiled) -> Mapping[str, Call]:
        constants = compiled.written.constants
        scheduled = schedule(
            compiled.graph,
            declare_capabilities(Targets(main=TARGETS[compiled.target]), find_codegen),
            ScheduleOptions(),
        )
        levels: dict[str, Call] = {
            "graph": lambda args: interpret_graph(compiled.graph, args, constants),
            "schedule": lambda args: interpret_schedule(scheduled, args, constants),
            "program": lambda args: interpret_program(compiled.program, args, constants),
        }
        builder = Builder(self.store)
        for name, wrapper, executor in DRIVERS:
            options = replace(job.options, wrapper=wrapper, executor=executor)
            driven = replace(job, options=options, clock=StageClock())
            try:
                levels[name] = make_call(compiled, driven, builder, self.store).call
            except EmitError as error:
                if wrapper != "cpp":
                    raise
                self.refused.append(error.what)
        return levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a call returned, and its inputs afterwards: `None` in place of those that it may have
    overwritten.
    """

    results: Sequence[Any]
    inputs: Sequence[Any]


def run(call: Call, given: Sequence[Any], *, keep: bool = False, donated: Sequence[int] = ()) -> Outcome:
    """Call on copies of `given` (on itself with `keep`), from a fixed seed. `donated` are inputs that are the
    call's to overwrite.
    """
    inputs = list(given) if keep else [clone(value) for value in given]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        results = call(list(inputs))
    return Outcome(
        results=results, inputs=[None if k in donated else value for k, value in enumerate(inputs)]
    )


def clone(value: Any) -> Any:
    """A copy in the same layout."""
    if not isinstance(value, Tensor):
        return value
    span = (
        sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) + 1 if value.numel() else 0
    )
    storage = torch.empty(span, dtype=value.dtype)
    if span:
        storage.copy_(value.detach().as_strided((span,), (1,)))
    return storage.as_strided(value.shape, value.stride())


def _check(what: str, ours: Outcome, expected: Outcome, *, exact: bool = False) -> None:
    if len(ours.results) != len(expected.results):
        raise LevelError(f"{what}: {len(ours.results)} results, expected {len(expected.results)}")
    pairs = [("result", *pair) for pair in zip(ours.results, expected.results, strict=True)]
    pairs += [("input", *pair) for pair in zip(ours.inputs, expected.inputs, strict=True)]
    for kind, one, other in pairs:
        if kind == "input" and one is None:
            continue
        if not isinstance(other, Tensor):
            if one != other:
                raise LevelError(f"{what}: {kind} {one!r}, expected {other!r}")
            continue
        limits: dict[str, Any] = {"rtol": 0, "atol": 0} if exact else {}
        try:
            torch.testing.assert_close(
                one, other.detach(), equal_nan=True, check_stride=other.numel() > 0, **limits
            )
        except AssertionError as error:
            raise LevelError(f"{what}: {kind} differs: {error}") from error
