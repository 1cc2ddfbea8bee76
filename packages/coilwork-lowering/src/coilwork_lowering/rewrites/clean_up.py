"""What is done to every functional graph before it is laid out or partitioned: each step a pass
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from coilwork_lowering.rewrites.cse import merge_common_subexpressions
from coilwork_lowering.rewrites.dead_code import drop_dead_code_in
from coilwork_lowering.rewrites.engine import rewrite_graph
from coilwork_lowering.rewrites.identities import drop_identities
from coilwork_lowering.rewrites.rewrite import Fired, Rewrite
from coilwork_lowering.torch_compat.graphs import copied_graph


def clean_up(gm: fx.GraphModule, rewrites: Sequence[Rewrite]) -> tuple[Fired, ...]:
    """`gm`, changed in place: identities and repeated calls dropped, `rewrites` done, what is
    dead taken out.
    """
    fired = clean_up_in(gm.graph, rewrites)
    gm.recompile()
    return fired


def cleaned_up(gm: fx.GraphModule, rewrites: Sequence[Rewrite]) -> tuple[fx.GraphModule, tuple[Fired, ...]]:
    """A copy of `gm` after `clean_up`, and what `rewrites` did to it."""
    graph = copied_graph(gm.graph)
    fired = clean_up_in(graph, rewrites)
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made, fired


def clean_up_in(graph: fx.Graph, rewrites: Sequence[Rewrite]) -> tuple[Fired, ...]:
    """`clean_up` of a graph that is no module yet.

    Repeated calls go first, so that a pattern finds one reader where there is one; and again, where rewrites
    made calls equal.
    """
    drop_identities(graph)
    merge_common_subexpressions(graph)
    fired = rewrite_graph(graph, rewrites)
    if fired:
        merge_common_subexpressions(graph)
    drop_dead_code_in(graph)
    return fired
