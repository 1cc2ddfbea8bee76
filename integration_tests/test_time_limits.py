"""A test that never ends is a failure with a name: where a signal reaches it, in native code, and in a worker
of pytest-xdist.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_sessions

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import collections, itertools, time

def test_that_sleeps():
    time.sleep(600)

def test_behind_it():
    pass

def test_in_native_code():
    collections.deque(itertools.repeat(0), maxlen=0)
"""


def run_tests(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest with this repository's settings, but with a limit of a second, on `TESTS` in `folder`."""
    file = folder / "test_without_end.py"
    file.write_text(TESTS)
    settings = ("-c", str(ROOT / "pyproject.toml"), "-p", "conftest", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *settings, "-q", "--timeout=1", *arguments, str(file)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_timed_out_test_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    done = run_tests(tmp_path, "-k", "not native")
    assert done.returncode == 1
    assert "::test_that_sleeps - Failed: Timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_native_code_ends_the_process_and_the_summary_names_the_test(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    done = run_tests(tmp_path, "-k", "native", f"--junitxml={report}")
    assert done.returncode != 0 and not report.exists()
    outcome = run_sessions.outcome_of(
        "package(some)", done.returncode, 2.0, report, done.stdout + done.stderr
    )
    assert outcome.failed == 1
    assert "test_without_end.py: test_in_native_code" in run_sessions.row(outcome)


def test_a_worker_that_dies_fails_its_test_by_name(tmp_path: Path) -> None:
    pytest.importorskip("xdist", reason="runs tests in several processes")
    done = run_tests(tmp_path, "-n", "1")
    assert done.returncode == 1
    assert "::test_that_sleeps - Failed: Timeout" in done.stdout
    assert "crashed while running" in done.stdout and "::test_in_native_code" in done.stdout
    assert "2 failed, 1 passed" in done.stdout
