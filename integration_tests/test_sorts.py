"""Sorts that a GPU does in kernels, from torch.compile to kernels in Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration_tests.interpreted_sorts import CASES

pytestmark = [pytest.mark.interpreter, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What is wrong with each case; one process for all, for Triton decides when it is imported whether it interprets."""
    pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("sorts")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COILWORK_")}
    environment |= {
        "TRITON_INTERPRET": "1",
        "COILWORK_TRITON_ON_CPU": "1",
        "COILWORK_SORTING": "kernels",
        "COILWORK_VERIFY": "1",
        "COILWORK_STRICT": "1",
        "COILWORK_CACHE": "0",
        "COILWORK_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    command = [sys.executable, "-m", "integration_tests.interpreted_sorts", str(folder)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", CASES)
def test_kernels_give_what_eager_gives(answers: dict[str, str], name: str) -> None:
    if answers[name]:
        pytest.fail(answers[name], pytrace=False)
