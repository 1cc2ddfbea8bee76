"""Random numbers in generated C++ and in generated Triton, and eager's own: see `interpreted_random` for what
is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from integration_tests.interpreted_random import CHECKS
from integration_tests.interpreting import answers_of


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("COILWORK_CACHE_DIR", str(tmp_path))
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", CHECKS)
def test_cpp_random_numbers(name: str) -> None:
    CHECKS[name]()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return answers_of("integration_tests.interpreted_random", tmp_path_factory.mktemp("random"))


@pytest.mark.interpreter
@pytest.mark.parametrize("name", CHECKS)
def test_triton_random_numbers(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""
