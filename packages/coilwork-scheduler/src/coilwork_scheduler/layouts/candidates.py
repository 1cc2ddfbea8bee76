"""Candidates for the strides of free memory: those of capture, row-major ones, and what the nodes around it
would like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import as_int
from coilwork_ir.loops.layouts import Strides, ViewsOf, nested_strides
from coilwork_scheduler.layouts.sites import Site

MOST_CANDIDATES: Final = 8


def list_candidates(
    touching: Mapping[str, Sequence[Site]],
    views: ViewsOf,
    buffers: Mapping[str, Buffer],
    names: Mapping[str, Collection[str]],
) -> dict[str, tuple[Strides, ...]]:
    """Strides that each piece of free memory may have, those of capture first.

    Memory that nobody has a wish for follows what it shares loops with, step by step: the indices of a pool
    lie as its values do. Each is asked about once more at most, so this is linear in the sites.

    Args:
        touching: the sites around each piece of memory, by its first name.
        views, buffers: all views and buffers of the graph.
        names: what each piece is called; there are views among them.
    """
    found = {
        root: candidates_for(
            buffers[root], [site.propose(buffers[root]) for site in around], views, names[root]
        )
        for root, around in touching.items()
    }
    undecided = {root for root, candidates in found.items() if len(candidates) == 1}
    reached = [root for root in touching if root not in undecided]
    while reached and undecided:
        beside = dict.fromkeys(
            name for root in reached for site in touching[root] for name in site.memory if name in undecided
        )
        reached = []
        for root in beside:
            lying = [
                site.follow(buffers[root], {name: found[name] for name in site.memory if name in found})
                for site in touching[root]
            ]
            candidates = candidates_for(buffers[root], lying, views, names[root])
            if len(candidates) > 1:
                found[root] = candidates
                undecided.remove(root)
                reached.append(root)
    return found


def candidates_for(
    root: Buffer, proposals: Iterable[Iterable[Strides]], views: ViewsOf, names: Collection[str]
) -> tuple[Strides, ...]:
    """Strides that `root` may have, those of capture first: at most `MOST_CANDIDATES`.

    Args:
        root: free memory.
        proposals: what each site around it would like.
        views: all views of the graph.
        names: what `root` is called; there are views among them, all of which must be able to show it.
    """
    found: dict[Strides, None] = {root.strides: None}
    several = [d for d, extent in enumerate(root.shape) if as_int(extent) != 1]
    proposed = [nested_strides(root.shape, tuple(range(len(root.shape))))]
    for wishes in proposals:
        proposed += wishes
    for strides in dict.fromkeys(proposed):
        # the stride of a dimension of one element says nothing
        if any(all(strides[d] is known[d] for d in several) for known in found):
            continue
        if all(views.strides_of(name, strides) is not None for name in names):
            found[strides] = None
        if len(found) == MOST_CANDIDATES:
            break
    return tuple(found)
