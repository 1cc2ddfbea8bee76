"""Reductions and scans that a GPU does in pieces, from torch.compile to kernels in Triton's interpreter:
about a minute and a half.
"""

from __future__ import annotations

import pytest

from integration_tests.interpreted_reductions import APART, CASES, SCANNED, SEQUENTIAL, SHARED
from integration_tests.interpreting import answers_of

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    folder = tmp_path_factory.mktemp("split")
    return answers_of("integration_tests.interpreted_reductions", folder)


@pytest.mark.parametrize("name", [*CASES, *SCANNED, *SHARED, *SEQUENTIAL, *APART])
def test_split_reductions_agree(answers: dict[str, str], name: str) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)
