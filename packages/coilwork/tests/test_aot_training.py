"""Steps of training in packages: results, gradients by name, and buffers, as in eager mode."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import coilwork
from coilwork_aot import read_manifest
from coilwork_aot.exporting import Entry
from coilwork_frontend.errors import ExportError


class Network(torch.nn.Module):
    """Buffers that are written, parameters that are frozen or unused, and results beside the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)
        self.norm = torch.nn.BatchNorm1d(16)
        self.second.bias.requires_grad_(False)
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, y: Tensor, scale: float) -> dict[str, Any]:
        found = self.second(torch.relu(self.norm(self.first(x)))) * scale
        with torch.no_grad():
            error = (found - y).abs().max()
        return {
            "found": found,
            "error": error,
            "scale": scale,
            "loss": torch.nn.functional.mse_loss(found, y),
        }


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluation"])
def test_a_step_gives_results_gradients_and_buffers_of_any_batch(mode: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Network().train(mode)
    x, y, rows = (
        torch.randn(5, 8, requires_grad=True),
        torch.randn(5, 4),
        torch.export.Dim("b", min=2, max=64),
    )
    coilwork.export(
        {
            "step": Entry(model=model, args=(x, y, 2.0), dynamic_shapes=({0: rows}, {0: rows}, None), loss=3),
            "predict": Entry(model=model.second, args=(torch.randn(2, 16),)),
        },
        path=tmp_path / "step.cw",
    )
    loaded, eager = coilwork.load(tmp_path / "step.cw"), copy.deepcopy(model)
    for count in (5, 3):
        part = x.detach()[:count].requires_grad_()
        eager.zero_grad()
        wanted = eager(part, y[:count], 2.0)
        wanted["loss"].backward()
        results, gradients = loaded.entry("step")(part.detach(), y[:count], 2.0)
        assert results["scale"] == 2.0 and not results["loss"].requires_grad
        for name in ("found", "error", "loss"):
            torch.testing.assert_close(results[name], wanted[name].detach())
        named = {name: one.grad for name, one in eager.named_parameters() if one.grad is not None}
        assert list(gradients) == [*named, "x"]
        for name, one in {**named, "x": part.grad}.items():
            torch.testing.assert_close(gradients[name], one, rtol=1e-4, atol=1e-5)
        for (name, one), (_, other) in zip(loaded.named_buffers(), eager.named_buffers(), strict=True):
            torch.testing.assert_close(one, other, msg=name)
    # what a step of an optimizer changes, the other entry point sees
    with torch.no_grad():
        dict(loaded.named_parameters())["second.weight"].sub_(gradients["second.weight"])
        eager.second.weight.sub_(gradients["second.weight"])
    hidden = torch.randn(2, 16)
    torch.testing.assert_close(loaded.entry("predict")(hidden), eager.second(hidden).detach())


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (0, "scalar outputs"),
        (1, "no gradient|not require grad"),
        (2, "the same in every call"),
        (9, "4 results"),
    ],
)
def test_a_result_without_gradient_is_refused(loss: int, reason: str, tmp_path: Path) -> None:
    x, y = torch.randn(5, 8), torch.randn(5, 4)
    with pytest.raises(ExportError, match=rf"no-gradient(.|\n)*({reason})"):
        coilwork.export(Network(), (x, y, 2.0), path=tmp_path / "step.cw", loss=loss)


def test_steps_are_compiled_for_devices_that_are_not_here(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="compiles kernels")

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x * self.weight).sum()

    coilwork.export(Loss(), (torch.randn(3, 4),), path=tmp_path / "step.cw", loss=0, target="sm_90")
    (variant,) = read_manifest(tmp_path / "step.cw").entries["forward"]
    assert variant.target.name == "sm_90" and len(variant.results) == 2
