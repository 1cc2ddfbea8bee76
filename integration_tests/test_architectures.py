"""A few architectures of transformers, small, in training and evaluation, through generated code beside
eager.

All of them: `nox -s architectures`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from integration_tests.architectures.database import configuration, sample
from integration_tests.architectures.shrinking import VOCABULARY
from integration_tests.architectures.sweep import check_architecture


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["convbert", "mamba", "qwen2", "resnet"])
def test_architecture_agrees_with_eager(name: str) -> None:
    assert [one for one in check_architecture(name) if one["status"] != "ok"] == []


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
