"""Rewrite and lower equal layers of a graph once.

`shorten_captured` finds stretches of calls that follow each other and are equal (`coilwork_ir.repetition`),
and leaves out all of them but a few. `lengthen_lowered` puts the loops of those that were left out into the
lowered graph: copies, under other names, of the loops of one that is there.

Rewrites and rules are about calls and those around them, wherever in a graph these are. So the loops repeat
themselves as the calls do, which is checked before any are copied: equal stretches of loops read, one for
one, the inputs of equal stretches of calls. If that does not hold, there is no result, and the whole graph
is lowered.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import torch
from torch import fx

from coilwork_ir.buffers import Buffer, Constant, GraphOutput, Ref
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.loc import Origin
from coilwork_ir.loops import Graph, Node, View
from coilwork_ir.loops.access import list_overwritten_buffers, list_read_buffers
from coilwork_ir.loops.node_forms import NodeRenamer, list_entries, list_facts
from coilwork_ir.repetition import Entry, Repetition, find_repetition
from coilwork_lowering.facts.fx_nodes import get_origin
from coilwork_lowering.graph_boundary import list_returned
from coilwork_lowering.joint.free_strides import has_free_strides
from coilwork_lowering.layer_evidence import LayerEvidence
from coilwork_lowering.lower import Lowered
from coilwork_lowering.rewrites.batch_norm_folding import FROZEN
from coilwork_lowering.shorter_capture import KEPT, ShorterCapture
from coilwork_lowering.torch_compat.graphs import copy_node

# Nodes that are left out at least: with fewer, finding them takes as long as it saves.
_LEAST: Final = 128
# Metadata that decisions read, beside the value.
_READ: Final = ("partitioner_tag", "recompute", "ac_graph_id", FROZEN)


# ---- a shorter graph of calls ----


def shorten_captured(gm: fx.GraphModule) -> ShorterCapture | None:
    """Leave out equal layers of `gm` beyond `KEPT`; None if there are not as many."""
    calls = [node for node in gm.graph.nodes if node.op not in ("placeholder", "output")]
    output = gm.graph.output_node()
    if not isinstance(output.args[0], list | tuple):
        return None
    entries = [_describe_call(node) for node in calls]
    found = find_repetition(entries, _list_facts(gm), KEPT + 1)
    if found is None or (found.last - found.first - KEPT) * found.length < _LEAST:
        return None
    end, omitted_count = found.first + KEPT, found.last - found.first - KEPT
    nodes = {node.name: node for node in gm.graph.nodes}
    graph = fx.Graph(tracer_cls=gm.graph._tracer_cls)
    copies: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            break
        copies[node] = copy_node(graph, node, copies.__getitem__)
    for node, entry, owner in zip(calls, entries, found.owners, strict=True):
        if end <= owner < found.last:
            continue
        renamed = found.name_earlier(entry, omitted_count) if owner >= found.last else {}
        if renamed is None:
            return None
        read = {nodes[name]: copies[nodes[earlier]] for name, earlier in renamed.items()}
        copies[node] = copy_node(graph, node, ChainMap(read, copies).__getitem__)
    kept = [item for item in list_returned(output) if not isinstance(item, fx.Node) or item in copies]
    if any(isinstance(item, fx.Node) and item.op == "placeholder" for item in kept):
        removed = {name for name, (_, copy) in found.places.items() if end <= copy < found.last}
        kept = [item for item in kept if not isinstance(item, fx.Node) or item.name not in removed]
    result = graph.output(type(output.args[0])(fx.map_arg(kept, copies.__getitem__)))
    result.meta.update(output.meta)
    if [node.name for node in graph.nodes][:-1] != [node.name for node in copies]:
        return None
    shorter = fx.GraphModule(gm, graph)
    shorter.meta.update(gm.meta)
    owners = {node.name: owner for node, owner in zip(calls, found.owners, strict=True)}
    return ShorterCapture(whole=gm, gm=shorter, nodes=nodes, owners=owners, repetition=found)


def _describe_call(node: fx.Node) -> Entry:
    numbers: dict[str, int] = {}

    def describe(value: Any) -> Hashable:
        if isinstance(value, fx.Node):
            return ("node", numbers.setdefault(value.name, len(numbers)))
        if isinstance(value, list | tuple):
            return (type(value), *[describe(part) for part in value])
        if isinstance(value, bool | int | float | complex):
            # equal numbers of other types, and zeros of other signs, are other arguments
            return (type(value), repr(value))
        if value is None or isinstance(value, str | torch.dtype | torch.device | torch.layout):
            return value
        return (type(value), str(value))

    form: Hashable = None
    if node.op == "call_function" and not node.meta.get("unbacked_bindings"):
        kwargs = tuple([(name, describe(value)) for name, value in node.kwargs.items()])
        # operators in metadata are copies, which equal nothing
        meta = (str(node.meta.get("original_aten")), *[node.meta.get(key) for key in _READ])
        value = _describe_value(node.meta.get("val"))
        form = (node.target, describe(node.args), kwargs, value, meta, has_free_strides(node))
    else:
        numbers.update({operand.name: 0 for operand in node.all_input_nodes})
    return Entry(form, (*numbers, node.name), (node.name,))


def _describe_value(value: Any) -> Hashable:
    """Everything about a value that lowering reads."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return id(value)
        shape, strides, offset = tuple(value.shape), value.stride(), value.storage_offset()
        if not all(type(size) is int for size in (*shape, *strides, offset)):
            return (value.dtype, value.device, *map(str, (*shape, "/", *strides, "/", offset)))
        return (value.dtype, value.device, shape, strides, offset)
    if isinstance(value, list | tuple):
        return (type(value), *[_describe_value(part) for part in value])
    return (type(value), str(value))


