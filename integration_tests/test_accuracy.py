"""The accuracy rule accepts rounding and rejects mistakes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchmarks.accuracy import AccuracyError, check_all, compare, compare_group, distance, float64_copy
from benchmarks.eager_spread import gradients_nearby, nearby, off_by_a_last_bit
from benchmarks.judgement import Outcome, eager_outcome, judge
from benchmarks.models import Instance, ModelCase
from benchmarks.training import loss_and_gradients, update_parameters

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


def test_finite_elements_are_judged_beside_equal_infinities() -> None:
    reference = torch.tensor([1.0, float("inf"), float("nan"), 3.0], dtype=torch.float64)
    near = torch.tensor([1.0, float("inf"), float("nan"), 3.5])
    found = distance(near, reference)
    assert found.max_abs == 0.5
    assert found.relative_l2 == pytest.approx(0.5 / 10**0.5)


def test_a_group_is_judged_as_one_vector() -> None:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    reference = [torch.randn(size, generator=generator, dtype=torch.float64) for size in (5, 50, 500)]
    off = [(value + 1e-3 * torch.randn(value.shape, generator=generator)).float() for value in reference]
    *_, whole = compare_group(["a", "b", "c"], compiled=off, eager=off, reference=reference)
    assert whole.name == "all of a ... c"
    expected = distance(torch.cat(off), torch.cat(reference))
    assert whole.compiled.max_abs == expected.max_abs
    assert whole.compiled.relative_l2 == pytest.approx(expected.relative_l2, rel=1e-12)


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


def test_eager_runs_again_only_after_a_failure() -> None:
    def none_wanted() -> Iterator[list[Tensor]]:
        raise AssertionError("nothing failed")

    values = [torch.full((8,), 0.5), torch.full((8,), 0.25)]
    reference = [value.double() for value in values]
    check_all(
        compare_group(
            ["a", "b"], compiled=values, eager=values, reference=reference, more_eager=lambda: none_wanted()
        )
    )


def jumping_gradient(jump: float) -> list[Tensor]:
    """A gradient of which one element depends on a branch."""
    value = torch.linspace(0.1, 1.0, 1000)
    value[7] += jump
    return [value]


@pytest.mark.parametrize(("jump", "accepted"), [(0.01, True), (0.018, True), (0.04, False)])
def test_a_jump_may_be_as_large_as_in_other_eager_runs(jump: float, accepted: bool) -> None:
    further = [jumping_gradient(0.0), jumping_gradient(0.01), jumping_gradient(-0.005)]
    found, eager = jumping_gradient(jump), jumping_gradient(0.0)
    reference = [value.double() for value in eager]
    alone = compare_group(["weight"], compiled=found, eager=eager, reference=reference)
    assert not any(comparison.ok for comparison in alone)
    member, _ = compare_group(
        ["weight"], compiled=found, eager=eager, reference=reference, more_eager=lambda: further
    )
    assert member.ok == accepted
    assert "worst of 4 eager runs" in str(member)


def test_an_error_in_smooth_gradients_fails_beside_further_runs_too() -> None:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    exact = torch.randn(1000, generator=generator, dtype=torch.float64)

    def rounded() -> list[Tensor]:
        return [(exact * (1 + 1e-5 * torch.randn(1000, generator=generator, dtype=torch.float64))).float()]

    wrong = [(exact * (1 + 5e-5 * torch.randn(1000, generator=generator, dtype=torch.float64))).float()]
    comparisons = compare_group(
        ["weight"],
        compiled=wrong,
        eager=rounded(),
        reference=[exact],
        more_eager=lambda: (rounded() for _ in range(8)),
    )
    assert not any(comparison.ok for comparison in comparisons)
    assert all(comparison.eager_runs == 9 for comparison in comparisons)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_last_bit_moves_to_the_neighbouring_number(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    value = torch.randn(500, generator=generator).to(dtype)
    value[:4] = torch.tensor([0.0, float("inf"), float("-inf"), float("nan")])
    moved = off_by_a_last_bit(value, generator)
    torch.testing.assert_close(moved[:4], value[:4], rtol=0, atol=0, equal_nan=True)
    # One unit is the spacing of numbers in the element's own binade, or half of it just below a power of two.
    exponent = torch.frexp(value[4:].double()).exponent
    spacing = torch.finfo(dtype).eps * 2.0 ** (exponent - 1).double()
    units = (moved[4:].double() - value[4:].double()).abs() / spacing
    assert set(units.tolist()) <= {0.0, 0.5, 1.0}
    assert 0.5 < (units > 0).double().mean() < 0.8


def test_the_last_bit_moves_within_the_same_layout_and_not_in_integers() -> None:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    image = torch.randn(2, 3, 4, 5, generator=generator).contiguous(memory_format=torch.channels_last)
    assert off_by_a_last_bit(image, generator).stride() == image.stride()
    tokens = torch.arange(5)
    assert off_by_a_last_bit(tokens, generator) is tokens


class OnTheKink(nn.Module):
    """relu(x . weight), where the product is zero: the gradient is zero, or x from the next number on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -1.0, 0.5, -0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight)


