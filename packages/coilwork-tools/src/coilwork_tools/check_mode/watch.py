"""Put the checks that a user asks for around a compiled call, or in its place, and check a whole program.

`batch_invariant` is a check of a program: it has no call of torch's whose sums run in an order that the
batch decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from coilwork_ir.loc import Origin
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.walk import walk
from coilwork_tools.check_mode.checks import Checks
from coilwork_tools.check_mode.divergence import add_check
from coilwork_tools.check_mode.finite_checks import (
    Wanted,
    add_eager_result_checks,
    add_kernel_checks,
    add_result_checks,
)
from coilwork_tools.check_mode.stepper import Call, Launcher, make_stepper
from coilwork_tools.errors import BatchVariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A compiled graph as checks see it.

    Attributes:
        name: of the graph, for messages.
        gm: the captured ATen graph.
        program: what was compiled of it.
        launchers: built kernels, by name.
        constants: tensors of the program.
        donated: positions of inputs that a call may leave as it likes.
    """

    name: str
    gm: fx.GraphModule
    program: Program
    launchers: Mapping[str, Launcher]
    constants: Mapping[str, Tensor]
    donated: Sequence[int] = ()


def watch_call(call: Call, checks: Checks, graph: Watched, finish: Callable[[Call], Call]) -> Call:
    """`finish(call)` with the `checks`. `finish` adds what a program leaves to its caller."""
    stepped = make_stepper(graph.program, graph.launchers, graph.constants)
    step_by_step = Wanted(nan=checks.nan == "kernels", inf=checks.inf == "kernels")
    if step_by_step:
        call = add_kernel_checks(stepped, step_by_step, graph.name)
    call = finish(call)
    results = Wanted(nan=checks.nan == "results", inf=checks.inf == "results")
    if results:
        call = add_result_checks(call, stepped, results, graph.name)
    if not checks.against_eager:
        return call
    return add_check(call, graph.gm, stepped, graph.name, donated=graph.donated)


def watch_in_eager(call: Callable[..., Any], checks: Checks, name: str) -> Callable[..., Any]:
    """`call`, which runs the graph `name` in eager mode, with the check of its results."""
    wanted = Wanted(nan=checks.nan != "off", inf=checks.inf != "off")
    return add_eager_result_checks(call, wanted, name) if wanted else call


# ---- batch invariance ----


def check_batch_invariant(program: Program) -> None:
    """Check that no call of `program` may give a row other bits in another batch.

    Raises:
        BatchVariantError: one may; it names the operator and the user's line.
    """
    for part in walk(program):
        for instruction in part.instructions:
            if (
                isinstance(instruction, ExternCall)
                and not find_target_info(instruction.target).is_batch_invariant
            ):
                raise BatchVariantError(
                    "batch-variant",
                    (
                        f"{instruction.target} runs as torch's own kernel, which may choose another order "
                        "of sums for another batch"
                    )
                    + _format_lines(instruction.origins),
                    reason=(
                        "batch_invariant=True promises that a row's bits do not depend on the rows beside it"
                    ),
                    remedy=(
                        "compute this part outside of torch.compile, or with another operator; or "
                        "batch_invariant=False"
                    ),
                )


def _format_lines(origins: tuple[Origin, ...]) -> str:
    lines = [f"{o.file}:{o.line}" for o in origins if o.file]
    return f", for {', '.join(dict.fromkeys(lines))}" if lines else ""
