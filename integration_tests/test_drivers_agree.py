"""The comparison of drivers on a small model: every driver gives the native executor's bits, and what differs
is told.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks import drivers_agree
from benchmarks.drivers_agree import DRIVERS, OPTIONS, compare_drivers, find_difference, format_findings
from benchmarks.models import ModelCase, Setting, Size

SETTING = Setting(size=Size.SMALL, device=torch.device("cpu"), dtype=torch.float32)


def small_model() -> ModelCase:
    """A model with random numbers, statistics that a step updates, and a normalisation."""
    return ModelCase(
        name="small",
        build=lambda size: nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.25), nn.LayerNorm(8)
        ),
        inputs=lambda setting, generator: (torch.randn(5, 6, generator=generator),),
        loss=lambda output, inputs: output.square().sum(),
        dynamic_dims=((0, 0),),
    )


@pytest.mark.parametrize(("mode", "dynamic"), [("infer", False), ("train", True)], ids=["package", "open"])
def test_all_drivers_give_the_same_bits(mode: str, dynamic: bool) -> None:
    found = list(compare_drivers(small_model(), SETTING, mode, DRIVERS, dynamic=dynamic))
    expected = DRIVERS if mode == "infer" else tuple(OPTIONS)
    assert [(finding.driver, finding.verdict) for finding in found] == [(driver, "") for driver in expected]


def test_a_driver_that_differs_or_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {
        **OPTIONS,
        "python": {"wrapper": "python", "fallback": ("aten.gelu",)},
        "fx": {"wrapper": "nope"},
    }
    monkeypatch.setattr(drivers_agree, "OPTIONS", other)
    _, python, fx = compare_drivers(small_model(), SETTING, "infer", ("python", "fx"))
    assert python.verdict.startswith("value 0 differs by up to") and "nope" in fx.verdict
    assert "python differs" in format_findings([python]) and fx.verdict in format_findings([fx])


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        (torch.tensor([0.0, float("nan")]), ""),
        (torch.tensor([-0.0, float("nan")]), "value 0 differs"),
        (torch.tensor([0.0, 1.0]), "value 0 differs"),
        (torch.zeros(2, dtype=torch.float64), "laid out as"),
        (torch.zeros(4)[::2], "laid out as"),
    ],
    ids=["same", "sign of zero", "number", "type", "strides"],
)
def test_differences_to_the_bit(ours: Tensor, words: str) -> None:
    found = find_difference((ours,), (torch.tensor([0.0, float("nan")]),))
    assert found.startswith(words) if words.startswith("value") else words in found
    assert bool(found) == bool(words)
    assert find_difference((), (ours,)) == "0 values in place of 1"
