"""`assign_layouts` gives free memory the strides with which a graph moves the fewest bytes.

Memory whose loops all run along it is left alone, and so is the rest if little would be gained: only groups
of connected loops are looked at, one of which reads or writes across some memory. `explain_layouts` shows the
decision about each buffer as a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int, format_expr
from coilwork_ir.kernels import Decision
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort, View
from coilwork_ir.loops.access import list_defined_buffers
from coilwork_ir.loops.layouts import (
    Fixed,
    Free,
    Layout,
    Strides,
    ViewsOf,
    find_dense_order,
    find_layouts,
    find_memory_roots,
    restride_view,
)
from coilwork_ir.scalar import Load
from coilwork_ir.target import Targets
from coilwork_scheduler.contractions.sum_of_products import match_contraction_node
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.dependence import Dependence, analyse
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    LayoutRule,
    Site,
    insert_copies,
    list_candidates,
)
from coilwork_scheduler.layouts.rules import RULES
from coilwork_scheduler.layouts.solve import Term, choose_cheapest
from coilwork_scheduler.layouts.traffic import list_row_reductions
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import ScheduleOptions, make_size_hints
from coilwork_scheduler.settings import Settings

# ---- The pass ----


# What a change must save of the bytes of the loops around it: less is within the model's error.
_LEAST_SHARE: Final = 16


def assign_layouts(
    graph: Graph,
    facts: Dependence,
    settings: Settings,
    rules: Sequence[LayoutRule] = RULES,
) -> Graph:
    """Choose strides for free memory of `graph`, and insert copies before calls. Near-linear in its size.

    With `batch_invariant` strides stay: which are best depends on how many rows there are.
    """
    if settings.options.batch_invariant:
        return graph
    context = collect_layout_facts(graph, facts, targets=settings.targets, sizes=settings.sizes)
    sites = list_sites(context, rules, settings.options)
    free = _find_free_memory(context, sites)
    names: dict[str, list[str]] = {}
    for name, root in facts.root.items():
        if root in free:
            names.setdefault(root, []).append(name)
    chosen: dict[str, Strides] = {}
    copied: list[Copy] = []
    for group in _groups(context, [site for each in sites.values() for site in each], free):
        laid_out, copies = _Group(group, free, names, context, settings.remarks).choose()
        chosen.update(laid_out)
        copied += copies
    if not chosen and not copied:
        return graph
    nodes = tuple(_restride(node, context, chosen) for node in graph.nodes)
    made = replace(graph, nodes=nodes)
    return insert_copies(made, copied, facts.fresh_names()) if copied else made


def collect_layout_facts(
    graph: Graph, facts: Dependence, *, targets: Targets, sizes: SizeHints
) -> LayoutContext:
    """Return the facts that rules read."""
    return LayoutContext(
        graph=graph,
        facts=facts,
        views=ViewsOf(graph),
        targets=targets,
        sizes=sizes,
        row_reductions=list_row_reductions(graph, facts, sizes, targets),
    )


def list_sites(
    context: LayoutContext, rules: Sequence[LayoutRule], options: ScheduleOptions
) -> dict[int, tuple[Site, ...]]:
    """List the sites of each node, by position, from the rules that `options` enable. Their costs add up."""
    found: dict[int, tuple[Site, ...]] = {}
    rules = [rule for rule in rules if rule.is_asked(options)]
    for position, node in enumerate(context.graph.nodes):
        sites: list[Site] = []
        for rule in rules:
            answer = rule.site(position, node, context)
            if isinstance(answer, Sequence):
                sites += answer
            elif answer is not None:
                sites.append(answer)
        if sites:
            found[position] = tuple(sites)
    return found


def find_fixed_memory(context: LayoutContext, sites: Mapping[int, Sequence[Site]]) -> Mapping[str, Layout]:
    """Find which memory is fixed, and why, if calls accept other layouts as `sites` say."""
    obliging = {
        position: tuple(dict.fromkeys(name for site in each for name in site.obliges))
        for position, each in sites.items()
    }
    return find_layouts(context.graph, obliging=obliging)


def _find_free_memory(context: LayoutContext, sites: Mapping[int, Sequence[Site]]) -> frozenset[str]:
    """Find free memory of two dimensions or more.

    Memory of products in our own kernels is left out, since strides choose the kernel, and so is that of
    scatters. Scatters that fill one memory part by part share kernels with each other as long as all of their
    parts lie alike.
    """
    facts = context.facts
    layouts = find_fixed_memory(context, sites)
    free = {name for name, layout in layouts.items() if isinstance(layout, Free) and len(layout.shape) > 1}
    for position, node in enumerate(context.graph.nodes):
        if isinstance(node, Scatter):
            free.discard(facts.root[node.output.name])
        if free and match_contraction_node(node) is not None:
            free.difference_update(facts.root[name] for name in facts.reads[position])
            free.difference_update(facts.root[buffer.name] for buffer in list_defined_buffers(node))
    return frozenset(free)


def _groups(context: LayoutContext, sites: Sequence[Site], free: frozenset[str]) -> list[list[Site]]:
    """Nodes that know each other through free memory, where one of them moves more than it must; in order."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    touched = [
        (*(root for root in site.memory if root in free), *(c.name for c in site.choices)) for site in sites
    ]
    for names in touched:
        for name in names[1:]:
            parent[find(name)] = find(names[0])
    groups: dict[str, list[Site]] = {}
    wasteful: set[str] = set()
    for site, names in zip(sites, touched, strict=True):
        if names:
            groups.setdefault(find(names[0]), []).append(site)
            is_asked = any(choice.is_asked for choice in site.choices)
            if is_asked or site.cost(context.strides_of_capture) > site.least():
                wasteful.add(find(names[0]))
    return [group for name, group in groups.items() if name in wasteful]


