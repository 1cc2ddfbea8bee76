"""Minimum cuts of networks, beside those of networkx."""

from __future__ import annotations

import random
from math import inf

import networkx
import pytest

from coilwork_lowering.joint.minimum_cut import Network, UnboundedCutError, find_sink_side


def find_by_networkx(network: Network, sources: list[int], sinks: list[int]) -> list[int] | None:
    graph = networkx.DiGraph()
    graph.add_nodes_from((*range(network.vertices), "source", "sink"))
    for tail, head, capacity in zip(network.tails, network.heads, network.capacities, strict=True):
        known = graph.get_edge_data(tail, head, {"capacity": 0})["capacity"]
        graph.add_edge(tail, head, capacity=known + capacity)
    graph.add_edges_from((("source", vertex) for vertex in sources), capacity=inf)
    graph.add_edges_from(((vertex, "sink") for vertex in sinks), capacity=inf)
    try:
        _, (_, behind) = networkx.minimum_cut(graph, "source", "sink")
    except networkx.NetworkXUnbounded:
        return None
    return [int(vertex in behind) for vertex in range(network.vertices)]


def find(network: Network, sources: list[int], sinks: list[int]) -> list[int] | None:
    try:
        return list(find_sink_side(network, sources, sinks))
    except UnboundedCutError:
        return None


def make_network(draw: random.Random, *, edges_last: bool = False) -> tuple[Network, list[int], list[int]]:
    count = draw.randint(2, 24)
    network = Network(count)
    edges = [(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(1, 70))]
    given = [(tail, head, draw.choice((inf, inf, 0, 1, 2, 5, 8, 30))) for tail, head in edges if tail != head]
    for edge in reversed(given) if edges_last else given:
        network.add(*edge)
    sources = draw.sample(range(count), draw.randint(1, max(1, count // 4)))
    return network, sources, draw.sample(range(count), draw.randint(1, max(1, count // 4)))


def test_cuts_of_random_networks_are_those_of_networkx() -> None:
    unbounded = 0
    for seed in range(300):
        network, sources, sinks = make_network(random.Random(seed))
        expected = find_by_networkx(network, sources, sinks)
        assert find(network, sources, sinks) == expected, seed
        unbounded += expected is None
    assert 20 < unbounded < 280


def test_the_order_of_edges_decides_nothing() -> None:
    for seed in range(100):
        network, sources, sinks = make_network(random.Random(seed))
        again, _, _ = make_network(random.Random(seed), edges_last=True)
        assert find(network, sources, sinks) == find(again, sources[::-1], sinks[::-1])


def make_program(calls: int) -> tuple[Network, list[int], list[int]]:
    """Calls that read one or two near ones; some are inputs, and some the backward reads."""
    draw = random.Random(calls)
    network = Network(2 * calls)
    for at in range(calls):
        network.add(2 * at, 2 * at + 1, draw.randint(1, 100))
        for _ in range(2):
            user = at + draw.randint(1, 8)
            if user < calls:
                network.add(2 * at + 1, 2 * user, inf)
    return network, list(range(0, 2 * calls, 194)), list(range(121, 2 * calls, 194))


@pytest.mark.parametrize("calls", [600, 6000])
def test_a_long_program_is_cut_at_the_least_cost(calls: int) -> None:
    network, sources, sinks = make_program(calls)
    side = find_sink_side(network, sources, sinks)
    if calls == 600:
        assert list(side) == find_by_networkx(network, sources, sinks)
    assert not any(side[at] for at in sources) and all(side[at] for at in sinks)
    # no edge that cannot be cut leads across
    edges = zip(network.tails, network.heads, network.capacities, strict=True)
    assert not any(side[head] and not side[tail] for tail, head, capacity in edges if capacity == inf)
