"""Sorts that a GPU does in kernels, from torch.compile to kernels in Triton's interpreter."""

from __future__ import annotations

import pytest

from integration_tests.interpreted_sorts import CASES
from integration_tests.interpreting import answers_of

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("sorts")
    return answers_of("integration_tests.interpreted_sorts", folder, COILWORK_SORTING="kernels")


@pytest.mark.parametrize("name", CASES)
def test_triton_sorts_agree(answers: dict[str, str], name: str) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)
