"""What `batch_invariant` promises of a whole program: no call of torch's whose sums run in an order that the
batch decides.
"""

from __future__ import annotations

from coilwork_ir.loc import Origin
from coilwork_ir.operators import find_target_info
from coilwork_ir.program.nodes import ExternCall, Program
from coilwork_ir.program.walk import walk
from coilwork_tools.errors import BatchVariantError


def check_batch_invariant(program: Program) -> None:
    """Nothing, if no call of `program` may give a row other bits in another batch.

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
                    + _where(instruction.origins),
                    reason=(
                        "batch_invariant=True promises that a row's bits do not depend on the rows beside it"
                    ),
                    remedy=(
                        "compute this part outside of torch.compile, or with another operator; or "
                        "batch_invariant=False"
                    ),
                )


def _where(origins: tuple[Origin, ...]) -> str:
    lines = [f"{o.file}:{o.line}" for o in origins if o.file]
    return f", for {', '.join(dict.fromkeys(lines))}" if lines else ""