def _list_facts(gm: fx.GraphModule) -> dict[str, Hashable]:
    returned: dict[str, int] = {}
    for item in list_returned(gm.graph.output_node()):
        if isinstance(item, fx.Node):
            returned[item.name] = returned.get(item.name, 0) + 1
    facts: dict[str, Hashable] = dict(returned)
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            break
        frozen = (node.meta.get(FROZEN), has_free_strides(node))
        facts[node.name] = (_describe_value(node.meta.get("val")), frozen, returned.get(node.name, 0))
    return facts


# ---- a longer graph of loops ----


def lengthen_lowered(lowered: Lowered, shorter: ShorterCapture) -> Lowered | None:
    """Return the loops of the whole graph, made of those of the shorter one; None if these do not repeat
    themselves as the calls do.
    """
    if lowered.guards:
        return None
    graph = lowered.graph
    entries = list_entries(graph)
    found = find_repetition(entries, list_facts(graph, {}), 2)
    if found is None:
        return None
    evidence = LayerEvidence(graph, entries, found, shorter)
    if not evidence.are_layers_joined_by_loops():
        return None
    # the copy before shows how far a copy moves
    for copy in range(evidence.last - 1, evidence.first, -1):
        longer = _Lengthening(graph, entries, found, shorter, evidence, copy)
        if longer.name_slots() and longer.run():
            whole = longer.make_graph()
            return None if whole is None else replace(lowered, graph=whole)
    return None