def kinked() -> Instance:
    case = ModelCase(
        name="kink",
        build=lambda size: OnTheKink(),
        inputs=lambda setting, generator: (torch.full((4,), 0.3),),
        loss=lambda output, inputs: output,
    )
    return Instance(case=case, module=OnTheKink(), inputs=(torch.full((4,), 0.3),))


def outcome_with(instance: Instance, gradient: Tensor) -> Outcome:
    """What a step leaves that found this gradient and was right otherwise."""
    found = {"weight": gradient}
    updated = update_parameters(copy.deepcopy(instance.module), found)
    return replace(eager_outcome(instance, training=True), gradients=found, parameters=updated)


def test_gradients_of_either_side_of_a_kink_are_right() -> None:
    instance = kinked()
    _, here = loss_and_gradients(instance)
    assert here["weight"].abs().max() == 0.0
    found = {bool(run[0].any()) for run in gradients_nearby(instance)}
    assert found == {False, True}, "nearby runs stand on both sides"
    check_all(judge(outcome_with(instance, instance.inputs[0]), instance, training=True))


def test_gradients_of_neither_side_of_a_kink_are_wrong() -> None:
    instance = kinked()
    for wrong in (4 * instance.inputs[0], -4 * instance.inputs[0], torch.full((4,), float("nan"))):
        with pytest.raises(AccuracyError, match="gradient weight"):
            check_all(judge(outcome_with(instance, wrong), instance, training=True))


def test_parameters_that_no_eager_step_reaches_are_wrong() -> None:
    instance = kinked()
    outcome = outcome_with(instance, instance.inputs[0])
    stale = replace(outcome, parameters={"weight": instance.module.get_parameter("weight").detach() * 1.01})
    with pytest.raises(AccuracyError, match="parameter weight"):
        check_all(judge(stale, instance, training=True))


def test_a_missing_gradient_is_an_error() -> None:
    instance = kinked()
    with pytest.raises(AccuracyError, match="where eager has those of"):
        judge(replace(outcome_with(instance, instance.inputs[0]), gradients={}), instance, training=True)


def test_nearby_instances_are_copies_that_differ() -> None:
    instance = kinked()
    before = instance.module.get_parameter("weight").detach().clone()
    first, again, other = (nearby(instance, seed).module.get_parameter("weight") for seed in (1, 1, 2))
    assert torch.equal(instance.module.get_parameter("weight"), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert (first - before).abs().max() <= torch.finfo(torch.float32).eps


def test_a_captured_optimizer_step_is_right() -> None:
    # in the first step 1 - 0.999 is off by 1e-5 of itself in f32, which shows where the parameter was zero
    module = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(module.weight)
    gradients = {"weight": torch.randn(3, 4)}
    steps = [update_parameters(copy.deepcopy(module), gradients, captured=c)["weight"] for c in (False, True)]
    exact = update_parameters(float64_copy(module), gradients)["weight"]
    judged = compare("weight", compiled=steps[1], eager=steps[0], reference=exact)
    assert not judged.ok
    assert judged.compare_runs([distance(steps[1], exact)]).ok
    wrong = compare("weight", compiled=steps[1] * 1.0001, eager=steps[0], reference=exact)
    assert not wrong.compare_runs([distance(steps[1], exact)]).ok
