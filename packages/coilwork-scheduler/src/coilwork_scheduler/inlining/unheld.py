"""Whose checks the kernels of its consumers cannot hold, and what becomes of them if it is computed there all
the same.

A kernel checks positions where it goes through all of them, as one does that computes a value at the points
where others read it. It does not where the value goes into a scatter, or is read elsewhere: at yet other
positions from data, as part of a concatenation, beside itself. Such a value would be stored with nothing
computed from it, to be read again. There are two ways out: scatters that go through all points of a value
take its checks over (`handed_on.py`); otherwise its positions are stored, which take less memory
(`checked.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coilwork_ir.index import Expr, as_int, extent_of, provably_eq, stride_of
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Sort
from coilwork_ir.loops.access import bodies
from coilwork_ir.scalar import loads, range_symbols
from coilwork_ir.target import Targets
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.inlining.checked import take_apart
from coilwork_scheduler.inlining.handed_on import Takes, handed_on, holds_nothing
from coilwork_scheduler.inlining.inlining_cost import Computation, InlinedComputation
from coilwork_scheduler.remarks import Journal
from coilwork_scheduler.sizes import SizeHints

# A position is written and read where what it stands for need not be.
_WRITTEN_AND_READ: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was found of a choice of candidates: those in `vain` are better stored; scatters take the checks
    of those `handed` on.
    """

    vain: frozenset[str] = frozenset()
    handed: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Unheld:
    """Judges the pointwise nodes of one graph that have checks.

    Attributes:
        graph, facts, targets, sizes: what there is.
        readers: of each buffer, as `readers_of` gives them.
        us: estimates what a kernel takes that reads and writes so many bytes.
    """

    graph: Graph
    facts: Dependence
    readers: Mapping[str, Sequence[int]]
    targets: Targets
    sizes: SizeHints
    us: Callable[[float, float], float]
    _names: frozenset[str] = frozenset()
    _handed: frozenset[str] = frozenset()
    _refused: frozenset[str] = frozenset()
    _elsewhere: dict[int, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(isinstance(node, Pointwise) and node.checks for node in self.graph.nodes):
            self._names = self._going_on(_always)
            self._handed = handed_on(self.graph, self.readers, _always)

    def should_leave(self, node: Pointwise, journal: Journal) -> bool:
        """Tell if `node` should be computed without its checks, by whoever reads it."""
        name = node.output.name
        if name not in self._names or name in self._refused:
            return False
        reason = self._drawback(node, handed=name in self._handed)
        if reason:
            journal.note("inline", (name,), False, reason)
        return reason is None

    def _drawback(self, node: Pointwise, *, handed: bool) -> str | None:
        """Why `node` should not be computed without its checks, "" if it cannot be; None if it should."""
        name, size = node.output.name, self.sizes.size_bytes(node.output)
        target = self.targets.of(node.output.device)
        users = self.readers[name]
        # Shorter rows are fetched once on a GPU, as it would fetch as much again for another consumer; and by
        # all threads on a CPU, as few of them share a scatter.
        is_short = self._row_bytes(node) < target.machine.memory.fetched_bytes
        if is_short and (len(users) > 1 or not target.is_gpu):
            return "what it looks up at a position is too short to be fetched again"
        if handed:
            return None
        apart = take_apart(node, {}, self.facts.buffers)
        if apart is None:
            return ""
        if _WRITTEN_AND_READ * sum(self.sizes.size_bytes(buffer) for buffer in apart.stored) > size:
            return "its checked positions would take as much memory as it does"
        held = [user for user in users if not self._goes_on(user, name, self._names)]
        if held and self.us(size, size) - self.us(0, 0) < target.launch_us:
            return "it shares a kernel with a consumer, and is small"
        return None

    def _row_bytes(self, node: Pointwise) -> int:
        """Bytes that `node` looks up at a position."""
        points = 1
        for check in node.checks:
            used = range_symbols((check.condition,))
            points = max(points, self.sizes.numel(tuple(extent_of(r) for r in node.ranges if r in used)))
        return self.sizes.size_bytes(node.output) // points

    def refuse(self, names: Collection[str]) -> None:
        """Leave the checks of `names` where they are."""
        self._refused = self._refused.union(names)

    def outcome(self, candidates: Mapping[str, int], facts: Mapping[int, InlinedComputation]) -> Outcome:
        """Return what becomes of the checks of `candidates`, which are computed where `facts` say."""
        nodes = [node for at in candidates.values() if isinstance(node := self.graph.nodes[at], Pointwise)]
        with_checks = [node for node in nodes if node.checks]
        if not with_checks:
            return Outcome()

        def takes(user: int, name: str) -> bool:
            return name in candidates and user in facts and name in facts[user].inlined

        going, handed = self._going_on(takes), handed_on(self.graph, self.readers, takes)
        vain = {
            node.output.name
            for node in with_checks
            if node.output.name not in handed
            and (node.output.name not in going or self._drawback(node, handed=False) is not None)
        }
        return Outcome(vain=frozenset(vain), handed=handed)

    def _going_on(self, takes: Takes) -> frozenset[str]:
        """Results of pointwise nodes that go, through other ones or not, to where no kernel holds their
        checks.

        That is by way of those users that `takes` them.
        """
        found: set[str] = set()
        nodes = self.graph.nodes
        for node in reversed(nodes):
            if not isinstance(node, Pointwise) or node.into is not None:
                continue
            name = node.output.name
            users = self.readers.get(name, ())
            if any(user == len(nodes) or not isinstance(nodes[user], Computation) for user in users):
                # the caller wants it, or an operator: it is stored
                continue
            if any(takes(user, name) and self._goes_on(user, name, found) for user in users):
                found.add(name)
        return frozenset(found)

    def _goes_on(self, user: int, name: str, found: Collection[str]) -> bool:
        """Tell if `user` computes with `name` where checks of it are not held; of later nodes these are
        `found`.
        """
        match node := self.graph.nodes[user]:
            case Pointwise(checks=(), output=output) if output.name in found:
                return True
            case Pointwise() | Reduce() | Scan() | Sort():
                if user not in self._elsewhere:
                    self._elsewhere[user] = self._read_elsewhere(node)
                return name in self._elsewhere[user]
            case _:
                return holds_nothing(node)

    def _read_elsewhere(self, user: Node) -> frozenset[str]:
        """Buffers that `user` reads at other points than its own, so that it shares no kernel with who
        computes them.
        """
        places: dict[str, tuple[Expr, ...]] = {}
        found: set[str] = set()
        for access in loads(bodies(user)):
            shape = self.facts.buffers[access.buffer].shape
            moved = any(_is_moved(e, size) for e, size in zip(access.index, shape, strict=True))
            same = places.setdefault(access.buffer, access.index) == access.index
            if access.indirect or access.mask is not None or moved or not same:
                found.add(access.buffer)
        return frozenset(found)


def _is_moved(place: Expr, size: Expr) -> bool:
    """Tell whether `place` goes through a dimension of `size` in part, from elsewhere or by steps, along one
    range or none.
    """
    symbols = tuple(place.free_symbols)
    if len(symbols) != 1 or symbols[0].extent is None:
        return not symbols and as_int(size) != 1
    (along,) = symbols
    if place is along:
        return not provably_eq(extent_of(along), size)
    return stride_of(place, along) is not None


def _always(user: int, name: str) -> bool:
    return True
