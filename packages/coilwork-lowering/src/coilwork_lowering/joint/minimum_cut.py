"""Find a minimum cut of a network of integers, in time that is near-linear for networks of programs.

Most vertices are decided by edges that cannot be cut: what they tie to the source or to the sink is found in
two walks. What is left falls into components, one per stretch of a program, each with a flow of its own.

Flows are by push and relabel (A. V. Goldberg, R. E. Tarjan, "A new approach to the maximum-flow problem",
J. ACM 35, 1988), first in, first out, with labels that are measured again after as many relabels as there are
vertices (B. V. Cherkassky, A. V. Goldberg, "On implementing the push-relabel method", Algorithmica 19, 1997).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

_SOURCE = 0
_SINK = 1


class UnboundedCutError(ValueError):
    """Edges that cannot be cut lead from the source to the sink."""


@dataclass(frozen=True, slots=True)
class Network:
    """A directed network. Vertices are counted from 0; an edge is a position in the three lists.

    Capacities are not negative; `math.inf`: the edge cannot be cut.
    """

    vertices: int
    tails: list[int] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)

    def add(self, tail: int, head: int, capacity: float) -> None:
        """Add an edge."""
        self.tails.append(tail)
        self.heads.append(head)
        self.capacities.append(capacity)


def find_sink_side(network: Network, sources: Sequence[int], sinks: Sequence[int]) -> bytearray:
    """Return for each vertex 1 if it is on the sinks' side of the minimum cut between `sources` and `sinks`,
    else 0.

    Of several minimum cuts it is the one with the smallest side of the sinks, which is unique: the vertices
    that reach a sink behind a maximum flow. So the result depends on no order.

    Raises:
        UnboundedCutError: every cut is infinite.
    """
    forward: list[list[int]] = [[] for _ in range(network.vertices)]
    backward: list[list[int]] = [[] for _ in range(network.vertices)]
    finite: list[int] = []
    for edge, capacity in enumerate(network.capacities):
        if capacity == inf:
            forward[network.tails[edge]].append(network.heads[edge])
            backward[network.heads[edge]].append(network.tails[edge])
        elif capacity > 0:
            finite.append(edge)
    from_source = _reach(sources, forward)
    to_sink = _reach(sinks, backward)
    if any(map(int.__and__, from_source, to_sink)):
        raise UnboundedCutError
    for component in _list_components(network, finite, from_source, to_sink):
        for vertex in component.find_sink_side():
            to_sink[vertex] = 1
    return to_sink


def _reach(starts: Sequence[int], edges: Sequence[Sequence[int]]) -> bytearray:
    reached = bytearray(len(edges))
    pending = list(starts)
    for vertex in starts:
        reached[vertex] = 1
    while pending:
        for vertex in edges[pending.pop()]:
            if not reached[vertex]:
                reached[vertex] = 1
                pending.append(vertex)
    return reached


class _Component:
    """Undecided vertices that edges between them connect; what is decided is one source and one sink.

    Edges come in pairs: `edge ^ 1` is the way back, whose capacity is the flow.
    """

    __slots__ = ("capacities", "edges", "heads", "vertices")

    def __init__(self) -> None:
        self.vertices: list[int] = [-1, -1]
        self.edges: list[list[int]] = [[], []]
        self.heads: list[int] = []
        self.capacities: list[float] = []

    def add_vertex(self, vertex: int) -> int:
        self.vertices.append(vertex)
        self.edges.append([])
        return len(self.vertices) - 1

    def add_edge(self, tail: int, head: int, capacity: float) -> None:
        self.edges[tail].append(len(self.heads))
        self.edges[head].append(len(self.heads) + 1)
        self.heads += (head, tail)
        self.capacities += (capacity, 0)

    def find_sink_side(self) -> list[int]:
        """Return the vertices that reach the sink behind a maximum flow.

        Flow that does not reach the sink stays where it is, as cuts do not depend on its way back.
        """
        edges, heads, capacities = self.edges, self.heads, self.capacities
        unreachable = len(self.vertices)
        excess: list[float] = [0] * unreachable
        for edge in edges[_SOURCE]:
            excess[heads[edge]] += capacities[edge]
            capacities[edge ^ 1] += capacities[edge]
            capacities[edge] = 0
        while True:
            labels = self._measure_distances()
            labels[_SOURCE] = unreachable
            active = deque(at for at in range(2, unreachable) if excess[at] > 0 and labels[at] < unreachable)
            if not active:
                return [self.vertices[at] for at in range(2, unreachable) if labels[at] < unreachable]
            untried = [0] * unreachable
            relabelled = 0
            while active and relabelled < unreachable:
                at = active.popleft()
                here, mine, label, left, place = (
                    edges[at],
                    len(edges[at]),
                    labels[at],
                    excess[at],
                    untried[at],
                )
                while left > 0:
                    if place == mine:
                        place = 0
                        relabelled += 1
                        label = 1 + min(
                            (labels[heads[edge]] for edge in here if capacities[edge] > 0),
                            default=unreachable,
                        )
                        if label >= unreachable:
                            label = unreachable
                            break
                        continue
                    edge = here[place]
                    other = heads[edge]
                    if capacities[edge] > 0 and labels[other] == label - 1:
                        room = capacities[edge]
                        if room > left:
                            room = left
                        capacities[edge] -= room
                        capacities[edge ^ 1] += room
                        left -= room
                        if excess[other] == 0 and other != _SINK:
                            active.append(other)
                        excess[other] += room
                        if left == 0:
                            break
                    place += 1
                labels[at], excess[at], untried[at] = label, left, place

    def _measure_distances(self) -> list[int]:
        """Return the number of edges to the sink that still have room; for vertices that do not reach it, the
        number of vertices.
        """
        unreachable = len(self.vertices)
        distances = [unreachable] * unreachable
        distances[_SINK] = 0
        pending = deque((_SINK,))
        while pending:
            at = pending.popleft()
            for edge in self.edges[at]:
                vertex = self.heads[edge]
                if distances[vertex] == unreachable and self.capacities[edge ^ 1] > 0:
                    distances[vertex] = distances[at] + 1
                    pending.append(vertex)
        return distances


def _list_components(
    network: Network, finite: Sequence[int], from_source: bytearray, to_sink: bytearray
) -> list[_Component]:
    """The components of what is undecided, with their edges from the source and to the sink."""
    tails, heads, capacities = network.tails, network.heads, network.capacities
    neighbours: list[list[int]] = [[] for _ in range(network.vertices)]
    inner: list[int] = []
    border: list[int] = []
    for edge, tail in enumerate(tails):
        head = heads[edge]
        if not (from_source[tail] or to_sink[tail] or from_source[head] or to_sink[head]):
            if capacities[edge] > 0:
                inner.append(edge)
                neighbours[tail].append(head)
                neighbours[head].append(tail)
    for edge in finite:
        into = from_source[tails[edge]] and not (from_source[heads[edge]] or to_sink[heads[edge]])
        out = to_sink[heads[edge]] and not (from_source[tails[edge]] or to_sink[tails[edge]])
        if into or out:
            border.append(edge)
    components: list[_Component] = []
    owner: dict[int, _Component] = {}
    place: dict[int, int] = {}
    # a component without an edge to the sink is on the source's side
    for edge in border:
        start = tails[edge] if to_sink[heads[edge]] else -1
        if start < 0 or start in owner:
            continue
        component = _Component()
        components.append(component)
        pending = [start]
        owner[start] = component
        while pending:
            vertex = pending.pop()
            place[vertex] = component.add_vertex(vertex)
            for other in neighbours[vertex]:
                if other not in owner:
                    owner[other] = component
                    pending.append(other)
    for edge in inner:
        tail, head = tails[edge], heads[edge]
        if tail in owner:
            owner[tail].add_edge(place[tail], place[head], capacities[edge])
    for edge in border:
        tail, head = tails[edge], heads[edge]
        if to_sink[head]:
            owner[tail].add_edge(place[tail], _SINK, capacities[edge])
        elif head in owner:
            owner[head].add_edge(_SOURCE, place[head], capacities[edge])
    return components
