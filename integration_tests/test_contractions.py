"""Matrix products in generated kernels, from torch.compile to kernels in Triton's interpreter, and to C++."""

from __future__ import annotations

import pytest

from integration_tests.interpreted_contractions import CASES
from integration_tests.interpreting import answers_of

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]


@pytest.fixture(scope="module", params=["triton", "cpp"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    folder = tmp_path_factory.mktemp("contractions")
    interpreted = "1" if request.param == "triton" else "0"
    module = "integration_tests.interpreted_contractions"
    return answers_of(module, folder, COILWORK_TRITON_ON_CPU=interpreted)


@pytest.mark.parametrize("name", CASES)
def test_products_agree_with_eager(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == ""
