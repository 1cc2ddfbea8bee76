"""Forks that run modules are as processes of their own, and what one of them does is no other's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from integration_tests.interpreting import start_forks

pytestmark = pytest.mark.interpreter


def run_statement(statement: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `statement` by the module `timeit`."""
    pytest.importorskip("triton", reason="compiles Triton kernels")
    words = ("-n", "1", "-r", "1", statement)
    return start_forks().run("timeit", words, variables={**os.environ, **more}, folder=folder)


def test_each_fork_has_its_folder_and_variables(tmp_path: Path) -> None:
    statement = f"import os; assert os.environ.pop('WORD') == 'a' and os.getcwd() == {str(tmp_path)!r}"
    for _ in range(2):
        done = run_statement(statement, tmp_path, WORD="a")
        assert done.returncode == 0, done.stderr
    assert run_statement("import os; os.environ['WORD']", tmp_path).returncode == 1


def test_a_fork_that_fails_or_dies_is_told_of_and_the_next_one_runs(tmp_path: Path) -> None:
    failed = run_statement("1 / 0", tmp_path)
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert run_statement("import os; os.kill(os.getpid(), 9)", tmp_path).returncode == -9
    assert "1 loop" in run_statement("pass", tmp_path).stdout


def test_nothing_was_compiled_before_a_fork(tmp_path: Path) -> None:
    done = run_statement("import torch; assert not torch._dynamo.utils.counters", tmp_path)
    assert done.returncode == 0, done.stderr
