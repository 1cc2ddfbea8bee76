"""Prove, from where loops come, that copies of them compute the calls of other layers.

Some equal layers of a graph of calls were left out, and the rest was lowered. In the whole graph, loops
before the gap stay what they are. Loops behind it move: they stand for what lies as many layers later as were
left out. Loops of one layer are copied into the gap. A loop that moves or is copied reads what moves with it,
or what has one value for all layers. Then it computes the calls so many layers later, because equal layers
compute corresponding values alike. So three facts have to be known:

- the loops of each copy compute the calls of the layer behind that of the copy before (`first`,
  `last`);
- a loop that moves computes calls that there are so many layers later (`may_move`);
- a name that does not move with its reader has one value for all layers (`is_fixed`).

Each loop names the call that it was lowered from. So these facts are read from its origins, and from the
names of inputs. Where origins say nothing, there is no proof.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from torch import fx

from coilwork_ir.loc import Origin
from coilwork_ir.loops import Extern, Graph, View
from coilwork_ir.repetition import Entry, Repetition
from coilwork_lowering.shorter_capture import ShorterCapture


class LayerEvidence:
    """The facts about the loops `graph` of a shorter capture, which repeat themselves as `found` says.

    Attributes:
        first, last: the copies from `first` up to `last`, which is not one of them, compute calls of layers
            that follow each other, one for one, and read the inputs of these.
    """

    def __init__(
        self, graph: Graph, entries: Sequence[Entry], found: Repetition, shorter: ShorterCapture
    ) -> None:
        self.graph = graph
        self.entries = entries
        self.found = found
        self.shorter = shorter
        self.definers: Mapping[str, int] = {
            name: position for position, entry in enumerate(entries) for name in entry.defines
        }
        self.fixed: dict[str, bool] = {}
        self.of_no_layer: dict[int, bool] = {}
        self.first, self.last = self._find_proven()

    def _find_proven(self) -> tuple[int, int]:
        """Return the longest row of copies each of which computes the calls of the layer behind that of the
        copy before.
        """
        best, begin = (0, 0), self.found.first
        for copy in range(self.found.first + 1, self.found.last + 1):
            if copy < self.found.last and self._is_shift(copy):
                continue
            if copy - begin > best[1] - best[0]:
                best = begin, copy
            begin = copy
        return best

    def _is_shift(self, copy: int) -> bool:
        found = self.found
        pairs = zip(found.positions[copy - 1], found.positions[copy], strict=True)
        if not all(self._is_next(one, other) for one, other in pairs):
            return False
        for names in found.slots:
            if names[copy] in self.definers:
                continue
            before, place = self.shorter.find(names[copy - 1]), self.shorter.find(names[copy])
            if before is None or place != (before[0], before[1] + 1):
                return False
        return True

    def are_layers_joined_by_loops(self) -> bool:
        """Tell if what layers, or calls behind them, read of other layers was computed by loops of these.

        Otherwise a value goes through layers as a view of what stands before them. Which view that is depends
        on the number of layers, and loops do not say it.
        """
        shorter, known = self.shorter, dict[fx.Node, bool]()
        first, last = shorter.repetition.first, shorter.repetition.last
        computed = {origin.node for node in self.graph.nodes for origin in node.origins}

        def find_layer(call: fx.Node) -> int:
            return shorter.owners.get(call.name, -1)

        def is_computed(call: fx.Node) -> bool:
            if call not in known:
                layer = find_layer(call)
                known[call] = (
                    layer < 0
                    or call.name in computed
                    or all(
                        find_layer(operand) in (-1, layer) and is_computed(operand)
                        for operand in call.all_input_nodes
                    )
                )
            return known[call]

        return all(
            find_layer(operand) == find_layer(call) or is_computed(operand)
            for call in shorter.gm.graph.nodes
            for operand in call.all_input_nodes
            if first <= find_layer(operand) < last
        )

    def _is_next(self, position: int, later: int) -> bool:
        one, other = self.graph.nodes[position].origins, self.graph.nodes[later].origins
        if not one or len(one) != len(other):
            return False
        for origin, origin_later in zip(one, other, strict=True):
            place, place_later = self._find(origin), self._find(origin_later)
            if place is None or place_later != (place[0], place[1] + 1):
                return False
        return True

    def _find(self, origin: Origin) -> tuple[int, int] | None:
        return self.shorter.find(origin.node)

    def may_move(self, position: int, *, all_the_way: bool) -> bool:
        """Tell if the loop at `position` may stand for calls of later layers: it computes calls of layers
        that were kept, or, if it moves behind all that were left out, calls behind these, or calls of no
        layer.
        """
        shorter = self.shorter
        if all_the_way and self._is_of_no_layer(position):
            return True
        first, last = shorter.repetition.first, shorter.repetition.last
        origins = self.graph.nodes[position].origins
        for origin in origins:
            # a call without a layer belongs to none, or was made by a rewrite
            layer = shorter.owners.get(origin.node, -1)
            if not (first <= layer < shorter.end or (all_the_way and layer >= last)):
                return False
        return bool(origins)

    def _is_of_no_layer(self, position: int) -> bool:
        """Tell if the loop at `position` computes calls of no layer, from what such calls and inputs of no
        layer are: the same calls have the same value in the whole graph, wherever they stand.

        An example is what a backward graph makes of a saved value of a layer whose loops are like those of
        the others, though its calls are not.
        """
        known = self.of_no_layer.get(position)
        if known is None:
            node, entry = self.graph.nodes[position], self.entries[position]
            known = bool(node.origins) and all(
                self.shorter.owners.get(origin.node, 0) < 0 for origin in node.origins
            )
            for name in entry.names if known else ():
                definer = self.definers.get(name)
                if definer is None:
                    known = known and self.shorter.find(name) is None
                elif definer != position:
                    known = known and self._is_of_no_layer(definer)
            self.of_no_layer[position] = known
        return known

    def is_fixed(self, name: str) -> bool:
        """Tell if `name` has the same value in the whole graph, and for each layer: it is computed from
        inputs of no layer.
        """
        known = self.fixed.get(name)
        if known is None:
            known = self.fixed[name] = self._derive_fixed(name)
        return known

    def _derive_fixed(self, name: str) -> bool:
        position = self.definers.get(name)
        if position is None:
            return self.shorter.find(name) is None
        if name in self.found.places:
            return False
        node = self.graph.nodes[position]
        if isinstance(node, View):
            # equal layers see equal layouts of what they all read, whichever call made the view first
            return self.is_fixed(node.source)
        if not node.origins or not all(self._is_alike(origin.node) for origin in node.origins):
            return False
        if isinstance(node, Extern) and node.random and any(map(self._is_of_layer, node.origins)):
            # each layer draws for itself
            return False
        entry = self.entries[position]
        # names that the loop defines may stand among those that it mentions
        return all(self.is_fixed(read) for read in entry.names if read not in entry.defines)

    def _is_of_layer(self, origin: Origin) -> bool:
        return 0 <= self.shorter.owners.get(origin.node, -1) < self.shorter.repetition.last

    def _is_alike(self, name: str) -> bool:
        """Tell if loops of the call `name` that read inputs of no layer have one value for all layers.

        What layers before the equal ones make of such an input is another value behind each of them, unless
        each layer makes it for itself.
        """
        shorter = self.shorter
        layer = shorter.owners.get(name)
        if layer is None or not 0 <= layer < shorter.repetition.first:
            return layer is not None
        place = shorter.find(name)
        if place is None:
            return False
        term = self._describe_term(name)
        return term is not None and term == self._describe_term(
            shorter.name(place[0], shorter.repetition.first)
        )

    def _describe_term(self, name: str) -> Hashable:
        """Return the call `name` written out to what belongs to no layer; None if another layer is in it."""
        layer, place = self.shorter.owners.get(name, -1), self.shorter.find(name)
        if layer < 0:
            return name if place is None else None
        if place is None:
            return None
        parts: list[Hashable] = [place[0]]
        for operand in self.shorter.nodes[name].all_input_nodes:
            if self.shorter.owners.get(operand.name, -1) not in (-1, layer):
                return None
            part = self._describe_term(operand.name)
            if part is None:
                return None
            parts.append(part)
        return tuple(parts)