@dataclass(frozen=True, slots=True)
class _Variable:
    """Free memory, and the strides that it may have; or a choice of a call."""

    name: str
    candidates: tuple[Strides, ...]
    sites: tuple[int, ...]
    is_memory: bool = True


class _Group:
    """Nodes that know each other, and the memory between them."""

    def __init__(
        self,
        sites: Sequence[Site],
        free: frozenset[str],
        names: Mapping[str, Sequence[str]],
        context: LayoutContext,
        remarks: Remarks,
    ) -> None:
        self.sites = sites
        self.context = context
        self.remarks = remarks
        self.variables: list[_Variable] = []
        touching: dict[str, list[int]] = {}
        for number, site in enumerate(sites):
            for name in site.memory:
                if name in free:
                    touching.setdefault(name, []).append(number)
        candidates = list_candidates(
            {name: [sites[n] for n in numbers] for name, numbers in touching.items()},
            context.views,
            context.buffers,
            names,
        )
        saved: dict[str, list[str]] = {}
        for name in context.graph.free_results:
            saved.setdefault(context.roots[name], []).append(name)
        for name, numbers in touching.items():
            offered = candidates[name]
            if name in saved:
                captured, *others = offered
                told = (s for s in others if _can_tell(s, saved[name], context))
                offered = (captured, *told)
            if len(offered) > 1:
                self.variables.append(_Variable(name, offered, tuple(numbers)))
        choosing: dict[str, tuple[Choice, list[int]]] = {}
        for number, site in enumerate(sites):
            for choice in site.choices:
                choosing.setdefault(choice.name, (choice, []))[1].append(number)
        for name, (choice, numbers) in choosing.items():
            if len(choice.candidates) > 1:
                self.variables.append(_Variable(name, choice.candidates, tuple(numbers), is_memory=False))
        self.places = {variable.name: k for k, variable in enumerate(self.variables)}
        self._costs: dict[Hashable, dict[tuple[int, ...], int]] = {}
        self.terms = [self._term(site) for site in sites]
        device = context.buffers[sites[0].memory[0]].device
        self.bytes_per_us = context.bytes_per_us(device)
        self.gain_us = context.targets.of(device).machine.memory.layout_gain_us

    def _term(self, site: Site) -> Term:
        names = (*site.memory, *(c.name for c in site.choices))
        scope = tuple(dict.fromkeys(self.places[name] for name in names if name in self.places))
        form = self._form(site, scope)
        known = {} if form is None else self._costs.setdefault(form, {})

        def cost(choice: tuple[int, ...]) -> int:
            found = known.get(choice)
            if found is None:
                found = known[choice] = site.cost(self._lookup(scope, choice))
            return found

        return Term(scope, cost, form)

    def _form(self, site: Site, scope: Sequence[int]) -> Hashable:
        """Return what sites have in common that cost the same for the same candidates, numbered as in
        `scope`.
        """
        form, views = site.form, self.context.views
        if form is None:
            return None
        lying: list[object] = []
        for name, buffer in site.asked:
            place = self.places.get(name)
            if place is None:
                lying.append(buffer.strides)
                continue
            shown: Sequence[Strides | None] = self.variables[place].candidates
            if self.variables[place].is_memory:
                shown = [views.strides_of(buffer.name, strides) for strides in shown if strides is not None]
            lying.append((scope.index(place), *shown))
        return (form, tuple(lying))

    def _lookup(self, scope: Sequence[int], choice: Sequence[int]) -> LayoutOf:
        chosen = {
            self.variables[v].name: self.variables[v].candidates[c]
            for v, c in zip(scope, choice, strict=True)
        }
        views = self.context.views

        def layout(name: str, buffer: Buffer) -> Strides | None:
            found = chosen.get(name)
            if found is None:
                return buffer.strides
            return views.strides_of(buffer.name, found) if name in self.context.buffers else found

        return layout

    def choose(self) -> tuple[dict[str, Strides], list[Copy]]:
        """Strides of memory that is to lie otherwise than captured, and the copies to put in."""
        choice = [0] * len(self.variables)
        if self.variables and self._may_gain():
            counts = [len(variable.candidates) for variable in self.variables]
            choice = list(choose_cheapest(counts, [term for term in self.terms if term.scope]))
            self._keep_what_gains_little(choice)
        chosen: dict[str, Strides] = {}
        for place, (variable, c) in enumerate(zip(self.variables, choice, strict=True)):
            if variable.is_memory:
                self._record(variable, place, choice)
                if c:
                    chosen[variable.name] = variable.candidates[c]
        copied = self._list_copies(choice)
        for copy in copied:
            self._record_copy(copy)
        return chosen, copied

    def _list_copies(self, choice: Sequence[int]) -> list[Copy]:
        """Return the copies around calls of which something lies otherwise than captured, or is to by what
        the user says: libraries make those of others.
        """
        settled = [[choice[v] for v in term.scope] for term in self.terms]
        moved = {
            made.name
            for site, lying in zip(self.sites, settled, strict=True)
            for made in site.choices
            if any(lying) or made.is_asked
        }
        found: list[Copy] = []
        for site, term, lying in zip(self.sites, self.terms, settled, strict=True):
            if any(made.name in moved for made in site.choices):
                found += site.list_copies(self._lookup(term.scope, lying))
        return found

    def _may_gain(self) -> bool:
        """Tell if as much as a change must save is lost as captured; else every change would be undone."""
        lost = sum(
            term.cost((0,) * len(term.scope)) - site.least()
            for site, term in zip(self.sites, self.terms, strict=True)
            if term.scope
        )
        return lost >= self._least_gain()

    def _least_gain(self) -> float:
        # kernels that were equal may differ by less, and each is compiled
        return self.gain_us * self.bytes_per_us * SCALE

    def _keep_what_gains_little(self, choice: list[int]) -> None:
        """Set memory back to its captured strides where a change of it and of what it touches saves too
        little.
        """
        for group in self._group_changes([v for v, c in enumerate(choice) if c != 0]):
            numbers = sorted({n for v in group for n in self.variables[v].sites})
            kept = choice.copy()
            for v in group:
                kept[v] = 0
            before, after = self._cost(numbers, kept), self._cost(numbers, choice)
            least = max(before / _LEAST_SHARE, self._least_gain())
            if before - after < least:
                choice[:] = kept

    def _group_changes(self, changed: Sequence[int]) -> list[list[int]]:
        """`changed` variables, in groups that share loops or calls."""
        parent = {v: v for v in changed}

        def find(v: int) -> int:
            while parent[v] != v:
                parent[v] = parent[parent[v]]
                v = parent[v]
            return v

        first: dict[int, int] = {}
        for v in changed:
            for number in self.variables[v].sites:
                parent[find(v)] = find(first.setdefault(number, v))
        groups: dict[int, list[int]] = {}
        for v in changed:
            groups.setdefault(find(v), []).append(v)
        return list(groups.values())

    def _cost(self, numbers: Sequence[int], choice: Sequence[int]) -> int:
        return sum(self.terms[n].cost(tuple(choice[v] for v in self.terms[n].scope)) for n in numbers)

    def _record(self, variable: _Variable, place: int, choice: Sequence[int]) -> None:
        """Note what was chosen, its runner-up, and what that would cost more."""
        costs: list[int] = []
        for candidate in range(len(variable.candidates)):
            trial = list(choice)
            trial[place] = candidate
            costs.append(self._cost(variable.sites, trial))
        chosen = choice[place]
        texts = [_text(strides) for strides in variable.candidates]
        others = [c for c in range(len(costs)) if c != chosen and costs[c] < IMPOSSIBLE]
        # orders that differ in outer dimensions cost the same, and tell nothing
        second = min(others, key=lambda c: (costs[c] == costs[chosen], costs[c], c), default=None)
        lost = 0.0 if second is None else (costs[second] - costs[chosen]) / SCALE
        beside = "no other beside the rest" if second is None else f"then {texts[second]}"
        self.remarks.note(
            "layout",
            (variable.name,),
            chosen != 0,
            f"{texts[chosen]}, {beside}",
            runner_up_bytes=lost,
            runner_up_us=lost / self.bytes_per_us,
        )

    def _record_copy(self, copy: Copy) -> None:
        """Note a copy, and what memory would move without it."""
        saved = 0.0 if copy.bytes_saved is None else float(copy.bytes_saved)
        self.remarks.note(
            "layout-copy",
            (copy.buffer.name,),
            True,
            f"{_text(copy.strides)}, "
            + ("no other beside the rest" if copy.bytes_saved is None else "then none"),
            runner_up_bytes=saved,
            runner_up_us=saved / self.bytes_per_us,
            copied_bytes=float(copy.bytes_moved),
        )


