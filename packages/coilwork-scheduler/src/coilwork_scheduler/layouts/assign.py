"""`assign_layouts`: strides of free memory become those with which the graph moves the fewest bytes.

Memory whose loops all run along it is left alone, and so is the rest if little would be gained: only groups of loops that know each other, one
of which reads or writes across some memory, are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, format_expr
from coilwork_ir.loops import Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import defined
from coilwork_ir.loops.layouts import Free, layouts_of
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.known import contraction_of_node
from coilwork_scheduler.cost import CostModel
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.layouts.candidates import candidates_for
from coilwork_scheduler.layouts.solve import Term, choose_cheapest
from coilwork_scheduler.layouts.traffic import COMPUTATIONS, SCALE, NodeTraffic, list_row_reductions
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints

Strides = tuple[Expr, ...]
# What a change must save of the bytes of the loops around it: less is within the model's error.
_LEAST_SHARE: Final = 16


def assign_layouts(
    graph: Graph,
    facts: Dependence,
    *,
    targets: Targets,
    model: CostModel,
    sizes: SizeHints,
    options: ScheduleOptions,
    journal: Journal,
) -> Graph:
    """`graph` with the strides that are chosen for its free memory. Near-linear in its size.

    With `batch_invariant` strides stay: which are best depends on how many rows there are.
    """
    if options.batch_invariant:
        return graph
    free = _choosable(graph, facts)
    if not free:
        return graph
    rows = list_row_reductions(graph, sizes)
    loops = [
        NodeTraffic(node, facts.buffers, facts.root, sizes, keeps_rows=position in rows)
        for position, node in enumerate(graph.nodes)
        if isinstance(node, COMPUTATIONS)
    ]
    chosen: dict[str, Strides] = {}
    for group in _groups(loops, free):
        chosen.update(_Group(group, free, facts.buffers, targets, journal).choose())
    if not chosen:
        return graph
    return replace(graph, nodes=tuple(_restride(node, facts.root, chosen) for node in graph.nodes))


def _choosable(graph: Graph, facts: Dependence) -> frozenset[str]:
    """Free memory of two dimensions or more, but for that of matrix products, whose kernels are chosen by strides, and of scatters.

    Scatters that fill one memory part by part share kernels with each other as long as all of their parts lie alike.
    """
    layouts = layouts_of(graph)
    free = {name for name, layout in layouts.items() if isinstance(layout, Free) and len(layout.shape) > 1}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Scatter):
            free.discard(facts.root[node.output.name])
        if free and contraction_of_node(node) is not None:
            free.difference_update(facts.root[name] for name in facts.reads[position])
            free.difference_update(facts.root[buffer.name] for buffer in defined(node))
    return frozenset(free)


def _groups(loops: Sequence[NodeTraffic], free: frozenset[str]) -> list[list[NodeTraffic]]:
    """Loops that know each other through free memory, where one of them runs across some memory; in order."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    touched = [tuple(dict.fromkeys(t.root for t in loop.touches if t.root in free)) for loop in loops]
    for names in touched:
        for name in names[1:]:
            parent[find(name)] = find(names[0])
    groups: dict[str, list[NodeTraffic]] = {}
    wasteful: set[str] = set()
    for loop, names in zip(loops, touched, strict=True):
        if names:
            groups.setdefault(find(names[0]), []).append(loop)
            if loop.waste(_as_captured) > 0:
                wasteful.add(find(names[0]))
    return [group for name, group in groups.items() if name in wasteful]


def _as_captured(root: str, buffer: Buffer) -> Strides:
    return buffer.strides


@dataclass(frozen=True, slots=True)
class _Variable:
    """Free memory, and the strides that it may have."""

    name: str
    candidates: tuple[Strides, ...]
    around: tuple[int, ...]


