"""Whose checks the kernels of its consumers cannot hold, and when that is worth storing its positions for.

A kernel checks positions where it goes through all of them, as one does that computes a value at the points where others
read it. It does not where the value goes into a scatter, or is read at yet other positions from data. Such a value would be stored
with nothing computed from it, to be read again. Its positions take less memory: `checked.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import bodies
from coilwork_ir.scalar import loads
from coilwork_ir.target import Targets
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.cluster import fusable
from coilwork_scheduler.inlining.checked import Apart, take_apart
from coilwork_scheduler.inlining.rewriting import Facts
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.sizes import SizeHints
from coilwork_scheduler.stage import stage_of

# A position is written and read where what it stands for need not be.
_WRITTEN_AND_READ: Final = 2
# Bytes that memory gives at a time. Shorter rows are fetched once on a GPU, as it would fetch as much again for another
# consumer; and by all threads on a CPU, as few of them share a scatter.
_SECTOR: Final = 32
_LINE: Final = 64


class Unheld:
    """Judges the pointwise nodes of one graph that have checks; `readers` of each buffer as `readers_of` gives them.

    `us` estimates what a kernel takes that reads and writes so many bytes.
    """

    def __init__(
        self,
        graph: Graph,
        readers: Mapping[str, Sequence[int]],
        facts: Dependence,
        *,
        targets: Targets,
        sizes: SizeHints,
        us: Callable[[float, float], float],
    ) -> None:
        self._graph = graph
        self._readers = readers
        self._buffers = facts.buffers
        self._targets = targets
        self._sizes = sizes
        self._us = us
        self._names = self._going_on(lambda user, name: True)
        self._refused: frozenset[str] = frozenset()

    def should_leave(self, node: Pointwise, journal: Journal) -> bool:
        """Whether `node` should be computed without its checks, by whoever reads it."""
        name = node.output.name
        if name not in self._names or name in self._refused:
            return False
        apart = take_apart(node, {}, self._buffers)
        if apart is None:
            return False
        reason = self._drawback(node, apart)
        if reason is not None:
            journal.note("inline", (name,), False, reason)
        return reason is None

    def _drawback(self, node: Pointwise, apart: Apart) -> str | None:
        """Why the positions of `node`, taken `apart`, should not be stored in its place; None if they should."""
        name, size = node.output.name, self._sizes.size_bytes(node.output)
        target = self._targets.of(node.output.device)
        stored = sum(self._sizes.size_bytes(buffer) for buffer in apart.stored)
        if _WRITTEN_AND_READ * stored > size:
            return "its checked positions would take as much memory as it does"
        row = size // max(1, *(self._sizes.numel(buffer.shape) for buffer in apart.stored))
        users = self._readers[name]
        if row < (_SECTOR if target.is_gpu else _LINE) and (len(users) > 1 or not target.is_gpu):
            return "what it looks up at a position is too short to be fetched again"
        held = [user for user in users if not _goes_on(self._graph.nodes[user], name, self._names)]
        if held and self._us(size, size) - self._us(0, 0) < target.launch_us:
            return "it shares a kernel with a consumer, and is small"
        return None

    def refuse(self, names: Collection[str]) -> None:
        """Leave the checks of `names` where they are."""
        self._refused = self._refused.union(names)

    def in_vain(self, candidates: Mapping[str, int], facts: Mapping[int, Facts]) -> frozenset[str]:
        """Those `candidates` with checks that are computed, as `facts` say, only where their checks could have been held."""
        with_checks = [
            name
            for name, at in candidates.items()
            if isinstance(node := self._graph.nodes[at], Pointwise) and node.checks
        ]
        if not with_checks:
            return frozenset()
        used = self._going_on(
            lambda user, name: name in candidates and user in facts and name in facts[user].inlined
        )
        return frozenset(with_checks) - used

    def _going_on(self, takes: Callable[[int, str], bool]) -> frozenset[str]:
        """Results of pointwise nodes that go, through other ones or not, to where no kernel holds their checks.

        That is by way of those users that `takes` them.
        """
        found: set[str] = set()
        nodes = self._graph.nodes
        for node in reversed(nodes):
            if not isinstance(node, Pointwise) or node.into is not None:
                continue
            name = node.output.name
            users = self._readers.get(name, ())
            # what the caller wants is stored
            if len(nodes) not in users and any(
                takes(user, name) and _goes_on(nodes[user], name, found) for user in users
            ):
                found.add(name)
        return frozenset(found)


def _goes_on(user: Node, name: str, found: Collection[str]) -> bool:
    """Whether `user` computes with `name` where checks of it are not held; of later nodes these are `found`."""
    match user:
        case Scatter():
            return not fusable(stage_of(0, user))
        case Pointwise(checks=(), output=output) if output.name in found:
            return True
        case Pointwise() | Reduce() | Scan() | Sort():
            return any(access.indirect for access in loads(bodies(user)) if access.buffer == name)
        case _:
            return False