def _can_tell(strides: Strides, results: Iterable[str], context: LayoutContext) -> bool:
    """Tell if a backward graph can be told how `results`, in memory with `strides`, lie: by numbers, or by
    the order of their dimensions.
    """
    for name in results:
        lying = context.views.strides_of(name, strides)
        if lying is None:
            return False
        is_known = all(as_int(step) is not None for step in lying)
        if not is_known and find_dense_order(replace(context.buffers[name], strides=lying)) is None:
            return False
    return True


def _text(strides: Strides) -> str:
    return "{" + ", ".join(format_expr(stride) for stride in strides) + "}"


def _restride(node: Node, context: LayoutContext, chosen: Mapping[str, Strides]) -> Node:
    """`node` with the chosen strides for what it defines."""

    def restride(buffer: Buffer) -> Buffer:
        strides = chosen.get(context.roots[buffer.name])
        return buffer if strides is None else replace(buffer, strides=strides)

    match node:
        case Pointwise() | Scatter():
            return replace(node, output=restride(node.output))
        case Reduce() | Scan():
            return replace(node, outputs=tuple(None if b is None else restride(b) for b in node.outputs))
        case Sort(outputs=(values, positions)):
            return replace(
                node,
                outputs=(
                    None if values is None else restride(values),
                    None if positions is None else restride(positions),
                ),
            )
        case View() if context.roots[node.output.name] in chosen:
            found = context.views.remake(node.output.name, chosen[context.roots[node.output.name]])
            assert found is not None, f"%{node.output.name} cannot show what it shows"
            return restride_view(node, found)
        case Extern() if any(context.roots[b.name] in chosen for b in list_defined_buffers(node)):
            return replace(
                node, outputs=tuple(restride(b) if isinstance(b, Buffer) else b for b in node.outputs)
            )
        case _:
            return node


