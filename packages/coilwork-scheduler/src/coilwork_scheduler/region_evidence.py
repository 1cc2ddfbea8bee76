"""Prove that steps of one region may stand for those of later ones, from the nodes that they compute.

A step computes the values that it stores from those that it reads. In between it computes values that it
stores nowhere, of other nodes of the graph. Under corresponding names it is right for a later region if each
of these nodes has a node there that corresponds: if all of them are in equal regions, or in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from coilwork_ir.loops import Graph
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers
from coilwork_ir.repetition import Entry, Repetition


class RegionEvidence:
    """The values that steps of a shorter graph's schedule compute.

    `regions` of the whole graph were left out, those equal ones from `end` on. `steps` are described by the
    names that they mention and define.
    """

    def __init__(
        self, whole: Graph, shorter: Graph, regions: Repetition, end: int, steps: Sequence[Entry]
    ) -> None:
        self.steps = steps
        self.first, self.end, self.last = regions.first, end, regions.last
        self.owners = {
            buffer.name: owner
            for node, owner in zip(whole.nodes, regions.owners, strict=True)
            for buffer in list_defined_buffers(node)
        }
        self.reads = {
            buffer.name: frozenset(list_read_buffers(node))
            for node in shorter.nodes
            for buffer in list_defined_buffers(node)
        }
        # by values that only the schedule has: the values of the graph that they are computed from
        self.sources: dict[str, Set[str]] = {}
        for step in steps:
            read = self._find_sources(step)
            self.sources.update({name: read for name in step.defines if name not in self.reads})

    def _find_sources(self, step: Entry) -> Set[str]:
        defines = frozenset(step.defines)
        found: set[str] = set()
        for name in step.names:
            if name not in defines:
                found.update(self.sources.get(name, (name,)))
        return found

    def may_move(self, position: int, *, all_the_way: bool) -> bool:
        """Tell if the step at `position` may stand for one of later regions: what it reads and computes is of
        equal regions that were kept, or of none, or, if it moves behind all that were left out, of what lies
        behind these.
        """
        step = self.steps[position]
        sources = self._find_sources(step)
        return all(
            owner == -1 or self.first <= owner < self.end or (all_the_way and owner >= self.last)
            for owner in self._list_owners(step, sources)
        )

    def _list_owners(self, step: Entry, sources: Set[str]) -> Iterator[int]:
        """Yield the regions of values that the step reads, stores, or computes in between."""
        waiting = [name for name in step.defines if name in self.reads]
        seen = {*waiting, *sources}
        yield from (self.owners.get(name, -1) for name in seen)
        while waiting:
            for name in self.reads[waiting.pop()] - seen:
                seen.add(name)
                if name in self.reads:
                    yield self.owners[name]
                    waiting.append(name)
