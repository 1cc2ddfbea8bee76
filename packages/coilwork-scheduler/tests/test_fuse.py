"""Merging groups without making cycles."""

from __future__ import annotations

from random import Random

from coilwork_scheduler.fusion.fuse import GroupDag


def test_a_path_through_a_third_forbids_merging() -> None:
    dag = GroupDag([[], [0], [0, 1]], limit=10)
    assert dag.merge(0, 2) is None
    assert dag.merge(0, 1) == 0
    assert dag.merge(0, 2) == 0
    assert dag.find(2) == 0


def test_a_search_that_grows_too_long_is_a_refusal() -> None:
    before = [[], *[[0] for _ in range(20)], []]
    assert GroupDag(before, limit=5).merge(0, 21) is None
    assert GroupDag(before, limit=50).merge(0, 21) == 0


def test_the_order_stays_topological_and_no_cycle_appears() -> None:
    rng = Random(3)
    for _ in range(50):
        count = 30
        before = [sorted(rng.sample(range(k), min(k, rng.randrange(3)))) for k in range(count)]
        dag = GroupDag(before, limit=1000)
        for _ in range(40):
            one, other = (dag.find(rng.randrange(count)) for _ in range(2))
            if one != other:
                dag.merge(one, other)
            for node in range(count):
                for earlier in before[node]:
                    if dag.find(earlier) != dag.find(node):
                        assert dag.order(dag.find(earlier)) < dag.order(dag.find(node))
