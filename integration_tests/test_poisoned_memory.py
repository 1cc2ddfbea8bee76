"""What lies around tensors, and in lanes that are no points, influences no kernel: C++, and Triton's in its
interpreter.

`poisoned_programs.py` has the programs, and is the process that runs them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from integration_tests.interpreting import answers_of
from integration_tests.poisoned_programs import all_programs

pytestmark = pytest.mark.slow
# Every byte of memory that is handed out or given back is one of these, so that what nobody wrote is no 0.
FILLED = {"MALLOC_PERTURB_": "165"}
NATIVELY = {"TRITON_INTERPRET": "0", "COILWORK_TRITON_ON_CPU": "0"}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What is wrong with each program, run by the named engine."""
    more = FILLED if request.param == "triton" else FILLED | NATIVELY
    return answers_of("integration_tests.poisoned_programs", tmp_path_factory.mktemp(request.param), **more)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("answers", ["triton", "cpp"], indirect=True)
@pytest.mark.parametrize("name", all_programs())
def test_memory_around_tensors_does_not_influence_kernels(answers: Mapping[str, str], name: str) -> None:
    assert not answers[name], answers[name]
