"""Compile and build a graph around the compiler's own faults, at the cost of as few calls as possible.

An error of any stage names calls, or none: those of a kernel, of a node, of an instruction. One call is left
to ATen at once. Of several, it is tried first whether kernels of their own help, which also tells which one
of a fused kernel is at fault; then bisection finds those to leave to ATen. Where no call is named, all calls
of the graph are suspected. Nothing runs meanwhile but the compiler, so no update is made twice and no random
number drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from coilwork_frontend.capture.eager_trial import RefusedCallError
from coilwork_frontend.errors import CoilworkFallbackWarning, OptionError, describe, warn_at
from coilwork_ir.loc import Origin
from coilwork_tools.op_fallback.faults import Budget, FaultKinds, find_smallest_calls, list_named_calls

_C = TypeVar("_C")
_D = TypeVar("_D")
_D_co = TypeVar("_D_co", covariant=True)

MOST_STEPS: Final = 8
# Compilations of one graph that look for what is wrong with it.
MOST_TRIES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The answer to one fault: `calls` get kernels of their own (`apart`), or are left to ATen.

    Without calls, the graph is compiled as it is, without rewrites.
    """

    calls: tuple[Origin, ...]
    apart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The calls that are treated otherwise, to compile a graph around faults.

    Attributes:
        operators: all calls of these, or some of them, are left to ATen.
        nodes: the calls, as pairs of an operator and a node of the graph, for operators that are left there
            alone.
        apart: names of calls that share no kernel with others.
    """

    operators: tuple[str, ...]
    nodes: tuple[tuple[str, str], ...] = ()
    apart: tuple[str, ...] = ()

    def extend(self, step: Step) -> Remedy:
        """Return the remedy with `step`. Of an operator that has failed in another call before, all calls are
        left to ATen.
        """
        if step.apart:
            return replace(self, apart=tuple(dict.fromkeys((*self.apart, *(c.node for c in step.calls)))))
        failing = {op for op, _ in self.nodes}
        fresh = [origin for origin in step.calls if not self.holds(origin)]
        everywhere = {origin.op for origin in fresh if origin.op in failing}
        pairs = [*self.nodes, *((o.op, o.node) for o in fresh)]
        return replace(
            self,
            operators=tuple(dict.fromkeys((*self.operators, *(origin.op for origin in fresh)))),
            nodes=tuple(dict.fromkeys(pair for pair in pairs if pair[0] not in everywhere)),
        )

    def holds(self, origin: Origin) -> bool:
        """Return True if the call is left to ATen already."""
        if (origin.op, origin.node) in self.nodes:
            return True
        return origin.op in self.operators and all(op != origin.op for op, _ in self.nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """One step of a remedy, for another process.

    Attributes:
        positions: of the calls among those of the graph, whose names differ from process to process.
        apart: the calls get kernels of their own, instead of being left to ATen.
        reason: the error that the step is for.
    """

    positions: tuple[int, ...]
    apart: bool
    reason: str


class StoredRemedy(Protocol):
    """The store of one graph's remedy, as a JSON object."""

    def read(self) -> Mapping[str, Any] | None:
        """Return the record of an earlier search; None if there is none."""

    def write(self, value: dict[str, Any], /) -> None:
        """Keep `value`."""


def write_steps(steps: Sequence[StoredStep]) -> dict[str, Any]:
    """`steps` as a JSON object."""
    return {"steps": [{**asdict(step), "positions": list(step.positions)} for step in steps]}


def read_steps(record: Mapping[str, Any] | None) -> tuple[StoredStep, ...]:
    """Return the steps in a JSON object; none if they do not decode: they are a hint, and found again."""
    if record is None:
        return ()
    try:
        return tuple(
            StoredStep(
                positions=tuple(int(position) for position in step["positions"]),
                apart=bool(step["apart"]),
                reason=str(step["reason"]),
            )
            for step in record["steps"]
        )
    except (KeyError, TypeError, ValueError):
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The way a graph is to be compiled: with a remedy, with rewrites or without, and with stages' text
    written or not.
    """

    remedy: Remedy
    is_rewritten: bool = True
    is_traced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectFacts:
    """Facts of a graph before it is compiled.

    Attributes:
        graph_id: its name, for messages.
        fallback: operators that are left to ATen whatever happens.
        may_retry: False if a fault is to be raised.
        is_refused: tells if eager refuses the call that the graph is compiled for.
        faults: the types of errors that say more than others.
    """

    graph_id: str
    fallback: tuple[str, ...]
    may_retry: bool
    is_refused: Callable[[], bool]
    faults: FaultKinds


class Subject(Protocol[_C, _D_co]):
    """One graph, and what compiles and builds it."""

    @property
    def facts(self) -> SubjectFacts: ...

    def compile(self, plan: Plan) -> _C:
        """Return the result of the stages."""

    def build(self, compiled: _C, plan: Plan) -> _D_co:
        """Return a callable of the compiled graph."""

    def list_calls(self, plan: Plan, *, views: bool) -> tuple[Origin, ...]:
        """Return the calls that generated code computes."""

    def list_kernels(self, compiled: _C) -> Mapping[str, Sequence[Origin]]:
        """Return the calls that each kernel computes, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built(Generic[_C, _D]):
    """A graph that compiles, what calls it, and what was done about faults for that."""

    compiled: _C
    driven: _D
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """An attempt that failed with `error`, which names the calls `named`, maybe `in_build` of kernels."""

    error: Exception
    named: tuple[Origin, ...]
    in_build: bool


