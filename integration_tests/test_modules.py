"""Every module of torch's database, once in training and once in evaluation, through generated code beside
eager.

All samples of all modules: `nox -s modules`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from integration_tests.modules.checks import check
from integration_tests.modules.database import modules, samples
from integration_tests.modules.sweep import spread

DATABASE = modules()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", sorted(DATABASE))
def test_module_agrees_with_eager(name: str, request: pytest.FixtureRequest) -> None:
    """Another sample for each module, so that all kinds of arguments come up somewhere."""
    chosen = []
    for training in (True, False):
        made = samples(name, DATABASE[name], training=training)
        chosen.append(made[(len(name) + training) % len(made)])
    assert [one for one in check(chosen) if not one.good] == []


def test_wrong_modules_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_a_little(gm: torch.fx.GraphModule, inputs: Any, **keywords: Any) -> Any:
        return lambda *arguments: [value * 1.01 for value in gm(*arguments)]

    (sample, *_) = samples("nn.Softplus", DATABASE["nn.Softplus"], training=False)
    (outcome,) = check([sample], backend=off_by_a_little)
    assert outcome.status == "wrong" and "nn.Softplus" in outcome.sample


def test_samples_are_spread_evenly() -> None:
    assert spread(3, 10) == [0, 1, 2]
    assert spread(100, 3) == [0, 50, 99]
