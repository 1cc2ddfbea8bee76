"""The accuracy rule accepts rounding and rejects mistakes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.accuracy import AccuracyError, check_all, compare, compare_group, distance

GENERATOR_SEED = 3


def matmul_results() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A product in float32, the same with its sum in another order, and in float64."""
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)
    order = torch.randperm(512, generator=generator)
    return a @ b, a[:, order] @ b[order], a.double() @ b.double()


def test_another_summation_order_passes() -> None:
    eager, reordered, reference = matmul_results()
    compare("product", compiled=reordered, eager=eager, reference=reference).check()


def test_one_wrong_element_fails_although_the_norm_hardly_moves() -> None:
    eager, reordered, reference = matmul_results()
    reordered[3, 5] += 1e-3
    with pytest.raises(AccuracyError, match="product: max abs error"):
        compare("product", compiled=reordered, eager=eager, reference=reference).check()


def test_lower_precision_inside_fails() -> None:
    eager, reordered, reference = matmul_results()
    rounded = reordered.bfloat16().float()
    assert not compare("product", compiled=rounded, eager=eager, reference=reference).ok


def test_nan_fails_unless_the_reference_has_it_there() -> None:
    eager = torch.tensor([1.0, float("nan"), float("-inf")])
    assert compare("x", compiled=eager.clone(), eager=eager, reference=eager.double()).ok
    wrong = torch.tensor([float("nan"), float("nan"), float("-inf")])
    assert not compare("x", compiled=wrong, eager=eager, reference=eager.double()).ok
    other_sign = torch.tensor([1.0, float("nan"), float("inf")])
    assert distance(other_sign, eager).max_abs == float("inf")


def test_nan_and_infinity_are_not_interchangeable() -> None:
    reference = torch.tensor([0.0, float("nan")])
    assert distance(torch.tensor([0.0, 0.0]), reference).max_abs == float("inf")


def test_dtype_and_shape_must_be_eagers() -> None:
    value = torch.ones(2)
    for other in (value.double(), value[:1]):
        with pytest.raises(AccuracyError, match="compiled gives"):
            compare("x", compiled=other, eager=value, reference=value.double())


def test_integers_must_be_equal() -> None:
    value = torch.tensor([1, 2, 3])
    assert compare("n", compiled=value.clone(), eager=value, reference=value).ok
    assert not compare("n", compiled=value + 1, eager=value, reference=value).ok


def test_gradients_that_are_zero_in_exact_arithmetic_may_be_any_noise() -> None:
    large, noise = torch.full((100,), 0.5), torch.full((4,), 1e-9)
    comparisons = compare_group(
        ["weight", "bias"],
        compiled=[large.clone(), noise * 7],
        eager=[large, noise],
        reference=[large.double(), torch.zeros(4, dtype=torch.float64)],
    )
    check_all(comparisons)


def test_a_wrong_member_of_a_group_is_named() -> None:
    values = [torch.full((8,), 0.5), torch.full((8,), 0.25)]
    wrong = [values[0].clone(), values[1] * 1.001]
    with pytest.raises(AccuracyError, match="bias"):
        check_all(
            compare_group(
                ["weight", "bias"],
                compiled=wrong,
                eager=values,
                reference=[value.double() for value in values],
            )
        )
