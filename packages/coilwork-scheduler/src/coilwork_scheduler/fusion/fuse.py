"""Fusion: decide which stages share a kernel.

Pairs of neighbours (one reads what the other writes, or both read the same) wait in a heap, ordered by the
bytes that fusing them would save. A pair is fused if the two have a common space, if nothing forbids it
(cycles, overwritten memory, limits), and if the cost model finds the fused kernel cheaper than the two. A
fused pair gets new neighbours. Every pair is looked at once per state, and the neighbours per buffer are
bounded, so time grows as n log n.

On GPUs, reductions of columns in pieces that are left then join a kernel that reduces rows of what they read
(`row_column_fusion.py`).

`GroupDag` keeps a topological order of the groups and refuses cycles. Source: the bounded two-way search of
Pearce and Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", JEA 2006, applied to
contraction: two groups may merge if no path leads from one to the other through a third, and only what lies
between them in the order has to move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from coilwork_ir.index import Expr
from coilwork_scheduler.cost_model import KernelWork
from coilwork_scheduler.dependence import index_readers
from coilwork_scheduler.fusion.alignment import find_alignments
from coilwork_scheduler.fusion.fusion_candidate import (
    FusionCandidate,
    is_fusable,
    make_candidate,
    merge_candidates,
)
from coilwork_scheduler.fusion.profitability import FusionContext, Traffic, Verdict, Weigher
from coilwork_scheduler.fusion.row_column_fusion import (
    find_row_column_spaces,
    is_column_sum,
    is_row_reduction,
)
from coilwork_scheduler.fusion_group import Group, Stage, group_of
from coilwork_scheduler.optimization_remarks import Remarks

# ---- Acyclic merging ----


class GroupDag:
    """Groups by number; a merged group goes by the number of its first part."""

    def __init__(self, before: Sequence[Sequence[int]], limit: int) -> None:
        self._before: list[set[int]] = [set(b) for b in before]
        self._after: list[set[int]] = [set() for _ in before]
        for node, earlier in enumerate(before):
            for other in earlier:
                self._after[other].add(node)
        self._order = list(range(len(before)))
        self._parent = list(range(len(before)))
        self._limit = limit

    def find(self, node: int) -> int:
        """Return the group that `node` is part of."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def order(self, group: int) -> int:
        """Its place in the order kept."""
        return self._order[group]

    def can_merge(self, one: int, other: int) -> bool:
        """False if merging the two would make a cycle, or might."""
        first, second = sorted((one, other), key=self._order.__getitem__)
        return self._find_between(first, second) is not None

    def merge(self, one: int, other: int) -> int | None:
        """Merge two groups and return the number of the result; `None` if that makes a cycle, or might."""
        first, second = sorted((one, other), key=self._order.__getitem__)
        between = self._find_between(first, second)
        if between is None:
            return None
        later, earlier = between
        slots = sorted(self._order[n] for n in (first, second, *later, *earlier))
        sequence = [*sorted(earlier, key=self._order.__getitem__), min(first, second)]
        sequence += sorted(later, key=self._order.__getitem__)
        kept, gone = min(first, second), max(first, second)
        for slot, node in zip(slots, sequence, strict=False):
            self._order[node] = slot
        self._parent[gone] = kept
        for table in (self._before, self._after):
            if len(table[gone]) > len(table[kept]):
                table[kept], table[gone] = table[gone], table[kept]
            table[kept] |= table[gone]
            table[gone] = set()
            table[kept] -= {kept, gone}
        return kept

    def _find_between(self, first: int, second: int) -> tuple[set[int], set[int]] | None:
        """Groups that must move behind and before the merged one; `None` if there is a path through a third
        group.
        """
        later = self._reach(first, second, self._after, forward=True)
        if later is None:
            return None
        earlier = self._reach(second, first, self._before, forward=False)
        return None if earlier is None else (later, earlier)

    def _reach(self, start: int, goal: int, edges: list[set[int]], *, forward: bool) -> set[int] | None:
        """Groups between `start` and `goal` that a path from `start` leads to; `None` if one leads on to
        `goal`.
        """
        bound = self._order[goal]
        seen: set[int] = set()
        stack = [start]
        while stack:
            node = stack.pop()
            # the direction of the search decides nothing but which nodes are met first: sets may be iterated
            for raw in edges[node]:
                other = self.find(raw)
                if other in (start, node) or other in seen:
                    continue
                if other == goal:
                    if node != start:
                        return None
                    continue
                place = self._order[other]
                if place > bound if forward else place < bound:
                    continue
                if len(seen) >= self._limit:
                    return None
                seen.add(other)
                stack.append(other)
        return seen


