"""Frozen inference: prepared once, and again after every change of a parameter."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coilwork_lowering.torch_compat.operators import list_packed_types

Compile = Callable[..., Callable[..., Any]]


def images() -> nn.Sequential:
    """A convolution with a batch norm that has seen something, and one without bias or affine parameters."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1, bias=False),
        nn.BatchNorm2d(4, affine=False),
    )
    with torch.no_grad():
        model.train()(torch.randn(4, 3, 8, 8) * 3 + 1)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


class Widened(nn.Module):
    """Weights are stored in 16 bits and computed with in 32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5).bfloat16())
        self.register_buffer("scale", torch.rand(6, 1) + 1)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.float() * self.scale).t()


def report_of(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("inference_*/report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4, check_stride=True)


def test_batch_norms_go_into_convolutions(strictly: Compile, tmp_path: Path) -> None:
    model, x = images(), torch.randn(2, 3, 8, 8)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        compiled = strictly(model, freezing=True, trace=str(tmp_path), cache=False)
        for _ in range(2):
            close(compiled(x), model(x))
    report = report_of(tmp_path)
    assert {"name": "fold-batch-norm", "level": "frozen", "count": 2}.items() <= report["rewrites"][0].items()
    assert report["prepared"] == 4 and report["prepared_bytes"] >= 4 * (8 * 27 + 4 * 8)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


def test_a_parameter_that_changes_is_prepared_again(strictly: Compile) -> None:
    model, x = images(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled = strictly(model, freezing=True)
        close(compiled(x), model(x))
        model[0].weight.mul_(2)
        close(compiled(x), model(x))
        model[1].running_mean.add_(1)
        close(compiled(x), model(x))
        model.load_state_dict(images().state_dict())
        close(compiled(x), model(x))
        model[0].weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        close(compiled(x), model(x))
        model[0].weight.data = torch.randn(8, 3, 3, 3)
        close(compiled(x), model(x))


def test_what_depends_on_parameters_alone_is_computed_once(strictly: Compile, tmp_path: Path) -> None:
    model, x = Widened(), torch.randn(3, 5)
    with torch.no_grad():
        found = strictly(model, freezing=True, trace=str(tmp_path), cache=False)(x)
    close(found, model(x).detach())
    report = report_of(tmp_path)
    assert report["prepared"] == 1 and report["kernels"] == 0


def test_without_the_option_nothing_is_prepared(strictly: Compile, tmp_path: Path) -> None:
    with torch.no_grad():
        strictly(Widened(), trace=str(tmp_path), cache=False)(torch.randn(3, 5))
    assert report_of(tmp_path)["prepared"] == 0


def test_training_is_as_without(strictly: Compile) -> None:
    model, x = images(), torch.randn(2, 3, 8, 8)
    gradients = []
    for run in (model, strictly(model, freezing=True)):
        model.zero_grad()
        run(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)


def test_statistics_in_training_are_not_frozen(strictly: Compile) -> None:
    model = images().train()
    eager, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        compiled = strictly(model, freezing=True)
        for _ in range(2):
            close(compiled(x), eager(x))
    torch.testing.assert_close(dict(model.state_dict()), dict(eager.state_dict()), rtol=1e-4, atol=1e-4)


def test_results_are_the_callers_to_overwrite(strictly: Compile) -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            doubled = self.weight * 2
            return doubled, x + doubled.sin()

    model, x = Returned(), torch.zeros(4)
    with torch.no_grad():
        compiled = strictly(model, freezing=True)
        for _ in range(2):
            doubled, other = compiled(x)
            close(doubled, torch.full((4,), 2.0))
            close(other, torch.full((4,), 2.0).sin())
            doubled.zero_()


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_exact_numerics_keep_the_norm(strictly: Compile, tmp_path: Path, numerics: str) -> None:
    model, x = images(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        found = strictly(model, freezing=True, numerics=numerics, trace=str(tmp_path), cache=False)(x)
    close(found, model(x).detach())
    assert "fold-batch-norm" not in [item["name"] for item in report_of(tmp_path)["rewrites"]]


def test_from_the_cache_as_well(strictly: Compile, tmp_path: Path) -> None:
    model, x = images(), torch.randn(2, 3, 8, 8)
    for name, hit in (("first", False), ("second", True)):
        torch._dynamo.reset()
        with torch.no_grad():
            found = strictly(
                model, freezing=True, trace=str(tmp_path / name), cache_dir=str(tmp_path / "cache")
            )(x)
        close(found, model(x).detach())
        report = report_of(tmp_path / name)
        assert (report["cache_hit"], report["prepared"]) == (hit, 4)
        with torch.no_grad():
            model[0].weight.add_(0.5)


@pytest.mark.parametrize(
    "options", [{}, {"executor": "python"}, {"wrapper": "cpp"}, {"check_nan": "kernels"}]
)
def test_packed_weights_are_those_of_the_present_parameters(
    strictly: Compile, tmp_path: Path, options: dict[str, str]
) -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.GELU(), nn.Linear(8, 4, bias=False)).eval()
    x = torch.randn(5, 12)
    with torch.no_grad():
        compiled = strictly(model, freezing=True, trace=str(tmp_path), cache=False, **options)
        for _ in range(2):
            close(compiled(x), model(x))
        model[0].weight.mul_(2)
        close(compiled(x), model(x))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as watched:
            compiled(x)
    # the program runs, and not the captured operators one by one
    assert not [event.key for event in watched.key_averages() if event.key in ("aten::erf", "aten::gelu")]
    report = report_of(tmp_path)
    assert (
        report["prepared"] == (2 if torch.float32 in list_packed_types() else 0)
        and not report["python_calls"]
    )


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_exact_numerics_keep_the_products(strictly: Compile, tmp_path: Path, numerics: str) -> None:
    model, x = nn.Linear(12, 8), torch.randn(5, 12)
    with torch.no_grad():
        found = strictly(model, freezing=True, numerics=numerics, trace=str(tmp_path), cache=False)(x)
    close(found, model(x).detach())
    assert report_of(tmp_path)["prepared"] == 0
