"""Calls beside eager and float64: the first difference names the kernel that made it, or the rewrites.

`add_check` compares a compiled graph, and looks for the kernel one launch at a time. `add_captured_check`
compares with the graph as Dynamo captured it, before any rewrite or pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, fx

from coilwork_frontend.random_state import RandomState, get_random_state, restore
from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.program.interpreter import Step
from coilwork_ir.program.nodes import Launch, Program, Return
from coilwork_ir.streams import Copy
from coilwork_tools.check_mode.reference import Reference, copy_inputs, describe_disagreement, run_reference
from coilwork_tools.check_mode.stepper import (
    Call,
    Stepper,
    describe,
    describe_culprits,
    find_last_writers,
    list_writers,
)
from coilwork_tools.errors import DivergenceError


def add_check(
    call: Call, gm: fx.GraphModule, stepped: Stepper, name: str, *, donated: Sequence[int] = ()
) -> Call:
    """`call`, which raises `DivergenceError` when a result or an overwritten input is not what `gm` gives in
    eager.

    `call` takes one list of inputs, which it empties. It runs as ever; eager, float64 and the search for the
    kernel run on copies, with the random numbers that it drew. Inputs at the positions `donated` are the
    call's, to leave as it likes.
    """

    def call_and_compare(args: list[Any]) -> Sequence[Any]:
        given = list(args)
        before = copy_inputs(given)
        numbers = get_random_state()
        results = call(args)
        afterwards = get_random_state()
        try:
            restore(numbers)
            reference = run_reference(gm, copy_inputs(before))
            difference = _find_first_difference(stepped.program, results, given, reference, donated)
            if difference is not None:
                restore(numbers)
                raise _kernel_error(difference, gm, stepped, before, numbers, name)
        finally:
            restore(afterwards)
        return results

    return call_and_compare


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """An output that is wrong: words for it, the buffer that it is, and in what it differs."""

    what: str
    buffer: str
    detail: str


def _find_first_difference(
    program: Program,
    results: Sequence[Any],
    inputs: Sequence[Any],
    reference: Reference,
    donated: Sequence[int],
) -> _Difference | None:
    returned = program.instructions[-1]
    assert isinstance(returned, Return)
    names = [value.name if isinstance(value, Ref) else "" for value in returned.values]
    for position, (ours, eager, wide) in enumerate(
        zip(results, reference.results, reference.wide_results, strict=True)
    ):
        if detail := describe_disagreement(ours, eager, wide):
            return _Difference(what=f"result {position}", buffer=names[position], detail=detail)
    triples = zip(inputs, reference.inputs, reference.wide_inputs, strict=True)
    for position, (ours, eager, wide) in enumerate(triples):
        if position not in donated and (detail := describe_disagreement(ours, eager, wide)):
            entry = program.inputs[position]
            name = entry.name if isinstance(entry, Buffer) else ""
            return _Difference(what=f"input {position} afterwards", buffer=name, detail=detail)
    return None


def _kernel_error(
    difference: _Difference,
    gm: fx.GraphModule,
    stepped: Stepper,
    inputs: Sequence[Any],
    numbers: RandomState,
    name: str,
) -> DivergenceError:
    """Return the error, after a search for the kernel."""
    reference = run_reference(gm, copy_inputs(inputs), keep=True)
    restore(numbers)
    search = _Search(stepped=stepped, values=reference.values, last=find_last_writers(stepped))
    stepped.run(copy_inputs(inputs), before=None, after=search.look)
    if search.culprit is None:
        reason = (
            "launched one by one, all kernels compute what eager does: the order of launches, the reuse of "
            "memory or the wrapper is at fault"
        )
        blame = "\n  kernel  ".join(map(describe, list_writers(stepped, stepped.program, difference.buffer)))
    else:
        reason = f"%{search.buffer} is the first value that differs: {search.detail}"
        blame = describe_culprits(stepped, stepped.program, search.culprit, search.buffer)
    buffer = f" (%{difference.buffer})" if difference.buffer else ""
    return DivergenceError(
        "diverged",
        f"graph {name}: {difference.what}{buffer} is not eager's: {difference.detail}",
        reason=f"{reason}\n  kernel  {blame or 'none that is known of'}",
        remedy='options={"fallback": [operator]} to leave the operator to ATen, and please report it',
    )


@dataclass(slots=True, kw_only=True)
class _Search:
    """Looks at every buffer when its last writer is through; keeps the first that is not its node's value."""

    stepped: Stepper
    values: Mapping[str, tuple[Any, Any]]
    last: Mapping[str, int]
    culprit: Step | None = None
    buffer: str = ""
    detail: str = ""
    _count: int = field(default=0)

    def look(self, program: Program, step: Step, tensors: Mapping[str, Tensor]) -> None:
        # Nested programs have names of their own, and no nodes of the graph.
        if program is not self.stepped.program:
            return
        if self.culprit is None:
            for name in self.stepped.list_written(step):
                if self.last[name] == self._count and (pair := self._value(name, step)) is not None:
                    self._judge(name, step, pair, tensors[name])
        self._count += 1

    def _value(self, name: str, step: Step) -> tuple[Any, Any] | None:
        """Return the values of eager and float64 for the buffer `name`. Of several results, the first has the
        name of their node.
        """
        nodes = [
            origin.node
            for origin in step.origins
            if isinstance(self.values.get(origin.node, ("",))[0], list | tuple)
        ]
        if isinstance(step, Launch | Copy) or not nodes:
            return self.values.get(name)
        outputs = [output.name if isinstance(output, Buffer) else "" for output in step.outputs]
        place = outputs.index(name) if name in outputs else len(outputs)
        eager, wide = self.values[nodes[0]]
        return (eager[place], wide[place]) if place < len(eager) else None

    def _judge(self, name: str, step: Step, value: tuple[Any, Any], ours: Tensor) -> None:
        eager, wide = value
        # A stage may have given the buffer another form, as padded rows.
        if not isinstance(eager, Tensor) or eager.shape != ours.shape or eager.dtype != ours.dtype:
            return
        if self.culprit is None and (detail := describe_disagreement(ours, eager, wide)):
            self.culprit, self.buffer, self.detail = step, name, detail


