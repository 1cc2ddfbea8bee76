"""Positions of equal elements may be any, and nothing else may."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from integration_tests.operators.database import Sample
from integration_tests.operators.judge import judge
from integration_tests.operators.positions import WITHOUT_ORDER, settled

NAN = float("nan")
X = torch.tensor([[3.0, 1.0, 3.0, 2.0, 3.0], [NAN, 0.0, 5.0, NAN, 5.0]])


def verdict(positions: Tensor, *, dim: int = -1, values: Tensor | None = None) -> str:
    source = X if dim == -1 else X.t()
    eager = torch.topk(source, 2, dim)
    sample = Sample(arguments=(source, 2), keywords={"dim": dim})
    ours = (
        eager.values if values is None else values,
        positions if dim == -1 else positions.t().contiguous(),
    )
    found = settled(ours, tuple(eager), sample, 2)
    return judge(found, tuple(eager), lambda: None).verdict


@pytest.mark.parametrize("dim", [-1, 0])
@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ([[0, 2], [0, 3]], "ok"),
        ([[4, 2], [3, 0]], "ok"),
        ([[4, 0], [3, 0]], "ok"),
        # twice the same, another element, none
        ([[4, 4], [3, 0]], "wrong"),
        ([[4, 3], [3, 0]], "wrong"),
        ([[4, 0], [3, 2]], "wrong"),
        ([[4, 5], [3, 0]], "wrong"),
        ([[4, -1], [3, 0]], "wrong"),
    ],
)
def test_positions_are_judged_by_their_verdict(positions: list[list[int]], expected: str, dim: int) -> None:
    assert verdict(torch.tensor(positions), dim=dim) == expected


def test_types_layouts_and_values_are_judged_as_ever() -> None:
    good = torch.tensor([[4, 2], [3, 0]])
    assert verdict(good.int()) == "dtype"
    assert verdict(good.t().contiguous().t()) == "strides"
    assert verdict(good, values=torch.topk(X, 2).values + 1) == "wrong"


def test_a_single_element_and_none() -> None:
    for source in (torch.tensor(2.0), torch.empty(0, 3)):
        eager = tuple(torch.topk(source, 1))
        sample = Sample(arguments=(source, 1), keywords={})
        assert judge(settled(eager, eager, sample, 2), eager, lambda: None).verdict == "ok"


def judged(function: Callable[..., object], ours: object, *arguments: object, **keywords: object) -> str:
    eager = function(X, *arguments, **keywords)
    sample = Sample(arguments=(X, *arguments), keywords=keywords)
    dimension = WITHOUT_ORDER[function.__name__]
    return judge(settled(ours, eager, sample, dimension), eager, lambda: None).verdict


def test_sorts_are_free_unless_they_are_stable() -> None:
    values, places = torch.sort(X, dim=-1, stable=True)
    other = places.clone()
    other[0, 2:] = other[0, 2:].flip(0)
    assert judged(torch.sort, (values, other), dim=-1) == judged(torch.argsort, other, -1) == "ok"
    assert judged(torch.sort, (values, other), dim=-1, stable=True) == "wrong"
    assert judged(torch.sort, (values, places), dim=-1, stable=True) == "ok"
    assert judged(torch.argsort, other.flip(-1), -1) == "wrong"


def test_elements_by_rank() -> None:
    values, _ = torch.kthvalue(X, 4, 1)
    for places, expected in (([2, 3], "ok"), ([4, 0], "ok"), ([1, 0], "wrong"), ([2, 5], "wrong")):
        assert judged(torch.kthvalue, (values, torch.tensor(places)), 4, 1) == expected
    middle = torch.median(X, 1, keepdim=True)
    assert judged(torch.median, (middle.values, torch.tensor([[2], [3]])), 1, keepdim=True) == "ok"
    assert judged(torch.median, torch.median(X)) == "ok"
