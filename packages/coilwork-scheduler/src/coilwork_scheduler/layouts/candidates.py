"""Candidates for the strides of free memory: those of capture, row-major ones, and what the nodes around it
would like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.loops.layouts import nested_strides
from coilwork_ir.loops.view_strides import Strides, ViewsOf
from coilwork_scheduler.layouts.sites import Site

MOST_CANDIDATES: Final = 8


def candidates_for(
    root: Buffer, around: Iterable[Site], views: ViewsOf, names: Collection[str]
) -> tuple[Strides, ...]:
    """Strides that `root` may have, those of capture first: at most `MOST_CANDIDATES`.

    Args:
        root: free memory.
        around: what touches it, and proposes strides.
        views: all views of the graph.
        names: what `root` is called; there are views among them, all of which must be able to show it.
    """
    found: dict[Strides, None] = {root.strides: None}
    several = [d for d, extent in enumerate(root.shape) if as_int(extent) != 1]
    proposed = [nested_strides(root.shape, tuple(range(len(root.shape))))]
    for site in around:
        proposed += site.propose(root)
    for strides in dict.fromkeys(proposed):
        # the stride of a dimension of one element says nothing
        if any(all(strides[d] is known[d] for d in several) for known in found):
            continue
        if all(views.strides_of(name, strides) is not None for name in names):
            found[strides] = None
        if len(found) == MOST_CANDIDATES:
            break
    return tuple(found)