class _Group:
    """Loops that know each other, and the memory between them."""

    def __init__(
        self,
        loops: Sequence[NodeTraffic],
        free: frozenset[str],
        buffers: Mapping[str, Buffer],
        targets: Targets,
        journal: Journal,
    ) -> None:
        self.loops = loops
        self.journal = journal
        around: dict[str, list[int]] = {}
        for number, loop in enumerate(loops):
            for name in dict.fromkeys(touch.root for touch in loop.touches if touch.root in free):
                around.setdefault(name, []).append(number)
        self.variables: list[_Variable] = []
        for name, numbers in around.items():
            found = candidates_for(buffers[name], [loops[n] for n in numbers])
            if len(found) > 1:
                self.variables.append(_Variable(name, found, tuple(numbers)))
        self.places = {variable.name: k for k, variable in enumerate(self.variables)}
        self.terms = [self._term(loop) for loop in loops]
        device = buffers[next(iter(around))].device
        self.bytes_per_us = targets.of(device).bandwidth_gb_s * 1e3

    def _term(self, loop: NodeTraffic) -> Term:
        scope = tuple(dict.fromkeys(self.places[t.root] for t in loop.touches if t.root in self.places))
        return Term(scope, lambda choice: loop.cost(self._lookup(scope, choice)))

    def _lookup(self, scope: Sequence[int], choice: Sequence[int]) -> Callable[[str, Buffer], Strides]:
        chosen = {
            self.variables[v].name: self.variables[v].candidates[c]
            for v, c in zip(scope, choice, strict=True)
        }
        return lambda root, buffer: chosen.get(root, buffer.strides)

    def choose(self) -> dict[str, Strides]:
        """Strides of memory that is to lie otherwise than captured."""
        if not self.variables:
            return {}
        counts = [len(variable.candidates) for variable in self.variables]
        choice = list(choose_cheapest(counts, [term for term in self.terms if term.scope]))
        self._keep_what_gains_little(choice)
        for place, variable in enumerate(self.variables):
            self._record(variable, place, choice)
        return {
            variable.name: variable.candidates[c]
            for variable, c in zip(self.variables, choice, strict=True)
            if c != 0
        }

    def _keep_what_gains_little(self, choice: list[int]) -> None:
        """Set memory back to its captured strides where a change of it and of what it touches saves too little."""
        for cluster in self._clusters([v for v, c in enumerate(choice) if c != 0]):
            numbers = sorted({n for v in cluster for n in self.variables[v].around})
            kept = choice.copy()
            for v in cluster:
                kept[v] = 0
            before, after = self._cost(numbers, kept), self._cost(numbers, choice)
            if (before - after) * _LEAST_SHARE < before:
                choice[:] = kept

    def _clusters(self, changed: Sequence[int]) -> list[list[int]]:
        """`changed` variables, in groups that share loops."""
        group: dict[int, list[int]] = {}
        by_loop: dict[int, list[int]] = {}
        for v in changed:
            mine = [v]
            for number in self.variables[v].around:
                other = by_loop.get(number, mine)
                if other is not mine:
                    small, large = sorted((mine, other), key=len)
                    large.extend(small)
                    for moved in small:
                        for n in self.variables[moved].around:
                            by_loop[n] = large
                    mine = large
                by_loop[number] = mine
            for member in mine:
                group[member] = mine
        return list({id(members): sorted(members) for members in group.values()}.values())

    def _cost(self, numbers: Sequence[int], choice: Sequence[int]) -> int:
        return sum(self.terms[n].cost(tuple(choice[v] for v in self.terms[n].scope)) for n in numbers)

    def _record(self, variable: _Variable, place: int, choice: Sequence[int]) -> None:
        """Note what was chosen, its runner-up, and what that would cost more."""
        costs: list[int] = []
        for candidate in range(len(variable.candidates)):
            trial = list(choice)
            trial[place] = candidate
            costs.append(self._cost(variable.around, trial))
        chosen = choice[place]
        second = min(
            (c for c in range(len(costs)) if c != chosen),
            # orders that differ in outer dimensions cost the same, and tell nothing
            key=lambda c: (costs[c] == costs[chosen], costs[c], c),
        )
        lost = (costs[second] - costs[chosen]) / SCALE
        self.journal.note(
            "layout",
            (variable.name,),
            chosen != 0,
            f"{_text(variable.candidates[chosen])}, then {_text(variable.candidates[second])}",
            runner_up_bytes=lost,
            runner_up_us=lost / self.bytes_per_us,
        )


def _text(strides: Strides) -> str:
    return "{" + ", ".join(format_expr(stride) for stride in strides) + "}"


def _restride(node: Node, roots: Mapping[str, str], chosen: Mapping[str, Strides]) -> Node:
    """`node` with the chosen strides for what it defines."""

    def moved(buffer: Buffer) -> Buffer:
        strides = chosen.get(roots[buffer.name])
        return buffer if strides is None else replace(buffer, strides=strides)

    match node:
        case Pointwise() | Scatter():
            return replace(node, output=moved(node.output))
        case Reduce() | Scan():
            return replace(node, outputs=tuple(None if b is None else moved(b) for b in node.outputs))
        case Sort(outputs=(values, positions)):
            return replace(
                node,
                outputs=(
                    None if values is None else moved(values),
                    None if positions is None else moved(positions),
                ),
            )
        case _:
            return node