# ---- before rewrites ----


class Rewritten(Protocol):
    """A rewrite that was done: its name, and the user's lines where."""

    @property
    def name(self) -> str: ...

    @property
    def sources(self) -> tuple[str, ...]: ...


def add_captured_check(
    call: Callable[..., Any],
    captured: fx.GraphModule,
    *,
    fired: Sequence[Rewritten],
    passes: Sequence[str],
    same_numbers: bool,
) -> Callable[..., Any]:
    """`call`, which raises `DivergenceError` when a result or an overwritten input is not what `captured`
    gives in eager.

    Gradients are compared with the graphs behind the rewrites alone. Without `same_numbers`, `call` draws
    other random numbers than eager, and what draws any cannot be compared.
    """

    def call_and_compare(*args: Any) -> Any:
        before = copy_inputs(args)
        numbers = get_random_state()
        results = call(*args)
        afterwards = get_random_state()
        try:
            restore(numbers)
            reference = run_reference(captured, copy_inputs(before))
            difference = (
                "" if numbers.has_moved() and not same_numbers else _difference(results, args, reference)
            )
        finally:
            restore(afterwards)
        if difference:
            raise _rewrite_error(difference, fired, passes)
        return results

    return call_and_compare


def _difference(results: Sequence[Any], inputs: Sequence[Any], reference: Reference) -> str:
    triples = zip(results, reference.results, reference.wide_results, strict=True)
    for position, (ours, eager, wide) in enumerate(triples):
        if detail := describe_disagreement(ours, eager, wide):
            return f"result {position} is not eager's: {detail}"
    triples = zip(inputs, reference.inputs, reference.wide_inputs, strict=True)
    for position, (ours, eager, wide) in enumerate(triples):
        if detail := describe_disagreement(ours, eager, wide):
            return f"input {position} afterwards is not eager's: {detail}"
    return ""


def _rewrite_error(difference: str, fired: Sequence[Rewritten], passes: Sequence[str]) -> DivergenceError:
    done = [f"{one.name} at {', '.join(one.sources) or 'an unknown line'}" for one in fired]
    names = list(dict.fromkeys(one.name for one in fired))
    without = [f'with options={{"skip_rewrites": {names!r}}}'] if names else []
    without += ["without your passes"] if passes else []
    return DivergenceError(
        "diverged",
        f"a graph that was rewritten: {difference}",
        reason="rewritten by " + "; ".join([*done, *(f"pass {name}" for name in passes)]),
        remedy=f"compile {' and '.join(without)}, to see which of them is at fault",
    )
