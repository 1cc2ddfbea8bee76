"""Schedule equal regions of a graph once: layers of a deep model.

`shorten_graph` finds regions that follow each other and are equal in everything that the scheduler reads
(`coilwork_ir.repetition`), and leaves out all of them but a few. `lengthen_schedule` puts steps for those
that were left out into the schedule of the shorter graph: copies, under other names, of a stretch of steps
that the schedule itself repeats for the next region.

Why that is right: a step computes the buffers that it defines from those that it reads, and both are values
of the graph. Equal regions compute corresponding values in the same way from corresponding values, so a
step under the corresponding names is right, too, if all that it computes in between is of equal regions
(`region_evidence.py`). What must hold besides is checked on the result: each
buffer is defined once, and before it is read, and no region lacks a step that others have. Where anything
of that does not hold, there is no result, and the whole graph is scheduled.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer, Constant, Ref
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.kernels import Decision, KernelCall, Schedule
from coilwork_ir.kernels.nodes import Step
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Extern, Graph, Node, View
from coilwork_ir.loops.access import (
    list_defined_buffers,
)
from coilwork_ir.loops.node_forms import (
    NodeRenamer,
    describe_node,
    list_entries,
    list_entry_names,
    list_facts,
    rename_node,
)
from coilwork_ir.repetition import Entry, Repetition, Window, find_repetition, find_window
from coilwork_ir.streams import StreamInstruction
from coilwork_scheduler.loose_views import GatheredSteps, gather_views, spread_views
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.region_evidence import RegionEvidence

# Equal regions that stay: what is decided about one may depend on those before and behind it.
KEPT: Final = 4
# Nodes that are left out at least: with fewer, finding them takes as long as it saves.
_LEAST: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ShorterGraph:
    """A graph without some of its equal regions.

    Attributes:
        whole: the graph that it was made of.
        graph: the shorter graph.
        repetition: the regions of `whole`.
        places: slot and copy of the names that are left, copies numbered as in the shorter graph.
    """

    whole: Graph
    graph: Graph
    repetition: Repetition
    places: Mapping[str, tuple[int, int]]

    @property
    def omitted_count(self) -> int:
        """Return how many regions were left out."""
        return self.repetition.last - self.repetition.first - KEPT

    @property
    def end(self) -> int:
        """The number of the first copy that was left out."""
        return self.repetition.first + KEPT


# ---- a shorter graph ----


def shorten_graph(graph: Graph, options: ScheduleOptions) -> ShorterGraph | None:
    """Leave out equal regions of `graph` beyond `KEPT`; None if there are not as many."""
    if options.apart:
        return None
    entries = list_entries(graph)
    aligned, given = frozenset(options.aligned_inputs), frozenset(options.donated_inputs)
    promises = {name: (name in aligned, name in given) for name in aligned | given}
    found = find_repetition(entries, list_facts(graph, promises), KEPT + 1)
    if found is None or (found.last - found.first - KEPT) * found.length < _LEAST:
        return None
    end, omitted_count = found.first + KEPT, found.last - found.first - KEPT
    removed = {name for name, (_, copy) in found.places.items() if end <= copy < found.last}
    nodes: list[Node] = []
    for node, entry, owner in zip(graph.nodes, entries, found.owners, strict=True):
        if owner < end:
            nodes.append(node)
        elif owner >= found.last:
            names = found.name_earlier(entry, omitted_count)
            if names is None:
                return None
            nodes.append(rename_node(node, names) if names else node)
    shorter = replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(entry for entry in graph.inputs if not _is_among(entry, removed)),
        constants=tuple(entry for entry in graph.constants if entry.buffer.name not in removed),
        outputs=tuple(one for one in graph.outputs if not (isinstance(one, Ref) and one.name in removed)),
        free_results=tuple(name for name in graph.free_results if name not in removed),
    )
    places = {
        name: (slot, copy if copy < end else copy - omitted_count)
        for name, (slot, copy) in found.places.items()
        if name not in removed
    }
    return ShorterGraph(whole=graph, graph=shorter, repetition=found, places=places)


def _is_among(entry: object, names: set[str]) -> bool:
    return isinstance(entry, Buffer) and entry.name in names


# ---- a longer schedule ----


def lengthen_schedule(schedule: Schedule, shorter: ShorterGraph) -> Schedule | None:
    """Return the schedule of the whole graph, made of `schedule`, that of the shorter one; None if its steps
    do not repeat themselves as the regions do.
    """
    if schedule.outputs != shorter.graph.outputs:
        return None
    buffers = {buffer.name: buffer for buffer in schedule.buffers}
    mentions = _Mentions()
    gathered = gather_views(
        schedule.steps,
        [mentions.list(step) for step in schedule.steps],
        frozenset(_list_entered(shorter.graph)),
        frozenset(buffer.name for node in shorter.graph.nodes for buffer in list_defined_buffers(node)),
    )
    entries = _describe_steps(gathered.steps, buffers)
    first = shorter.repetition.first
    for copy in sorted(range(first, shorter.end - 1), key=lambda one: abs(2 * (one - first) - KEPT + 2)):
        window = find_window(entries, shorter.repetition, shorter.places, copy)
        if window is not None:
            lengthening = _Lengthening(schedule, gathered, shorter, window, entries, buffers, mentions)
            if lengthening.is_complete() and lengthening.run():
                return lengthening.make_schedule()
    return None


def _describe_steps(steps: Sequence[Step], buffers: Mapping[str, Buffer]) -> list[Entry]:
    known: set[str] = set()
    found = []
    for step in steps:
        form: Hashable = None
        names: tuple[str, ...] = ()
        if isinstance(step, KernelCall):
            names = (*step.args, *(name for pair in step.into for name in pair))
            form = (step.kernel, step.sizes, step.stream, len(step.into))
        elif not isinstance(step, StreamInstruction):
            described = describe_node(step)
            form = None if described is None else described.key
            names = _list_mentioned(step)
        defines = tuple([name for name in dict.fromkeys(names) if name in buffers and name not in known])
        known.update(defines)
        found.append(Entry(form, names, defines))
    return found


class _Lengthening:
    """A longer schedule on its way."""

    def __init__(
        self,
        schedule: Schedule,
        gathered: GatheredSteps,
        shorter: ShorterGraph,
        window: Window,
        entries: Sequence[Entry],
        buffers: Mapping[str, Buffer],
        mentions: _Mentions,
    ) -> None:
        self.schedule = schedule
        self.mentions = mentions
        self.gathered = gathered
        self.shorter = shorter
        self.window = window
        self.entries = entries
        self.old = buffers
        self.renamer = NodeRenamer()
        self.steps: list[Step] = []
        # by step: the position of what it is a copy of
        self.copied: list[int] = []
        # what steps define, under its old and its new name
        self.stored: list[tuple[str, str]] = []
        self.buffers: dict[str, Buffer] = {}
        self.readable: set[str] = set()
        self.origins = _Origins(shorter.whole, shorter.repetition)
        self.evidence = RegionEvidence(shorter.whole, shorter.graph, shorter.repetition, shorter.end, entries)
        # names of the graph, which mean the same in every schedule of it
        self.known = {buffer.name for node in shorter.whole.nodes for buffer in list_defined_buffers(node)}
        self.known.update(_list_entered(shorter.whole))
        self.fresh = FreshNames((*buffers, *self.known))
        # the regions of values that have no place, because these regions are not among the equal ones
        first, last = shorter.repetition.first, shorter.repetition.last
        self.unlike = {
            buffer.name: owner
            for node, owner in zip(shorter.whole.nodes, shorter.repetition.owners, strict=True)
            if 0 <= owner < first or owner >= last
            for buffer in list_defined_buffers(node)
            if buffer.name not in shorter.places
        }

    def is_complete(self) -> bool:
        """Tell if the window defines, once, what it has to for each region, and what lies before and behind
        it leaves nothing out.
        """
        places, window, repetition = self.shorter.places, self.window, self.shorter.repetition
        first, end = repetition.first, self.shorter.end
        again = 2 * window.end - window.begin
        inside: dict[int, int] = {}
        before: dict[int, int] = {}
        after: dict[int, int] = {}
        # what the scheduler added before the second window, and what it is computed from belongs to regions
        added: set[str] = set()
        for position, entry in enumerate(self.entries):
            numbers = [places[name][1] for name in entry.names if name in places]
            if position < window.end:
                if any(number >= end for number in numbers):
                    return False
                if numbers or not added.isdisjoint(entry.names):
                    for name in entry.defines:
                        if name in places:
                            continue
                        if self.unlike.get(name, -1) >= first:
                            return False
                        if name not in self.known:
                            added.add(name)
            elif not added.isdisjoint(entry.names) or not self._is_either(entry, numbers):
                return False
            for name in entry.defines:
                if name not in places:
                    if window.begin <= position < again and name in self.known:
                        return False
                    continue
                slot, copy = places[name]
                if position < window.begin:
                    before[slot] = max(copy, before.get(slot, copy))
                elif position < window.end:
                    if slot in inside or not first <= copy + 1 < end:
                        return False
                    inside[slot] = copy
                elif copy < first:
                    return False
                elif position >= again:
                    after[slot] = min(copy, after.get(slot, copy))
        for slot in {*before, *after} - set(inside):
            # a value that only regions beside the equal ones store
            if before.get(slot, -1) >= first or after.get(slot, end) < end:
                return False
        return all(
            before.get(slot, -1) < copy and after.get(slot, end) > copy + 1 for slot, copy in inside.items()
        )

    def _is_either(self, entry: Entry, numbers: Sequence[int]) -> bool:
        """Tell if a step behind the window has nothing to do with regions before the equal ones, or computes
        values of those from values of those, by their `numbers`.
        """
        first = self.shorter.repetition.first
        if all(self.unlike.get(name, first) >= first for name in entry.defines):
            return True
        return self._is_before(entry) and all(number < first for number in numbers)

    def _is_before(self, entry: Entry) -> bool:
        """Tell if a step behind the window computes values of regions before the equal ones, and no
        others.
        """
        first = self.shorter.repetition.first
        return bool(entry.defines) and all(self.unlike.get(name, first) < first for name in entry.defines)

    def run(self) -> bool:
        """Make the steps; false if one would read what is not there."""
        window, omitted_count = self.window, self.shorter.omitted_count
        whole = self.shorter.whole
        self.readable.update(_list_entered(whole))
        names: dict[str, str] = {}
        if not all(self._add(position, 0, names) for position in range(window.end)):
            return False
        for by in range(1, omitted_count + 1):
            names = {name: self.fresh.close_to(name) for name in window.own}
            if not all(self._add(position, by, names) for position in range(window.begin, window.end)):
                return False
        for position in range(window.end, len(self.entries)):
            if not self._add(position, 0 if self._is_before(self.entries[position]) else omitted_count, {}):
                return False
        read = {name for step in self.steps for name in self.mentions.list(step)}
        return (
            self._stores_what_is_read()
            and self.shorter.repetition.are_alike(read, frozenset(_list_entered(whole)))
            and all(not isinstance(output, Ref) or output.name in self.readable for output in whole.outputs)
        )

    def _stores_what_is_read(self) -> bool:
        """Tell if no step stores for nobody what was stored for a reader: in the shorter graph, what is read
        behind the regions is of another one.
        """
        list_read = self.mentions.list_read
        before = list_read(self.gathered.steps, self.old.keys()) | _list_results(self.shorter.graph)
        after = list_read(self.steps, self.buffers.keys()) | _list_results(self.shorter.whole)
        return all(new in after for old, new in self.stored if old in before)

    def _add(self, position: int, by: int, own: Mapping[str, str]) -> bool:
        """Add the step at `position` for the region so many copies later."""
        step, entry = self.gathered.steps[position], self.entries[position]
        names: dict[str, str] = {}
        places, shift = self.shorter.places, self._shift
        if by and not self.evidence.may_move(position, all_the_way=by == self.shorter.omitted_count):
            return False
        for name in entry.names:
            if name in places:
                later = shift(name, by)
                if later is None:
                    return False
                names[name] = later
            else:
                names[name] = own.get(name, name)
        if entry.form is None and any(old != new for old, new in names.items()):
            return False
        defines = frozenset(entry.defines)
        for name, new in names.items():
            if name in defines:
                if new in self.buffers or new in self.readable:
                    return False
                old = self.old[name]
                self.buffers[new] = old if new == name else replace(old, name=new)
            elif new not in self.readable:
                return False
        self.readable.update([names[name] for name in entry.defines])
        self.stored += [(name, names[name]) for name in entry.defines]
        if by:
            step = self._rename(step, names, by)
        self.steps.append(step)
        self.copied.append(position)
        for replaced in _list_replaced(step):
            self.readable.discard(replaced)
        return True

    def _shift(self, name: str, by: int) -> str | None:
        """Return the name, in the whole graph, of what stands `by` copies after `name` of the shorter
        graph.
        """
        slot, copy = self.shorter.places[name]
        names = self.shorter.repetition.slots[slot]
        return (names[copy + by] or None) if copy + by < len(names) else None

    def _rename(self, step: Step, names: Mapping[str, str], by: int) -> Step:
        if isinstance(step, KernelCall):
            origins = self.origins.shift(step.origins, by, self.shorter)
            return replace(
                step,
                args=tuple([names[name] for name in step.args]),
                into=tuple([(names[new], names[old]) for new, old in step.into]),
                origins=origins,
            )
        if isinstance(step, Extern | View):
            origins = self.origins.shift(step.origins, by, self.shorter)
            renamed = self.renamer.rename(step, names, origins)
            self.mentions.add(renamed, [names[name] for name in self.mentions.list(step)])
            return renamed
        return step

    def make_schedule(self) -> Schedule:
        """Return the schedule, when its steps are made."""
        whole = self.shorter.whole
        defined = [buffer.name for node in whole.nodes for buffer in list_defined_buffers(node)]
        order = {name: number for number, name in enumerate(defined)}
        steps = spread_views(self.steps, self.copied, self.gathered, order)
        names = dict.fromkeys(name for step in steps for name in self.mentions.list(step))
        return replace(
            self.schedule,
            inputs=whole.inputs,
            constants=whole.constants,
            outputs=whole.outputs,
            buffers=tuple([self.buffers[name] for name in names if name in self.buffers]),
            steps=steps,
            decisions=(*self.schedule.decisions, self._explain()),
        )

    def _explain(self) -> Decision:
        repetition = self.shorter.repetition
        subjects = tuple(
            names[repetition.first] for names in repetition.slots if names[repetition.first] in self.old
        )[:1]
        return Decision(
            rule="repeat",
            subjects=subjects,
            accepted=True,
            reason="regions that are equal to those around were scheduled as one of them",
            numbers=(("regions", float(self.shorter.omitted_count)), ("nodes", float(repetition.length))),
        )


def _list_entered(graph: Graph) -> list[str]:
    """Names of inputs and constants."""
    entries = [
        entry.buffer if isinstance(entry, Constant) else entry for entry in (*graph.inputs, *graph.constants)
    ]
    return [entry.name for entry in entries if isinstance(entry, Buffer)]


def _list_mentioned(step: Step) -> tuple[str, ...]:
    """Names that `step` reads or defines."""
    if isinstance(step, KernelCall):
        return step.args
    if isinstance(step, StreamInstruction):
        return ()
    described = describe_node(step)
    if described is not None:
        return described.names
    # nothing is equal to it, but it reads what it reads
    return list_entry_names(step)


def _list_results(graph: Graph) -> set[str]:
    return {output.name for output in graph.outputs if isinstance(output, Ref)}


class _Mentions:
    """The names that steps read or define, found once for each step."""

    def __init__(self) -> None:
        # the step itself keeps its number from standing for another one
        self.known: dict[int, tuple[Step, Sequence[str]]] = {}

    def add(self, step: Step, names: Sequence[str]) -> None:
        self.known[id(step)] = step, names

    def list(self, step: Step) -> Sequence[str]:
        if isinstance(step, KernelCall):
            return step.args
        found = self.known.get(id(step))
        if found is None:
            found = self.known[id(step)] = step, _list_mentioned(step)
        return found[1]

    def list_read(self, steps: Sequence[Step], defined: Set[str]) -> set[str]:
        """Names that a step mentions behind the one that defines them."""
        known: set[str] = set()
        found: set[str] = set()
        for step in steps:
            names = set(self.list(step))
            found |= names & known
            known |= names & defined
        return found


def _list_replaced(step: Step) -> list[str]:
    """Names that nobody may read behind `step`, which overwrites their memory."""
    if isinstance(step, KernelCall):
        return [old for _, old in step.into]
    return [mutation.source for mutation in step.mutates] if isinstance(step, Extern) else []


class _Origins:
    """Corresponding origins of the copies of a region, by the names of their operations."""

    def __init__(self, graph: Graph, repetition: Repetition) -> None:
        self.lists: list[list[Origin | None]] = []
        self.places: dict[str, tuple[int, int]] = {}
        for offset in range(len(repetition.positions[repetition.first])):
            nodes = [
                graph.nodes[where[offset]].origins if offset < len(where) else ()
                for where in repetition.positions
            ]
            counts = set(map(len, nodes[repetition.first : repetition.last]))
            if len(counts) > 1:
                continue
            for index in range(*counts):
                same = [origins[index] if index < len(origins) else None for origins in nodes]
                for copy, origin in enumerate(same):
                    if origin is not None:
                        self.places.setdefault(origin.node, (len(self.lists), copy))
                self.lists.append(same)

    def shift(self, origins: tuple[Origin, ...], by: int, shorter: ShorterGraph) -> tuple[Origin, ...]:
        """Return the origins that correspond to `origins` of the shorter graph so many copies later."""
        found = []
        for origin in origins:
            place = self.places.get(origin.node)
            if place is None:
                found.append(origin)
                continue
            number, copy = place
            if copy >= shorter.repetition.last:
                copy -= shorter.omitted_count
            same = self.lists[number]
            found.append((same[copy + by] if copy + by < len(same) else None) or origin)
        return tuple(found)
