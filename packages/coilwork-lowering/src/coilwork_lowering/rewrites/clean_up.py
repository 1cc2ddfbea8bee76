"""What is done to every functional graph before it is laid out or partitioned: each step a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from coilwork_lowering.cse import merge_common_subexpressions
from coilwork_lowering.identities import drop_identities
from coilwork_lowering.rewrites.dead_code import drop_dead_code
from coilwork_lowering.rewrites.engine import apply_rewrites
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite


def clean_up(gm: fx.GraphModule, rewrites: Sequence[Rewrite]) -> tuple[Fired, ...]:
    """`gm`, changed in place: identities and repeated calls dropped, `rewrites` done, what is dead taken out.

    Repeated calls go first, so that a pattern finds one reader where there is one; and again, where rewrites made calls
    equal.
    """
    drop_identities(gm)
    merge_common_subexpressions(gm)
    fired = apply_rewrites(gm, rewrites)
    if fired:
        merge_common_subexpressions(gm)
    drop_dead_code(gm)
    return fired
