"""The page about operators in models: what it counts, and how it is written."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models import ModelCase, Setting, Size
from benchmarks.models.case import normal
from integration_tests.operators.in_models import Use, compiled_models, packet, page, uses


def build(size: Size) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 4))


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    return (normal((5, 8), setting, generator),)


def loss(output: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    return output.square().mean()


def test_calls_of_a_forward() -> None:
    found = uses(compiled_models(ModelCase(name="small", build=build, inputs=inputs)))
    assert found["aten.addmm"] == Use(nodes=2, calls=2)
    assert found["aten.sigmoid"].kind == "generated"
    assert not any("backward" in name for name in found)


def test_calls_of_a_training_step() -> None:
    found = uses(compiled_models(ModelCase(name="small", build=build, inputs=inputs, loss=loss)))
    # the forward twice, once for training
    assert found["aten.addmm"] == Use(nodes=4, calls=4)
    assert found["aten.mm"].kind == "ATen"
    # the optimizer's
    assert found["aten.lerp"].kind == "generated"


def test_a_use_is_generated_mixed_or_atens() -> None:
    assert [Use(nodes=3, calls=calls).kind for calls in (0, 1, 3)] == ["generated", "mixed", "ATen"]
    assert packet("aten.add.Tensor") == "aten.add"


def test_the_page_counts_operators_of_models() -> None:
    text = page(
        {
            "one": {"aten.mm": Use(nodes=2, calls=2), "aten.add": Use(nodes=3, calls=0)},
            "two": {"aten.mm": Use(nodes=1, calls=0)},
        }
    )
    assert "**1 of 2 operators (50.0 %)" in text
    told = " ".join(text.split())
    assert "1 in some places, 0 are always ATen's; of the 6 calls in all graphs, 2 go to ATen" in told
    assert "| `aten.mm` | 3 | 2 | one, two |" in text
    assert "| two | 1 | 1 | 100.0 % |" in text
    assert text.endswith("## Generated\n\n`aten.add`\n")
