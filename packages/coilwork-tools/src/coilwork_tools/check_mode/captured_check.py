"""Check mode for what was rewritten: a call beside the program as Dynamo captured it, before any rewrite or
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import fx

from coilwork_frontend.random_state import random_state, restore
from coilwork_tools.check_mode.reference import Reference, copy_inputs, disagreement, run_reference
from coilwork_tools.errors import DivergenceError


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
        numbers = random_state()
        results = call(*args)
        afterwards = random_state()
        try:
            restore(numbers)
            reference = run_reference(captured, copy_inputs(before))
            found = "" if numbers.has_moved() and not same_numbers else _difference(results, args, reference)
        finally:
            restore(afterwards)
        if found:
            raise _error(found, fired, passes)
        return results

    return call_and_compare


def _difference(results: Sequence[Any], inputs: Sequence[Any], reference: Reference) -> str:
    triples = zip(results, reference.results, reference.wide_results, strict=True)
    for position, (ours, eager, wide) in enumerate(triples):
        if detail := disagreement(ours, eager, wide):
            return f"result {position} is not eager's: {detail}"
    triples = zip(inputs, reference.inputs, reference.wide_inputs, strict=True)
    for position, (ours, eager, wide) in enumerate(triples):
        if detail := disagreement(ours, eager, wide):
            return f"input {position} afterwards is not eager's: {detail}"
    return ""


def _error(found: str, fired: Sequence[Rewritten], passes: Sequence[str]) -> DivergenceError:
    done = [f"{one.name} at {', '.join(one.sources) or 'an unknown line'}" for one in fired]
    names = list(dict.fromkeys(one.name for one in fired))
    without = [f'options={{"skip_rewrites": {names!r}}}'] if names else []
    without += ["no passes"] if passes else []
    return DivergenceError(
        "diverged",
        f"a graph that was rewritten: {found}",
        reason="rewritten by " + "; ".join([*done, *(f"pass {name}" for name in passes)]),
        remedy=f"{', '.join(without)} to leave out what is at fault",
    )