def build_with_retries(subject: Subject[_C, _D], remembered: StoredRemedy | None = None) -> Built[_C, _D]:
    """Compile and build the subject around faults, and return it with its callable.

    A fault is a warning, and the graph is compiled again with the calls at fault in kernels of their own or
    as calls of ATen; not if the subject may not retry, not where no choice of calls helps, and not more than
    `MOST_STEPS` times. `remembered` keeps what was found.

    Raises:
        RefusedCallError: eager refuses the call that the graph is compiled for.
        OptionError: an option does not fit the graph.
        Exception: the last failure, whatever a stage raised.
    """
    attempts = _Attempts(subject)
    first = attempts.attempt(Remedy(operators=subject.facts.fallback))
    if isinstance(first, Built):
        return first
    if subject.facts.is_refused():
        raise RefusedCallError(str(first.error)) from first.error
    if not subject.facts.may_retry or isinstance(first.error, OptionError):
        raise first.error
    repeated = None if remembered is None else attempts.repeat(read_steps(remembered.read()))
    if repeated is not None:
        return repeated
    built = attempts.mend(first)
    if remembered is not None:
        remembered.write(write_steps(attempts.describe_steps()))
    return built


class _Attempts(Generic[_C, _D]):
    """The search for a remedy of one graph."""

    def __init__(self, subject: Subject[_C, _D]) -> None:
        self._subject = subject
        self._is_rewritten = True
        self._budget = Budget(MOST_TRIES)
        self._steps: list[tuple[Step, Exception]] = []

    def attempt(self, remedy: Remedy) -> Built[_C, _D] | Fault:
        """Compile and build with `remedy`."""
        outcome = self._run(Plan(remedy=remedy, is_rewritten=self._is_rewritten), build=True)
        assert outcome is not None
        return outcome

    def find_fault(self, remedy: Remedy, *, in_build: bool) -> Fault | None:
        """Return the fault of compiling with `remedy`, untraced; kernels are built if it may be
        `in_build`.
        """
        plan = Plan(remedy=remedy, is_rewritten=self._is_rewritten, is_traced=False)
        outcome = self._run(plan, build=in_build)
        return outcome if isinstance(outcome, Fault) else None

    def _run(self, plan: Plan, *, build: bool) -> Built[_C, _D] | Fault | None:
        compiled: _C | None = None
        subject = self._subject
        try:
            compiled = subject.compile(plan)
            return Built(compiled=compiled, driven=subject.build(compiled, plan)) if build else None
        # who gets the fault raises it, or finds what to do without
        except Exception as error:
            if not subject.facts.faults.is_of_calls(error):
                raise
            kernels = {} if compiled is None else subject.list_kernels(compiled)
            listed = list_named_calls(error, kernels)
            named = [origin for origin in listed if not plan.remedy.holds(origin)]
            return Fault(error=error, named=tuple(named), in_build=compiled is not None)

    def _list_calls(self, *, views: bool) -> tuple[Origin, ...]:
        plan = Plan(remedy=Remedy(operators=()), is_rewritten=self._is_rewritten, is_traced=False)
        return self._subject.list_calls(plan, views=views)

    def mend(self, fault: Fault) -> Built[_C, _D]:
        """Compile around `fault` and those that show after it, with a warning each.

        Raises:
            Exception: the last failure.
        """
        remedy = Remedy(operators=self._subject.facts.fallback)
        before = remedy
        for _ in range(MOST_STEPS):
            has_helped = not self._steps or not self._steps[-1][0].calls or bool(fault.named)
            if not has_helped and not self._subject.facts.faults.is_of_one_node(fault.error):
                # what the last step left out is not at fault
                remedy = before
                self._steps.pop()
            step = self._find_step(fault, remedy)
            if step is None:
                self._warn_of_steps()
                raise fault.error
            self._steps.append((step, fault.error))
            before, remedy = remedy, remedy.extend(step)
            outcome = self.attempt(remedy)
            if isinstance(outcome, Built):
                self._warn_of_steps()
                return replace(outcome, steps=tuple(step for step, _ in self._steps))
            fault = outcome
        self._warn_of_steps()
        raise fault.error

    def _find_step(self, fault: Fault, remedy: Remedy) -> Step | None:
        """Return the step that mends `fault`; None if no choice of calls helps."""
        if not fault.named and self._is_rewritten and not self._can_rewrite():
            self._is_rewritten = False
            return Step(calls=(), apart=False)
        if len(fault.named) == 1:
            return Step(calls=fault.named, apart=False)
        if fault.named:
            step = self._search(fault, remedy, fault.named, unfuse=True)
            if step is not None:
                return step
        if self._subject.facts.faults.is_of_one_node(fault.error):
            # it is about one node, and it said which
            return None
        for views in (False, True):
            calls = [c for c in self._list_calls(views=views) if not remedy.holds(c)]
            # to build every call's kernel by itself takes long
            step = self._search(fault, remedy, calls, unfuse=not fault.in_build and not views)
            if step is not None:
                return step
        return None

    def _can_rewrite(self) -> bool:
        """False if the fault is one of rewrites or layouts, which a graph can do without."""
        try:
            self._list_calls(views=False)
        except Exception:  # noqa: BLE001  the fault is known: it is what compiling failed with
            return False
        return True

    def _search(
        self, fault: Fault, remedy: Remedy, suspects: Sequence[Origin], *, unfuse: bool
    ) -> Step | None:
        """Return the fewest of `suspects` that have to be treated otherwise; None if all of them are not
        enough.
        """

        def find_left(calls: Sequence[Origin], *, apart: bool) -> Fault | None:
            step = Step(calls=tuple(calls), apart=apart)
            left = self.find_fault(remedy.extend(step), in_build=fault.in_build)
            # a fault of other calls is for the next step
            is_another = left is not None and left.named and not _choose(suspects, left.named)
            return None if is_another else left

        if unfuse and len(suspects) > 1 and not self._subject.facts.faults.is_of_one_node(fault.error):
            if not self._budget.spend():
                return None
            left = find_left(suspects, apart=True)
            if left is None:
                calls = find_smallest_calls(
                    suspects, lambda some: find_left(some, apart=True) is None, self._budget
                )
                return Step(calls=calls, apart=True)
            # a call in its own kernel is named alone; errors that named none, or wrong ones, tell nothing
            suspects = (_choose(suspects, left.named) if fault.named else []) or suspects
        if len(suspects) > 1:
            if not self._budget.spend() or find_left(suspects, apart=False) is not None:
                return None
            suspects = find_smallest_calls(
                suspects, lambda some: find_left(some, apart=False) is None, self._budget
            )
        return Step(calls=tuple(suspects), apart=False) if suspects else None

    def repeat(self, stored: Sequence[StoredStep]) -> Built[_C, _D] | None:
        """Compile with a remedy found before; None if there is none, or if it does not help any more."""
        if not stored:
            return None
        calls = self._list_calls(views=True)
        if any(position >= len(calls) for step in stored for position in step.positions):
            return None
        remedy = Remedy(operators=self._subject.facts.fallback)
        steps = [
            Step(calls=tuple(calls[position] for position in step.positions), apart=step.apart)
            for step in stored
        ]
        for step in steps:
            remedy = remedy.extend(step)
        outcome = self.attempt(remedy)
        if not isinstance(outcome, Built):
            return None
        for step, known in zip(steps, stored, strict=True):
            self._warn(step, known.reason)
        return replace(outcome, steps=tuple(steps))

    def describe_steps(self) -> tuple[StoredStep, ...]:
        """Return the steps of `mend`, for `repeat`; none if one is of a call that another process would not
        find.
        """
        if not self._is_rewritten:
            return ()
        places = {call: place for place, call in enumerate(self._list_calls(views=True))}
        if any(call not in places for step, _ in self._steps for call in step.calls):
            return ()
        return tuple(
            StoredStep(
                positions=tuple(places[call] for call in step.calls), apart=step.apart, reason=describe(error)
            )
            for step, error in self._steps
        )

    def _warn_of_steps(self) -> None:
        for step, error in self._steps:
            self._warn(step, describe(error))

    def _warn(self, step: Step, reason: str) -> None:
        """Say which calls run otherwise, at the user's line."""
        names = ", ".join(dict.fromkeys(call.op for call in step.calls))
        how = "kernels of their own" if step.apart else "ATen's own kernels"
        text = f"{names} run as {how} in graph {self._subject.facts.graph_id}: {reason}"
        if not step.calls:
            text = f"graph {self._subject.facts.graph_id} is compiled without rewrites and layouts: {reason}"
        place = next((call for call in step.calls if call.file), None)
        if place is not None and f"{place.file}:{place.line}" not in text:
            text += f"\n  source  {place.file}:{place.line}   {place.code}"
        if step.calls and not step.apart:
            listed = ", ".join(dict.fromkeys(f'"{call.op}"' for call in step.calls))
            text += f'\n  try     options={{"fallback": [{listed}]}} to leave all such calls to ATen'
        text += '\n  try     options={"strict": True} for the traceback, to report it'
        warn_at(text, CoilworkFallbackWarning, place)


def _choose(suspects: Sequence[Origin], named: Sequence[Origin]) -> list[Origin]:
    """Choose those of `suspects` that an error names, whatever else it says of them."""
    known = {(call.op, call.node) for call in named}
    return [call for call in suspects if (call.op, call.node) in known]