class _Lengthening:
    """A longer graph on its way: copies of the stretch `copy` of loops follow it."""

    def __init__(
        self,
        graph: Graph,
        entries: Sequence[Entry],
        found: Repetition,
        shorter: ShorterCapture,
        evidence: LayerEvidence,
        copy: int,
    ) -> None:
        self.graph = graph
        self.entries = entries
        self.found = found
        self.shorter = shorter
        self.evidence = evidence
        self.copy = copy
        self.entered = {
            buffer.name
            for entry in (*graph.inputs, *graph.constants)
            for buffer in (entry.buffer if isinstance(entry, Constant) else entry,)
            if isinstance(buffer, Buffer)
        }
        # copies behind this one get new names, like those of the calls that they then stand for
        self.fresh = FreshNames(
            (
                *self.entered,
                *(
                    name
                    for entry, owner in zip(entries, found.owners, strict=True)
                    for name in entry.defines
                    if (found.places[name][1] if name in found.places else owner) <= copy
                ),
            )
        )
        # the values that buffers are called after
        self.calls = {
            name: call
            for node, entry in zip(graph.nodes, entries, strict=True)
            for name in entry.defines
            for call in (*entry.names, *(origin.node for origin in node.origins))
            if name.startswith(f"{call}_")
        }
        # corresponding names of the longer graph, by slot and copy
        self.slots: list[list[str]] = []
        # the layer of calls whose weight the copy reads, by the weight's slot
        self.starts: dict[int, int] = {}
        # new names for other values behind the copy
        self.renamed: dict[str, str] = {}
        self.renamer = NodeRenamer()
        self.nodes: list[Node] = []
        self.readable = set(self.entered)
        self.origins: dict[tuple[int, int], Origin] = {}

    def name_slots(self) -> bool:
        """Find the names of the longer graph; false if it has no input that would have to be there."""
        copy, omitted_count, found = self.copy, self.shorter.omitted_count, self.found
        for names in found.slots:
            name = names[copy]
            if name in self.entered:
                place = self.shorter.find(name)
                assert place is not None, "inputs of copies are those of layers"
                self.starts[place[0]] = place[1]
                more = [self.shorter.name(place[0], place[1] + by) for by in range(1, omitted_count + 1)]
                after = [self._name_entered(other, omitted_count) for other in names[copy + 1 :]]
                if not all(more) or None in after:
                    return False
                longer = [*names[: copy + 1], *more, *(one or "" for one in after)]
            else:
                named = [(name, by) for by in range(1, omitted_count + 1)]
                named += [(other, omitted_count) for other in names[copy + 1 :]]
                more = [self.fresh.close_to(self._name_copy(one, by)) if one else "" for one, by in named]
                longer = [*names[: copy + 1], *more]
            self.slots.append(longer)
        for entry, owner in zip(self.entries, found.owners, strict=True):
            for name in entry.defines if owner > copy else ():
                if name not in found.places:
                    self.renamed[name] = self.fresh.close_to(self._name_copy(name, omitted_count))
        return True

    def _name_entered(self, name: str, by: int) -> str | None:
        """Return the input of the whole graph that stands where `name` of the shorter one does, so much
        later.
        """
        place = self.shorter.find(name)
        return name if place is None else self.shorter.name(place[0], place[1] + by) or None

    def _name_copy(self, name: str, by: int) -> str:
        """Return a name for what corresponds to `name` so many copies later: like that of the call, if it has
        one.
        """
        call = name
        while self.shorter.find(call) is None and call in self.calls:
            call = self.calls[call]
        place = self.shorter.find(call)
        later = "" if place is None else self.shorter.name(place[0], place[1] + by)
        return later + name[len(call) :] if later else name

    def _name_behind(self, name: str) -> str | None:
        """Return the name for `name`, which is no copy's own, in a node behind the copy; None if that is
        not known.
        """
        if name in self.renamed:
            return self.renamed[name]
        place = self.shorter.find(name) if name in self.entered else None
        if place is None:
            return name if self.evidence.is_fixed(name) else None
        # a weight of layers that loops do not repeat: it moves on if it is of a later layer than the copy's
        start = self.starts.get(place[0])
        if start is None or place[1] <= start:
            return None
        return self._name_entered(name, self.shorter.omitted_count)

    def run(self) -> bool:
        """Make the nodes; false if one would read what is not there."""
        found, copy, omitted_count = self.found, self.copy, self.shorter.omitted_count
        behind = found.start + found.copies * found.length
        regular = [at for at in found.positions[copy] if at < behind]
        series = self._list_series(behind)
        if series is None:
            return False
        last: dict[int, Sequence[int]]
        last = {positions[-1]: positions for positions, ascending in series if ascending}
        first = {positions[0]: positions for positions, ascending in series if not ascending}
        last[regular[-1]] = regular
        for position, owner in enumerate(found.owners):
            for by in range(omitted_count, 0, -1) if position in first else ():
                if not all(self._add(at, by) for at in first[position]):
                    return False
            if not self._add(position, omitted_count if owner > copy else 0):
                return False
            for by in range(1, omitted_count + 1) if position in last else ():
                if not all(self._add(at, by) for at in last[position]):
                    return False
        return True

    def _list_series(self, behind: int) -> list[tuple[tuple[int, ...], bool]] | None:
        """Nodes of the copy behind all copies, in series: nodes of one series follow each other, then come
        those of the next copy, or, if it is not ascending, of the one before. None if a node has no series.

        What a partition saves of layers is an example: some kinds of values come from the last layer to the
        first, and then other kinds again.
        """
        found = self.found
        later = [
            [at for at in found.positions[copy] if at >= behind] for copy in range(found.first, found.last)
        ]
        series: list[tuple[tuple[int, ...], bool]] = []
        begin, own = 0, later[self.copy - found.first]
        while begin < len(own):
            for end in range(len(own), begin, -1):
                ascending = _is_ascending([positions[begin:end] for positions in later])
                if ascending is not None:
                    series.append((tuple(own[begin:end]), ascending))
                    begin = end
                    break
            else:
                return None
        return series

    def _add(self, position: int, by: int) -> bool:
        """Add the node at `position`, of the copy so many later."""
        node, entry = self.graph.nodes[position], self.entries[position]
        names: dict[str, str] = {}
        if by:
            if not self.evidence.may_move(position, all_the_way=by == self.shorter.omitted_count):
                return False
            own = frozenset(entry.defines)
            for name in entry.names:
                place = self.found.places.get(name)
                if place is None:
                    later = self._name_behind(name)
                    if later is None:
                        return False
                    if later != name:
                        names[name] = later
                    continue
                slot, copy = place
                if name not in own and not self._is_known(copy, by):
                    return False
                later = self.slots[slot][copy + by] if copy + by < len(self.slots[slot]) else ""
                if not later:
                    return False
                if later != name:
                    names[name] = later
            if entry.form is None and names:
                return False
            origins = tuple([self._shift_origin(one, by) for one in node.origins])
            if names or origins != node.origins:
                node = self.renamer.rename(node, names, origins)
        readable = self.readable
        defines = [names.get(name, name) for name in entry.defines]
        for name in entry.names:
            if name not in entry.defines and names.get(name, name) not in readable:
                return False
        if not readable.isdisjoint(defines):
            return False
        readable.update(defines)
        readable.difference_update([old for old, _ in list_overwritten_buffers(node)])
        self.nodes.append(node)
        return True

    def _shift_origin(self, origin: Origin, by: int) -> Origin:
        place = self.shorter.find(origin.node)
        if place is None:
            return origin
        slot, copy = place[0], place[1] + by
        found = self.origins.get((slot, copy))
        if found is None:
            name = self.shorter.name(slot, copy)
            found = self.origins[slot, copy] = get_origin(self.shorter.nodes[name]) if name else origin
        return found if found.op == origin.op else replace(found, op=origin.op)

    def make_graph(self) -> Graph | None:
        """Return the graph, when its nodes are made; None if its results do not follow from those of the
        shorter one.
        """
        shorter, calls = self.shorter, self.shorter.repetition
        read = {name for node in self.nodes for name in list_read_buffers(node)}
        if not calls.are_alike(read, self.entered):
            return None
        returned = list_returned(shorter.gm.graph.output_node())
        short: dict[str, GraphOutput] = {}
        others: list[GraphOutput] = []
        for item, output in zip(returned, self.graph.outputs, strict=True):
            if isinstance(item, fx.Node):
                short[item.name] = output
            else:
                others.append(output)
        outputs: list[GraphOutput] = []
        free: list[str] = []
        rest = iter(others)
        for item in list_returned(shorter.whole.graph.output_node()):
            if not isinstance(item, fx.Node):
                outputs.append(next(rest))
                continue
            place = calls.places.get(item.name)
            if place is not None and calls.first <= place[1] < calls.last:
                alike = short[calls.slots[place[0]][calls.first]]
                output = self._find_result(*place, short)
            else:
                alike = output = short[item.name]
                if shorter.owners.get(item.name, -1) >= calls.last:
                    output = self._shift_result(output)
                elif output != Ref(item.name) or item.op != "placeholder":
                    # an input that is a result stays that, whoever reads it
                    if isinstance(output, Ref) and self._is_moved(output.name):
                        return None
            if isinstance(alike, Ref) != isinstance(output, Ref):
                return None
            if isinstance(output, Ref) and output.name not in self.readable:
                return None
            if isinstance(alike, Ref) and isinstance(output, Ref) and alike.name in self.graph.free_results:
                free.append(output.name)
            outputs.append(output)
        if len(set(free)) != len(free):
            return None
        return replace(
            self.graph, nodes=tuple(self._order_tail()), outputs=tuple(outputs), free_results=tuple(free)
        )

    def _order_tail(self) -> list[Node]:
        """Return the nodes, with views at the end that no node reads in the order of their calls, if they
        come in that order in the shorter graph.
        """
        short = {node.name: number for number, node in enumerate(self.shorter.gm.graph.nodes)}
        calls = [node.origins[0].node for node in _list_tail(self.graph.nodes)]
        numbers = [short.get(call, -1) for call in calls]
        if numbers != sorted(numbers) or -1 in numbers:
            return self.nodes
        order = {name: number for number, name in enumerate(self.shorter.nodes)}
        tail = _list_tail(self.nodes)
        rest = self.nodes[: len(self.nodes) - len(tail)]
        return [*rest, *sorted(tail, key=lambda node: order.get(node.origins[0].node, -1))]

    def _find_result(self, slot: int, copy: int, short: Mapping[str, GraphOutput]) -> GraphOutput:
        """Return the result that stands where results of the shorter graph do that are of one slot of the
        calls; None if these do not agree.
        """
        calls = self.shorter.repetition
        found: set[str] = set()
        for kept in range(calls.first, calls.first + KEPT):
            output = short[calls.slots[slot][kept]]
            if not isinstance(output, Ref):
                return output
            place = self.found.places.get(output.name)
            if place is not None:
                names, number = self.slots[place[0]], place[1] + copy - kept
                if not self._is_known(place[1], copy - kept):
                    continue
                found.add(names[number] if 0 <= number < len(names) else "")
            elif output.name in self.entered:
                # an input that is a result, too
                found.add(calls.slots[slot][copy] if output.name == calls.slots[slot][kept] else output.name)
            elif copy == kept + self.shorter.omitted_count:
                found.add(self._move(output.name))
            elif copy == kept and output.name not in self.renamed:
                found.add(output.name)
        found.discard("")
        return Ref(found.pop()) if len(found) == 1 else None

    def _shift_result(self, output: GraphOutput) -> GraphOutput:
        """Return a result of calls behind the equal layers, under its name in the longer graph; None if that
        is not known.
        """
        if not isinstance(output, Ref):
            return output
        place = self.found.places.get(output.name)
        if place is None:
            name = self._move(output.name)
        else:
            names, number = self.slots[place[0]], place[1] + self.shorter.omitted_count
            is_known = number < len(names) and self._is_known(place[1], self.shorter.omitted_count)
            name = names[number] if is_known else ""
        return Ref(name) if name else None

    def _move(self, name: str) -> str:
        """Return the name, behind the copies, of what no copy owns; empty if it is not known."""
        return self.renamed.get(name) or (name if self.evidence.is_fixed(name) else "")

    def _is_known(self, copy: int, by: int) -> bool:
        """Tell if it is known what corresponds to the values of a copy so many copies later: they stay, are
        copied from layer to layer, or move all the way.
        """
        if copy <= self.copy:
            return by == 0 or self.evidence.first <= copy
        return by == self.shorter.omitted_count

    def _is_moved(self, name: str) -> bool:
        """Tell if `name`, of the shorter graph, is another one's in the longer graph."""
        place = self.found.places.get(name)
        return name in self.renamed or (place is not None and place[1] > self.copy)


def _is_ascending(groups: Sequence[Sequence[int]]) -> bool | None:
    """Tell if groups of positions come one after the other, or the other way round; None if neither."""
    if all(one[-1] < other[0] for one, other in pairwise(groups)):
        return True
    if all(one[0] > other[-1] for one, other in pairwise(groups)):
        return False
    return None


def _list_tail(nodes: Sequence[Node]) -> Sequence[Node]:
    """Views at the end that no node reads."""
    read = {name for node in nodes for name in list_read_buffers(node)}
    begin = len(nodes)
    while begin:
        node = nodes[begin - 1]
        if not isinstance(node, View) or not node.origins or node.output.name in read:
            break
        begin -= 1
    return nodes[begin:]