# ---- The table for people ----


def explain_layouts(
    steps: Sequence[tuple[str, Graph]],
    decisions: Iterable[Decision],
    *,
    targets: Targets,
    options: ScheduleOptions,
    rules: Sequence[LayoutRule] = RULES,
) -> str:
    """Two tables, whose columns are aligned: layouts, and what they cost.

    The first has a line for each tensor of two dimensions or more with memory of its own: its shape, how it
    lies, and why. The second has a line for each copy, and for each node that moves more than it would if all
    lay as it likes: a library converts, or a loop runs across memory.

    Args:
        steps: what `schedule` told its observer, in order: the name of each pass and the graph that it made.
        decisions: what was recorded.
        targets: the devices that it ran for.
        options: the options that it ran with.
        rules: the rules that it asked.
    """
    place = next(k for k, (name, _) in enumerate(steps) if name == "layouts")
    before, after = steps[place - 1][1], steps[place][1]
    hints = make_size_hints(options)
    context = collect_layout_facts(before, analyse(before), targets=targets, sizes=hints)
    layouts = find_fixed_memory(context, list_sites(context, rules, options))
    chosen = {d.subjects[0]: d for d in decisions if d.rule == "layout"}
    copies = {d.subjects[0]: d for d in decisions if d.rule == "layout-copy"}
    roots = find_memory_roots(after)
    rows = [("buffer", "shape", "strides", "layout", "why")]
    given = (entry for entry in after.inputs if isinstance(entry, Buffer))
    for buffer in (*given, *(b for node in after.nodes for b in list_defined_buffers(node))):
        if roots[buffer.name] != buffer.name or len(buffer.shape) < 2:
            continue
        layout, decision = layouts.get(buffer.name), chosen.get(buffer.name)
        if layout is None:
            kind, why = "copy", "a copy between layouts"
        elif isinstance(layout, Fixed):
            kind, why = "fixed", layout.why
        elif decision is None:
            kind, why = "free", "nothing around it moves more than it must"
        else:
            kind, why = "moved" if decision.accepted else "free", _runner_up(decision)
        copy = copies.get(buffer.name)
        if copy is not None:
            why += f"; copied for a call: {dict(copy.numbers)['copied_bytes']:.0f} bytes"
        rows.append((f"%{buffer.name}", _list(buffer.shape), _list(buffer.strides), kind, why))
    made = collect_layout_facts(after, analyse(after), targets=targets, sizes=hints)
    moved: list[tuple[str, ...]] = [("what moves more", "bytes", "us", "why")]
    moved += _list_copies(made, frozenset(context.buffers))
    moved += _list_losses(made, rules, options)
    if len(moved) == 1:
        moved.append(("nothing", "0", "0.00", "all lies as those around it like"))
    return f"{_align(rows)}\n{_align(moved)}"


