"""The report of a compilation as data, its seconds by stage, and the compiled graph that carries it.

The report has every demand on sizes that compiling added; the log warns of the first few.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Protocol

from coilwork_frontend.calling_convention.convention import Roles
from coilwork_frontend.torch_compat.structured_trace import trace_artifact, trace_phase
from coilwork_ir.index import as_int
from coilwork_ir.loops.nodes import USER_LAUNCH
from coilwork_ir.program.nodes import ExternCall, Launch, Program
from coilwork_ir.program.walk import list_kernels, walk
from coilwork_runtime import bind_roles
from coilwork_runtime.executor.choice import Driven
from coilwork_runtime.tensor_kinds import Call
from coilwork_tools.explain.phases import Phase, format_phases
from coilwork_tools.explain.progress import ProgressReporter
from coilwork_tools.explain.trace_folder import Trace


class StageClock:
    """Wall seconds by stage, of one compilation: of the graph that `progress` tells of."""

    def __init__(self, progress: ProgressReporter | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.phases: list[Phase] = []
        self._progress = progress

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body under `name`; times of one name add up."""
        with ExitStack() as around:
            if self._progress is not None:
                around.enter_context(self._progress.stage(name))
                around.enter_context(trace_phase(f"coilwork.{name}"))
            began_ns, start = time.time_ns(), time.perf_counter_ns()
            try:
                yield
            finally:
                taken_ns = time.perf_counter_ns() - start
                self.seconds[name] = self.seconds.get(name, 0.0) + 1e-9 * taken_ns
                self.phases.append(Phase(name, began_ns, taken_ns, threading.get_native_id()))

    def count_kernels(self, built: int, total: int, compiled: int) -> None:
        """Do as `ProgressReporter.count_kernels`."""
        if self._progress is not None:
            self._progress.count_kernels(built, total, compiled)

    def finish(self, report: CompileReport, trace: Trace, *, note: str = "") -> None:
        """Tell that the graph is ready: to listeners, the log, torch's structured trace and `trace`. `note`
        stands before the summary in the log.
        """
        log.info("graph %s: %s%s", report.graph_id, note, report.summary())
        text, phases = report.to_json(), format_phases(report.graph_id, self.phases)
        trace.write("report.json", text)
        trace.write("phases.json", phases)
        trace_artifact(f"coilwork_report_{report.graph_id}", text)
        trace_artifact(f"coilwork_phases_{report.graph_id}", phases)
        if self._progress is not None:
            self._progress.finish(cache_hit=report.cache_hit)


def open_clock(graph_id: str, *, is_shown: bool) -> StageClock:
    """Return the clock of a graph; with `is_shown`, a terminal shows its progress."""
    return StageClock(ProgressReporter(graph_id, is_shown=is_shown))


log = logging.getLogger("coilwork")
# Sizes of windows within windows have conditions of thousands of characters, dozens of them.
SHOWN: Final = 5
CONDITION: Final = 240


class AddedGuard(Protocol):
    """A demand on sizes; its text has the condition, and which operator it is for."""

    @property
    def condition(self) -> str: ...


def announce(graph_id: str, guards: Sequence[AddedGuard]) -> tuple[str, ...]:
    """Return the guards as the report has them. The log warns of the first `SHOWN`, in at most `CONDITION`
    characters of each.
    """
    for guard in guards[:SHOWN]:
        log.warning("graph %s: compiling added a guard: %s", graph_id, _shorten(guard))
    if len(guards) > SHOWN:
        log.warning(
            "graph %s: compiling added %d more guards: report.json of the option `trace` has all",
            graph_id,
            len(guards) - SHOWN,
        )
    return tuple(str(guard) for guard in guards)


