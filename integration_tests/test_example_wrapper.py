"""A wrapper of somebody else's is built, installed beside ours, and chosen by its name; nothing of ours
knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import coilwork
from coilwork.errors import OptionError
from integration_tests.consumers.test_consumers import check_output

HERE = Path(__file__).parent / "consumers" / "example_wrapper"


def test_an_installed_wrapper_is_chosen_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="wrapper cannot be 'plan'"):
        coilwork.compile(abs, wrapper="plan")
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    site, wheels = tmp_path / "site", tmp_path / "wheels"
    run(*pip, "wheel", "--no-deps", "-w", str(wheels), str(HERE / "wrapper"))
    run(*pip, "install", "--no-deps", "--no-compile", "--target", str(site), *map(str, wheels.glob("*.whl")))

    paths = os.pathsep.join([str(site), *(path for path in sys.path if path)])
    output = run(sys.executable, str(HERE / "use_plan.py"), PYTHONPATH=paths, COILWORK_CACHE="0")
    check_output(output, (HERE / "expected.txt").read_text().splitlines())


def run(*command: str, **environment: str) -> str:
    """What the command prints; its errors are the test's."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
