"""A few architectures of transformers, small, in training and evaluation, through generated code beside
eager.

All of them: `nox -s architectures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from integration_tests.architectures.catalogue import read_catalogue
from integration_tests.architectures.catalogue import sample as catalogue_sample
from integration_tests.architectures.database import configuration, sample
from integration_tests.architectures.modes import ATTENTION, NotOfferedError, mode_sample
from integration_tests.architectures.quantised_layers import SCHEMES
from integration_tests.architectures.shrinking import VOCABULARY
from integration_tests.architectures.sweep import check_architecture
from integration_tests.float64_runs import in_float64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["convbert", "mamba", "qwen2", "resnet"])
def test_architecture_agrees_with_eager(name: str) -> None:
    assert [one for one in check_architecture(name) if one["status"] != "ok"] == []


CATALOGUE = """
from types import SimpleNamespace
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, rows, *, scale):
        hidden = nn.functional.dropout(self.layer(rows), 0.0, self.training)
        return SimpleNamespace(hidden=hidden, parts={"sum": [(hidden * scale).sum(0)]}, name="named")

def entries():
    yield "named", lambda: (Named(), (torch.randn(2, 4),), {"scale": torch.ones(3)})
    yield "broken", lambda: (Named(), (torch.randn(2, 5),), {"scale": torch.ones(3)})
"""


def test_models_of_a_catalogue_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "models_of_a_catalogue.py"
    path.write_text(CATALOGUE)
    makers = read_catalogue(path)
    made = catalogue_sample("named", makers["named"], training=True)
    assert len(made.differentiable) == 2
    assert [value.shape for value in made.module(*made.arguments, **made.keywords)] == [(2, 3), (3,)]
    found = [one for name in makers for one in check_architecture(name, modes=["dynamic"], makers=makers)]
    assert [one["status"] for one in found] == ["ok", "refused"]


def test_nested_configurations_are_reduced() -> None:
    config = configuration("clip")
    for part in (config.text_config, config.vision_config):
        assert (part.hidden_size, part.num_hidden_layers, part.num_attention_heads) == (64, 2, 4)
    assert config.text_config.vocab_size == VOCABULARY and config.vision_config.image_size == 32


def test_samples_are_reproducible() -> None:
    first, second = (sample("bert", training=False) for _ in range(2))
    torch.testing.assert_close(first.keywords, second.keywords, rtol=0, atol=0)
    torch.testing.assert_close(
        first.module(**first.keywords), second.module(**second.keywords), rtol=0, atol=0
    )


def test_decoding_scores_a_text_and_what_follows() -> None:
    made = mode_sample("qwen2", "decoding")
    text, tokens = made.arguments
    scores = made.module(text, tokens)
    with torch.no_grad():
        whole = made.module.inner(input_ids=torch.cat([text, tokens], dim=1)).logits
    torch.testing.assert_close(torch.cat(scores, dim=1), whole)


def test_attention_is_computed_as_a_mode_says() -> None:
    for mode, way in ATTENTION.items():
        assert mode_sample("qwen2", mode).module.model.config._attn_implementation == way
    with pytest.raises(NotOfferedError):
        mode_sample("mamba", "flex_attention")


def test_quantised_models_have_layers_of_every_scheme() -> None:
    made = mode_sample("qwen2", "quantised")
    exact = sample("qwen2", training=False)
    layers = {type(part) for part in made.module.modules()}
    assert layers.issuperset(SCHEMES)
    assert torch.nn.Linear not in layers
    with torch.no_grad():
        scores, reference = (one.module(**one.keywords)[0] for one in (made, exact))
    assert 0 < (scores - reference).abs().max() < 0.2 * reference.abs().max()


def test_a_reference_is_float64_whatever_a_model_names() -> None:
    with in_float64():
        narrow = torch.ones(2).float().to(torch.bfloat16) / 3
    torch.testing.assert_close(narrow, torch.full((2,), 1 / 3, dtype=torch.float64), rtol=1e-15, atol=0)
    assert (torch.ones(2).float() / 3).dtype == torch.float32


def test_what_transformers_cannot_make_is_refused() -> None:
    (outcome,) = check_architecture("deimv2", modes=("training",))
    assert outcome["status"] == "refused" and "cannot be made" in outcome["detail"]
