"""Training steps under autocast in bf16: each gradient is about as far from float64 as eager's."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.accuracy import MEMBER_FACTOR, Comparison, compare_group, float64_copy, to_float64
from benchmarks.backends import compile_with
from benchmarks.models import CASES, Instance, ModelCase, Setting, Size, find_case, instantiate
from integration_tests.model_checks import fresh_dynamo

# On a CPU, where a model takes seconds to build: attention with a mask, layer norms, embeddings.
ON_CPU = ("bert",)


def take_step(instance: Instance, backend: str, *, autocast: bool) -> dict[str, Tensor]:
    """The loss and the gradients by parameter of one step on a copy of the model."""
    module, case = copy.deepcopy(instance.module), instance.case
    device = instance.inputs[0].device.type
    assert case.loss is not None
    loss_of = case.loss

    def step(*inputs: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16) if autocast else nullcontext():
            return loss_of(module(*inputs), inputs)

    loss = compile_with(step, backend)(*instance.inputs)
    torch.autograd.backward(loss)
    gradients = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients}


def compare_steps(case: ModelCase, setting: Setting) -> tuple[Comparison, ...]:
    instance = instantiate(case, setting, training=True)
    in_float64 = replace(instance, module=float64_copy(instance.module), inputs=to_float64(instance.inputs))
    exact = take_step(in_float64, "eager", autocast=False)
    eager = take_step(instance, "eager", autocast=True)
    with fresh_dynamo(case):
        found = take_step(instance, "coilwork", autocast=True)
    assert found.keys() == eager.keys() == exact.keys()
    names = [name for name in found if name != "loss"]
    return compare_group(
        names,
        compiled=[found[name] for name in names],
        eager=[eager[name] for name in names],
        reference=[exact[name] for name in names],
    )


def list_too_far(comparisons: tuple[Comparison, ...]) -> list[str]:
    """Say which results are more than `MEMBER_FACTOR` times as far as eager's in the root mean square.

    Gradients that are zero in exact arithmetic are noise, and have a floor instead.
    """
    return [
        str(one)
        for one in comparisons
        if not math.isfinite(one.compiled.relative_l2)
        or one.compiled.relative_l2 > MEMBER_FACTOR * one.eager.relative_l2 + one.relative_l2_floor
    ]


def setting_on(device: str, size: Size) -> Setting:
    return Setting(size=size, device=torch.device(device), dtype=torch.float32)


@pytest.mark.parametrize("name", ON_CPU)
def test_gradients_under_autocast_are_as_accurate_as_eagers(name: str) -> None:
    comparisons = compare_steps(find_case(name), setting_on("cpu", Size.SMALL))
    assert len(comparisons) > 20
    assert list_too_far(comparisons) == []


def test_a_gradient_that_is_further_away_is_found() -> None:
    """One that is rounded to 8 bits behind the step is no longer as near as eager's."""
    exact = torch.linspace(-1.0, 1.0, 999, dtype=torch.float64)
    eager = exact.bfloat16().float()
    near, far = eager.clone(), exact.float().to(torch.float8_e4m3fn).float()
    others = torch.ones(3, dtype=torch.float64)
    for given, count in ((near, 0), (far, 1)):
        compared = compare_group(
            ["near", "other"],
            compiled=[given, others.float()],
            eager=[eager, others.float()],
            reference=[exact, others],
        )
        assert len(list_too_far(compared[:2])) == count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", [case for case in CASES if case.train], ids=lambda case: case.name)
def test_gradients_of_every_model_under_autocast_on_a_gpu(case: ModelCase) -> None:
    assert list_too_far(compare_steps(case, setting_on("cuda", Size.REDUCED))) == []