# ---- The fusion pass ----


# Pairs of accesses that alignments of two candidates are looked for by.
MOST_SHARED: Final = 4
_CYCLE: Final = Verdict(None, "reject-cycle", "a third kernel lies between the two, or might")


class Fuser:
    """Fuses the stages of one graph."""

    def __init__(self, context: FusionContext, stages: Sequence[Stage], remarks: Remarks) -> None:
        self._context = context
        self._remarks = remarks
        facts = context.facts
        self._stages = stages
        self._candidates: dict[int, FusionCandidate] = {}
        for stage in stages:
            device = facts.buffers[stage.stores[0].buffer].device if stage.stores else ""
            if is_fusable(stage, on_gpu=context.settings.targets.of(device).is_gpu):
                self._candidates[stage.position] = make_candidate(stage, device)
        self._dag = GroupDag(facts.before, context.settings.options.search_limit)
        self._readers = index_readers(context.graph, facts)
        # readers among the candidates only: neighbours to fuse with
        self._partners = {
            name: [r for r in readers if r in self._candidates] for name, readers in self._readers.items()
        }
        # buffers that some other step, or the caller, needs in memory
        self._wanted = frozenset(
            n for n, readers in self._readers.items() if len(self._partners[n]) < len(readers)
        )
        # buffers that link at least two stages: the others lead to no neighbour
        self._links = frozenset(
            name
            for name, readers in self._partners.items()
            if len(readers) > 1 or (readers and facts.definer.get(name) in self._candidates)
        )
        self._fusable = frozenset(self._candidates)
        self._version = dict.fromkeys(self._candidates, 0)
        self._works: dict[int, KernelWork] = {}
        self._traffic = Traffic(
            buffers=facts.buffers, sizes=context.settings.sizes, targets=context.settings.targets
        )
        self._weigher = Weigher(
            context=context,
            traffic=self._traffic,
            partners=self._partners,
            wanted=self._wanted,
            links=self._links,
        )
        self._tried: set[tuple[int, int, int, int]] = set()
        self._heap: list[tuple[int, int, int, int, int]] = []
        self._serial = 0

    def run(self) -> tuple[Group, ...]:
        """One group per kernel, in the order of their first stages."""
        for position in self._candidates:
            self._consider_neighbours(position, later_only=True)
        self._fuse_pairs()
        while self._fuse_columns_into_rows():
            # results of what joined one kernel may share the next one too
            self._fuse_pairs()
        groups = [candidate.group for candidate in self._candidates.values()]
        groups += [group_of(stage) for stage in self._stages if stage.position not in self._fusable]
        return tuple(sorted(groups, key=lambda group: group.position))

    def _fuse_pairs(self) -> None:
        while self._heap:
            _, first, second, first_version, second_version = heappop(self._heap)
            if self._version.get(first) != first_version or self._version.get(second) != second_version:
                continue
            self._attempt(first, second, self._judge(first, second))

    def _fuse_columns_into_rows(self) -> bool:
        """Put reductions of columns into kernels that reduce rows of what they read; true if
        there was one.
        """
        joined = False
        for position in tuple(self._candidates):
            # those before may have taken this one in
            columns = self._candidates.get(position)
            if columns is None or not self._has_row_loops(columns) or not is_column_sum(columns):
                continue
            if not self._traffic.is_column_reduction(columns):
                continue
            for partner in self._row_partners(position):
                version = self._serial
                self._attempt(partner, position, self._judge_columns(partner, position))
                if self._serial != version:
                    joined = True
                    break
        return joined

    def _row_partners(self, position: int) -> list[int]:
        """Clusters that reduce rows and touch what the columns at `position` read, by the bytes they have in
        common.
        """
        columns = self._candidates[position]
        places = {part.stage.position for part in columns.parts}
        found: dict[int, int] = {}
        for name in columns.read_names & self._links:
            for user in self._users_near(name, places, later_only=False):
                found.setdefault(self._dag.find(user), 0)
        found.pop(position, None)
        for group in found:
            names = columns.read_names & self._candidates[group].names
            found[group] = sum(self._traffic.size(name) for name in names)
        rows = [
            group
            for group in found
            if is_row_reduction(self._candidates[group])
            and not self._traffic.is_column_reduction(self._candidates[group])
        ]
        return sorted(rows, key=lambda group: (-found[group], group))

    # candidates

    def _consider_neighbours(self, position: int, *, later_only: bool) -> None:
        candidate = self._candidates[position]
        places = {part.stage.position for part in candidate.parts}
        found: dict[int, int] = {}
        for name in candidate.names & self._links:
            size = self._traffic.size(name)
            for other in self._users_near(name, places, later_only):
                group = self._dag.find(other)
                if group != position:
                    found[group] = found.get(group, 0) + size
        for other in self._siblings(candidate):
            if other != position:
                found.setdefault(other, 0)
        for other, saved in found.items():
            first, second = min(position, other), max(position, other)
            key = (first, second, self._version[first], self._version[second])
            if key not in self._tried:
                self._tried.add(key)
                heappush(self._heap, (-saved, *key))

    def _users_near(self, name: str, places: set[int], later_only: bool) -> list[int]:
        """Clusters' stages that define or read `name`, nearest to `places`, a bounded number each way."""
        window = self._context.settings.options.fusion_window
        readers = self._partners[name]
        if len(readers) <= 2 * window:
            low = min(places) if later_only else -1
            found = [r for r in readers if r > low and r not in places]
        else:
            start = bisect_right(readers, max(places))
            found = readers[start : start + window]
            if not later_only:
                start = bisect_left(readers, min(places))
                found += readers[max(0, start - window) : start]
        definer = self._context.facts.definer.get(name)
        if definer is not None and not later_only and definer not in places and definer in self._fusable:
            found.append(definer)
        return found

    def _consider_readers(self, position: int) -> None:
        """Consider readers of a reduction that just grew: reductions of its results may be siblings now."""
        candidate = self._candidates[position]
        if not candidate.reduced or not self._is_on_gpu(candidate):
            return
        window = self._context.settings.options.fusion_window
        # one kernel may read many of the results
        groups = dict.fromkeys(
            self._dag.find(reader)
            for name in sorted(self._links.intersection(candidate.written))
            for reader in self._partners[name][:window]
        )
        for group in groups:
            if group != position and self._candidates[group].reduced:
                self._consider_neighbours(group, later_only=False)

    def _siblings(self, candidate: FusionCandidate) -> set[int]:
        """Reductions of results of the same kernels that `candidate`, a reduction on a GPU, reduces results
        of.

        So the sums of several results' pieces share a kernel too, though they read nothing alike.
        """
        if not candidate.reduced or not self._is_on_gpu(candidate):
            return set()
        definer = self._context.facts.definer
        makers = {self._dag.find(definer[n]) for n in candidate.read_names & self._links if n in definer}
        window = self._context.settings.options.fusion_window
        groups = {
            self._dag.find(reader)
            for maker in makers
            if maker in self._candidates and self._candidates[maker].reduced
            for name in self._links.intersection(self._candidates[maker].written)
            for reader in self._partners[name][:window]
        }
        return {group for group in groups if self._candidates[group].reduced}

    def _is_on_gpu(self, candidate: FusionCandidate) -> bool:
        return self._context.settings.targets.of(candidate.device).is_gpu

    def _has_row_loops(self, candidate: FusionCandidate) -> bool:
        return self._context.settings.targets.capabilities_of(candidate.device).rows.loop_row > 0

    # one pair

    def _attempt(self, first: int, second: int, verdict: Verdict) -> None:
        """Do what `verdict` says about the pair, and record it."""
        subjects = (self._label(first), self._label(second))
        fused = verdict.fused
        if fused is not None:
            kept = self._dag.merge(first, second)
            if kept is None:
                verdict = _CYCLE
            else:
                gone = second if kept == first else first
                del self._candidates[gone]
                del self._version[gone]
                self._works.pop(gone, None)
                self._works.pop(kept, None)
                if verdict.work is not None:
                    self._works[kept] = verdict.work
                self._candidates[kept] = fused
                self._serial += 1
                self._version[kept] = self._serial
        if verdict.rule:
            self._remarks.note(
                verdict.rule, subjects, verdict.fused is not None, verdict.reason, **dict(verdict.numbers)
            )
        if verdict.fused is not None:
            grown = min(first, second)
            self._consider_neighbours(grown, later_only=False)
            self._consider_readers(grown)

    def _label(self, position: int) -> str:
        parts = self._candidates[position].parts
        return next((touch.buffer for part in parts for touch in part.writes), f"checks of node {position}")

    def _judge_columns(self, first: int, second: int) -> Verdict:
        """Tell if the columns at `second` join the rows at `first`."""
        rows, columns = self._candidates[first], self._candidates[second]
        limit = self._weigher.limits(rows, columns)
        if limit is not None:
            return limit
        flows = not columns.read_names.isdisjoint(rows.written.keys())
        if not flows and not self._context.settings.options.horizontal:
            return Verdict(None, "", "")
        verdict = Verdict(None, "", "")
        for alignment in find_row_column_spaces(
            rows, columns, _find_common_accesses(rows, columns), str(self._serial)
        ):
            if not self._dag.can_merge(first, second):
                return _CYCLE
            both = merge_candidates(rows, columns, alignment)
            works = [self._work_of(p) for p in (first, second)]
            verdict = self._weigher.weigh(rows, columns, both, flows=flows, works=works)
            if verdict.fused is not None:
                break
        return verdict

    def _judge(self, first: int, second: int) -> Verdict:
        one, two = self._candidates[first], self._candidates[second]
        if one.sequential or two.sequential:
            return Verdict(None, "", "")
        limit = self._weigher.limits(one, two)
        if limit is not None:
            return limit
        flows = not (
            two.read_names.isdisjoint(one.written.keys()) and one.read_names.isdisjoint(two.written.keys())
        )
        if not flows and not self._context.settings.options.horizontal:
            return Verdict(None, "", "")
        if flows and not self._dag.can_merge(first, second):
            return _CYCLE
        best = Verdict(None, "reject-space", "no common iteration space")
        for alignment in find_alignments(
            one.group, two.group, _find_common_accesses(one, two), str(self._serial)
        ):
            candidate = merge_candidates(one, two, alignment)
            if alignment.interleaved and not flows and len(candidate.read) == len(one.read) + len(two.read):
                # nothing is read alike: all that this space does is to scatter one of the two's accesses
                continue
            verdict = self._weigher.weigh(
                one, two, candidate, flows=flows, works=[self._work_of(p) for p in (first, second)]
            )
            if verdict.fused is not None:
                return verdict
            # a verdict with figures says more than that some other space does not fit
            if not best.numbers:
                best = verdict
            if verdict.rule in ("reject-args", "reject-registers"):
                break
        # pairs that merely read the same buffer in unrelated ways are not worth a record
        return best if flows or best.rule != "reject-space" else Verdict(None, "", "")

    # costs

    def _work_of(self, position: int) -> KernelWork:
        found = self._works.get(position)
        if found is None:
            found = self._works[position] = self._weigher.work(self._candidates[position])
        return found


def _find_common_accesses(
    one: FusionCandidate, two: FusionCandidate
) -> list[tuple[tuple[Expr, ...], tuple[Expr, ...]]]:
    """Pairs of coordinates at which the two touch a buffer, `MOST_SHARED` at most.

    Those of what flows between them come first. Both may read many elements of one buffer, so the search ends
    with what it looks for.
    """
    theirs: dict[str, dict[tuple[Expr, ...], None]] = {}
    for part in two.parts:
        for touch in (*part.writes, *part.reads):
            if touch.direct:
                theirs.setdefault(touch.buffer, {}).setdefault(touch.index)
    flowing: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], None] = {}
    common: dict[tuple[tuple[Expr, ...], tuple[Expr, ...]], None] = {}
    for part in one.parts:
        for touch in (*part.writes, *part.reads):
            if not touch.direct or touch.buffer not in theirs:
                continue
            flows = touch.buffer in one.written or touch.buffer in two.written
            pairs = flowing if flows else common
            for index in theirs[touch.buffer]:
                if len(pairs) == MOST_SHARED:
                    break
                pairs.setdefault((touch.index, index))
        if len(flowing) == MOST_SHARED:
            break
    return [*flowing, *common][:MOST_SHARED]
