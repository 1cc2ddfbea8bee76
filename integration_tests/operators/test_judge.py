"""The judge itself: what it lets pass, and that it names what differs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from integration_tests.operators.database import Sample
from integration_tests.operators.judge import judge

X = torch.arange(6.0).view(2, 3)


def no_reference() -> Tensor:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("compiled", "verdict"),
    [
        (X.clone(), "ok"),
        (X + 1e-6, "ok"),
        (X + 1e-3, "wrong"),
        (X.double(), "dtype"),
        (X.view(3, 2), "shape"),
        (X.t().contiguous().t(), "strides"),
        ((X, X), "wrong"),
        (3.0, "wrong"),
    ],
)
def test_each_difference_has_its_verdict(compiled: object, verdict: str) -> None:
    assert judge(compiled, X, no_reference).verdict == verdict


def test_the_worst_verdict_of_all_results_counts() -> None:
    found = judge((X, X.double(), X.t().contiguous().t()), (X, X, X), no_reference)
    assert found.verdict == "dtype"
    assert found.detail.startswith("result 1: ")


def test_twice_eagers_own_error_is_allowed() -> None:
    truth = torch.full((4,), 1.0, dtype=torch.float64)
    eager = truth.float() + 1e-3
    assert judge(truth.float() - 1.5e-3, eager, lambda: truth).verdict == "ok"
    assert judge(truth.float() - 5e-3, eager, lambda: truth).verdict == "marginal"
    assert judge(truth.float() - 5e-2, eager, lambda: truth).verdict == "wrong"


def test_infinities_and_nan_stand_where_eager_has_them() -> None:
    eager = torch.tensor([float("inf"), float("nan"), 1.0])
    assert judge(eager.clone(), eager, no_reference).verdict == "ok"
    swapped = torch.tensor([float("nan"), float("nan"), 1.0])
    assert judge(swapped, eager, lambda: eager.double()).verdict == "wrong"


def test_what_overflows_on_the_way_is_no_number_on_either_side() -> None:
    inf, nan = float("inf"), float("nan")
    truth = torch.tensor([7e4, 1.0, 2.0], dtype=torch.float64)
    eager = torch.tensor([nan, nan, 2.0], dtype=torch.float16)
    for first in (inf, -inf, nan):
        assert judge(torch.tensor([first, 1.0, 2.0]).half(), eager, lambda: truth).verdict == "ok"
    assert judge(torch.tensor([inf, 1.0, nan]).half(), eager, lambda: truth).verdict == "wrong"


def test_lazily_conjugated_views_are_compared_by_their_numbers() -> None:
    truth = torch.tensor([1 + 2j, complex("inf")], dtype=torch.complex128)
    eager, ours = truth.to(torch.complex64) + 1e-3, truth.to(torch.complex64) - 1.5e-3
    for one, other in ((ours.conj().clone().conj(), eager), (ours, eager.conj().clone().conj())):
        assert one.is_conj() or other.is_conj()
        assert judge(one, other, lambda: truth).verdict == "ok"
    assert judge(ours.conj(), eager, lambda: truth).verdict == "wrong"


def test_random_values_are_not_compared() -> None:
    assert judge(X + 1, X, no_reference, values=False).verdict == "ok"
    assert judge((X + 1).double(), X, no_reference, values=False).verdict == "dtype"


def test_strides_of_what_has_one_element_or_none_do_not_matter() -> None:
    assert judge(torch.ones(1).as_strided((1,), (7,)), torch.ones(1), no_reference).verdict == "ok"
    assert judge(torch.empty(0, 4).t().contiguous().t(), torch.empty(0, 4), no_reference).verdict == "ok"


def test_copies_of_a_sample_keep_strides_and_ask_for_the_same_gradients() -> None:
    given = Sample(arguments=(X.t(), torch.ones(2)), keywords={"k": torch.ones(3)}, differentiable=(0, 2))
    arguments, keywords = given.fresh(requires_grad=True)
    assert arguments[0].stride() == (1, 3)
    assert [arguments[0].requires_grad, arguments[1].requires_grad, keywords["k"].requires_grad] == [
        True,
        False,
        True,
    ]
    assert given.in_float64().arguments[0].dtype == torch.float64


def test_where_a_branch_decides_eager_with_other_last_bits_is_as_good_as_eager() -> None:
    eager, ours = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])
    wide = torch.tensor([1.0, 2.0], dtype=torch.float64)
    asked: list[int] = []

    def nearby(*values: float) -> list[Tensor]:
        asked.append(1)
        return [torch.tensor([1.0, value]) for value in values]

    assert judge(ours, eager, lambda: wide).verdict == "wrong"
    assert judge(ours, eager, lambda: wide, nearby=lambda: nearby(2.0, 2.0)).verdict == "wrong"
    assert judge(ours, eager, lambda: wide, nearby=lambda: nearby(2.0, 1.7)).verdict == "ok"
    assert judge(eager, eager, lambda: wide, nearby=lambda: nearby(2.0)).verdict == "ok"
    assert len(asked) == 2


def test_integers_that_rounding_decides() -> None:
    eager, other = torch.tensor([3, 7]), torch.tensor([4, 7])
    runs = [torch.tensor([4, 7])]
    assert judge(other, eager, lambda: None).verdict == "wrong"
    assert judge(other, eager, lambda: None, nearby=lambda: runs).verdict == "ok"
    assert judge(torch.tensor([3, 8]), eager, lambda: None, nearby=lambda: runs).verdict == "wrong"
