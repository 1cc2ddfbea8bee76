"""The gradient of attention whose warps have roles is what the kernel means, in Triton's interpreter."""

from __future__ import annotations

import pytest

from integration_tests.interpreting import answers_of
from integration_tests.specialised_gradient import CASES

pytest.importorskip("triton", reason="compiles Triton kernels")
pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return answers_of("integration_tests.specialised_gradient", tmp_path_factory.mktemp("roles"))


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_what_the_kernel_means(faults: dict[str, str], name: str) -> None:
    assert not faults[name]
