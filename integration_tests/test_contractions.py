"""Matrix products in generated kernels, from torch.compile to kernels in Triton's interpreter."""

from __future__ import annotations

import pytest

from integration_tests.interpreted_contractions import CASES
from integration_tests.interpreting import answers_of

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case."""
    pytest.importorskip("triton")
    return answers_of("integration_tests.interpreted_contractions", tmp_path_factory.mktemp("contractions"))


@pytest.mark.parametrize("name", CASES)
def test_products(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""