def _shorten(guard: AddedGuard) -> str:
    condition = guard.condition
    if len(condition) <= CONDITION:
        return str(guard)
    half = (CONDITION - 5) // 2
    return str(guard).replace(condition, f"{condition[:half]} ... {condition[-half:]}", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileReport:
    """One compiled graph.

    Attributes:
        graph_id: role and digest, e.g. `"backward_1f2e3d4c90"`; the same in every process.
        role: `forward`, `backward` or `inference`.
        kernels: number of launches of generated kernels in one call.
        distinct_kernels: number of different kernels.
        extern_calls: number of calls of torch's own operators in one call.
        cache_hit: the graph came from the graph cache.
        seconds: wall seconds by stage.
        peak_bytes_predicted: predicted peak of allocated memory; `None` when it depends on sizes.
        executor: who runs the program: `native`, `python`, or the wrapper that was asked for.
        executor_reason: why it is not the native executor.
        python_calls: operators that the native executor calls through Python, with the reason for each.
        rewrites: what rewrites did to the graph: of each the name, the level of the graph, how often, and the
            places in the user's code.
        prepared: how many values are computed once, from frozen parameters, instead of in each call.
        prepared_bytes: the memory that they take.
        mappings: how each kernel runs, as text that parses, by name; empty without a trace.
        saved_strides: strides of results of a forward graph that lie otherwise for its backward graph than
            captured, by position; below zero, the order of dimensions of open sizes: -1 the innermost.
        guards: demands on sizes that compiling added to those of the capture, with operator and line, one per
            line; there should be none.
        operators: the calls of torch's own operators: of each operator and line of the user's its name, how
            many they are, the reason, and the line.
        parts: the graphs that it was split into, if Python makes calls between them.
        called: the calls that Python makes: of each the operator, the reason, and the user's line.
        fallback: why the graph runs in eager mode instead; empty when it was compiled.
    """

    graph_id: str
    role: str
    kernels: int = 0
    distinct_kernels: int = 0
    extern_calls: int = 0
    cache_hit: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    peak_bytes_predicted: int | None = None
    executor: str = ""
    executor_reason: str = ""
    python_calls: Mapping[str, str] = field(default_factory=dict)
    rewrites: list[dict[str, object]] = field(default_factory=list)
    prepared: int = 0
    prepared_bytes: int = 0
    mappings: Mapping[str, str] = field(default_factory=dict)
    saved_strides: list[tuple[int, list[int]]] = field(default_factory=list)
    guards: str = ""
    operators: list[dict[str, object]] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    called: list[dict[str, str]] = field(default_factory=list)
    fallback: str = ""

    @property
    def strides_by_position(self) -> dict[int, tuple[int, ...]]:
        """`saved_strides` as a table."""
        return {int(position): tuple(strides) for position, strides in self.saved_strides}

    def name_driver(self, driven: Driven) -> CompileReport:
        """This, saying who runs the program."""
        return replace(
            self,
            executor=driven.executor,
            executor_reason=driven.reason,
            python_calls=dict(driven.python_calls),
        )

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True)

    def summary(self) -> str:
        """Return the report in one line."""
        if self.fallback:
            return f"eager: {self.fallback}"
        seconds = ", ".join(f"{stage} {taken:.3f}" for stage, taken in self.seconds.items())
        counts = ", ".join(f"{item['name']} x{item['count']}" for item in self.rewrites)
        rewritten = f"; rewrites: {counts}" if counts else ""
        kept = "from the cache, " if self.cache_hit else ""
        called = ", ".join(f"{call['op']} ({call['reason']})" for call in self.called)
        cut = f"; {len(self.parts)} parts, and Python calls {called}" if called else ""
        return (
            f"{kept}{self.executor}, {self.kernels} launches of {self.distinct_kernels} kernels, "
            f"{self.extern_calls} operator calls{cut}{rewritten}; seconds: {seconds}"
        )


def report_program(program: Program, *, graph_id: str, role: str) -> CompileReport:
    """Return the report of a graph that was compiled to `program`: what one call of it does."""
    return CompileReport(
        graph_id=graph_id,
        role=role,
        kernels=sum(isinstance(one, Launch) for one in program.instructions),
        distinct_kernels=len({kernel.name for kernel in list_kernels(program)}),
        extern_calls=sum(isinstance(one, ExternCall) for one in program.instructions),
        operators=_list_operators(program),
        peak_bytes_predicted=None if program.peak_bytes is None else as_int(program.peak_bytes),
    )


def _list_operators(program: Program) -> list[dict[str, object]]:
    """The calls of torch's own operators in `program` and in what is nested in it."""
    calls = Counter(
        (one.target, _explain_operator(one), _find_line(one))
        for part in walk(program)
        for one in part.instructions
        if isinstance(one, ExternCall)
    )
    return [
        {"op": op, "count": count, "reason": reason, "source": source}
        for (op, reason, source), count in calls.items()
    ]


def _explain_operator(call: ExternCall) -> str:
    """Return why generated code does not compute `call`."""
    if call.implements == USER_LAUNCH:
        return "it launches a kernel of the user's"
    if call.implements:
        return f"a library computes this {call.implements}"
    if call.in_flight or call.waits:
        return "it communicates"
    return "no kernel is generated for it"


def _find_line(call: ExternCall) -> str:
    return next((f"{one.file}:{one.line}" for one in call.origins if one.file), "")


def read_report(facts: Mapping[str, Any]) -> CompileReport:
    """Return the report whose JSON object is `facts`.

    Raises:
        TypeError: it has other fields.
    """
    return replace(CompileReport(graph_id="", role=""), **facts)


# ---- compiled graphs ----


@dataclass(eq=False)
class CompiledGraph:
    """A compiled graph, called with one list of inputs, which it empties (AOTAutograd's boxed convention).

    `direct`, if there is one, takes the inputs one by one. `roles` are those around both that are not applied
    yet, if there are such; `bound` are those that are. `key` is that of its program in the graph cache,
    `record` what another process needs beside the program; without them it is compiled or traced in each.
    `refusal` says why there is no record.
    """

    _boxed_call: ClassVar = True

    call: Call
    report: CompileReport
    direct: Callable[..., Sequence[Any]] | None = None
    roles: Roles | None = None
    bound: Roles | None = None
    key: str | None = None
    record: dict[str, Any] | None = None
    refusal: str = ""

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        return self.call(args)

    def apply_roles(self, outer: Roles) -> CompiledGraph:
        """This with `outer` around it, and with its own roles: all of them are interpreted at once."""
        roles = outer if self.roles is None else self.roles.wrap(outer)
        bound = bind_roles(self.call, str(roles.convention), roles.functions, direct=self.direct)
        return replace(self, call=bound.call, direct=bound.direct, roles=None, bound=roles)

    def change_report(self, **facts: Any) -> CompiledGraph:
        """This with other `facts` in its report."""
        return replace(self, report=replace(self.report, **facts))
