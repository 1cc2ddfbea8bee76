"""A template in one file, from torch.compile to its kernels in Triton's interpreter, and in C++."""

from __future__ import annotations

import pytest

from integration_tests.interpreted_template import CASES
from integration_tests.interpreting import answers_of

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("language", ["triton", "cpp"])
def test_a_product_template_is_chosen_and_agrees(
    language: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    interpreted = "1" if language == "triton" else "0"
    folder = tmp_path_factory.mktemp("template")
    answers = answers_of("integration_tests.interpreted_template", folder, COILWORK_TRITON_ON_CPU=interpreted)
    assert answers == dict.fromkeys(CASES, "")
