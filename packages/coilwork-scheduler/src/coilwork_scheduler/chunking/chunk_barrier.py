"""Keep what comes before chunks and what comes behind them out of one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.loops import Graph
from coilwork_ir.loops.access import list_defined_buffers, list_read_buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkBarrier:
    """The buffers on the two sides of chunks.

    A kernel that made buffers of both sides would let the first chunk wait for the last one, with all of them
    in memory.

    Attributes:
        before: what chunks are computed from, and is computed from none.
        behind: chunks, and what is computed from them.
    """

    before: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()

    def forbids(self, made: frozenset[str]) -> bool:
        """Tell if one kernel must not make all of `made`."""
        return not (self.before.isdisjoint(made) or self.behind.isdisjoint(made))


NO_BARRIER: Final = ChunkBarrier()


def find_chunk_barrier(graph: Graph, chunks: Mapping[str, int]) -> ChunkBarrier:
    """Find the two sides of `chunks`, numbers by the names of buffers. Linear in the graph's size."""
    if not chunks:
        return NO_BARRIER
    behind: set[str] = set()
    for node in graph.nodes:
        made = [buffer.name for buffer in list_defined_buffers(node)]
        if not chunks.keys().isdisjoint(made) or not behind.isdisjoint(list_read_buffers(node)):
            behind.update(made)
    before: set[str] = set()
    for node in reversed(graph.nodes):
        made = [buffer.name for buffer in list_defined_buffers(node)]
        if not chunks.keys().isdisjoint(made) or not before.isdisjoint(made):
            before.update(name for name in list_read_buffers(node) if name not in behind)
    return ChunkBarrier(before=frozenset(before), behind=frozenset(behind))
