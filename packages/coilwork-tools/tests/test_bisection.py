"""Bisection for the calls at fault."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from coilwork_ir.loc import Origin
from coilwork_tools.op_fallback.faults import Budget, find_smallest_calls, find_smallest_cure

PLENTY = 10_000


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 1000])
def test_exactly_the_culprits_are_found(count: int) -> None:
    numbers = random.Random(count)
    for _ in range(20):
        culprits = set(numbers.sample(range(count), min(count, numbers.randint(1, 3))))
        budget = Budget(PLENTY)

        def cures(some: Sequence[int], culprits: set[int] = culprits) -> bool:
            return culprits <= set(some)

        found = find_smallest_cure(range(count), cures, budget)
        assert sorted(found) == sorted(culprits)
        assert PLENTY - budget.tries <= len(culprits) * (count.bit_length() + 1)


def test_either_of_two_is_enough() -> None:
    found = find_smallest_cure(range(100), lambda some: 20 in some or 70 in some, Budget(PLENTY))
    assert found == (20,)


@pytest.mark.parametrize("tries", range(12))
def test_an_answer_without_tries_left_still_cures(tries: int) -> None:
    found = find_smallest_cure(range(64), lambda some: {7, 40} <= set(some), Budget(tries))
    assert {7, 40} <= set(found)


def call(number: int, operator: str) -> Origin:
    return Origin(node=f"{operator}_{number}", op=f"aten.{operator}.default")


CALLS = [call(number, operator) for number in range(100) for operator in ("sin", "cos", "mul")]


@pytest.mark.parametrize("culprits", [{"cos_41"}, {"cos_0"}, {"mul_99"}, {"sin_3", "mul_98"}])
def test_a_call_of_an_operator_takes_few_tries(culprits: set[str]) -> None:
    budget = Budget(40)
    found = find_smallest_calls(CALLS, lambda some: culprits <= {one.node for one in some}, budget)
    assert {one.node for one in found} == culprits
    assert budget.tries >= 8


def test_an_operator_that_fails_in_every_call_is_found_whole() -> None:
    budget = Budget(40)
    every = {one.node for one in CALLS if "cos" in one.node}
    found = find_smallest_calls(CALLS, lambda some: every <= {one.node for one in some}, budget)
    assert {one.node for one in found} == every
    assert budget.tries >= 10