def _list_copies(context: LayoutContext, known: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield a line for each copy of what is `known`."""
    for node in context.graph.nodes:
        if not isinstance(node, Pointwise) or not isinstance(node.body, Load):
            continue
        source = node.body.buffer
        if node.output.name not in known or source not in known:
            moved = context.sizes.size_bytes(node.output) + context.sizes.size_bytes(context.buffers[source])
            why = "a copy, which costs less than the call that would lie otherwise"
            yield (f"%{node.output.name} of %{source}", *_measure(moved, node.output, context), why)


def _list_losses(
    context: LayoutContext, rules: Sequence[LayoutRule], options: ScheduleOptions
) -> Iterator[tuple[str, ...]]:
    """Yield a line for each node and rule by which it moves more than at its best."""
    for rule in rules:
        for position, sites in list_sites(context, (rule,), options).items():
            made = list_defined_buffers(context.graph.nodes[position])
            lost = [site.cost(context.strides_of_capture) - site.least() for site in sites]
            # a site that cannot be as it is was given its wish by a copy
            total = sum(each for each in lost if 0 < each < IMPOSSIBLE) // SCALE
            if total and made:
                yield (f"%{made[0].name}", *_measure(total, made[0], context), rule.why)


def _measure(moved: float, buffer: Buffer, context: LayoutContext) -> tuple[str, str]:
    """Return `moved` bytes as a text, and the time that they take."""
    return f"{moved:.0f}", f"{moved / context.bytes_per_us(buffer.device):.2f}"


def _align(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a line for each of `rows`, with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _runner_up(decision: Decision) -> str:
    numbers = dict(decision.numbers)
    _, second = decision.reason.split("}, ", 1)
    if not numbers["runner_up_bytes"]:
        return second
    return f"{second}: {numbers['runner_up_bytes']:.0f} bytes, {numbers['runner_up_us']:.2f} us more"


def _list(sizes: Iterable[Expr]) -> str:
    return " ".join(format_expr(size) for size in sizes)
