"""What became of test files with each torch (`devtools/torch_versions.py`): counts, names, and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch_versions
from torch_versions import FileRun, format_page, list_files, read_runs, run_file, run_files

FOUR_TESTS = """
import pytest

def test_that_passes(): pass

def test_that_fails(): assert 1 == 2

@pytest.mark.skip(reason="torch 2.11 has none")
def test_of_a_later_torch(): pass

@pytest.fixture
def broken(): raise ValueError

def test_in_error(broken): pass
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> FileRun:
    path = tmp_path_factory.mktemp("packages") / "test_mixed.py"
    path.write_text(FOUR_TESTS)
    return run_file(path)


def test_each_outcome_is_counted(mixed: FileRun) -> None:
    assert (mixed.passed, mixed.failed, mixed.skipped) == (1, 2, 1)
    assert set(mixed.failures) == {"test_that_fails", "test_in_error"}
    assert list(mixed.reasons.values()) == [1]


def test_a_process_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "test_crash.py"
    path.write_text("import os\n\ndef test_crash(): os._exit(3)\n")
    run = run_file(path)
    assert (run.passed, run.failures) == (0, ("exit 3",))


def test_what_has_passed_is_not_run_again(
    mixed: FileRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("integration_tests/test_torch_versions.py")
    passed = replace(mixed, file=file.as_posix(), digest=torch_versions.digest_of(file), failed=0)
    ran: list[Path] = []
    outcomes = iter((replace(passed, failed=1), passed))

    def run(path: Path) -> FileRun:
        ran.append(path)
        return next(outcomes)

    monkeypatch.setattr(torch_versions, "run_file", run)
    results = tmp_path / "lines.jsonl"
    assert run_files([file], results) == 1
    assert run_files([file], results) == 0 and run_files([file], results) == 0
    assert len(ran) == 2 and read_runs(results) == [passed]


def test_the_page_has_a_column_for_each_torch(mixed: FileRun) -> None:
    older = replace(mixed, torch="2.9.1", file="packages/coilwork-ir/tests/test_a.py", reasons={})
    newer = replace(mixed, torch="2.11.0", file="integration_tests/test_b.py")
    page = format_page([newer, older])
    assert "| tests of | torch 2.9.1 | torch 2.11.0 |" in page
    assert "| coilwork-ir | 1 / 2 / 1 in 1 files | not run |" in page
    assert "| integration_tests | not run | 1 / 2 / 1 in 1 files |" in page
    assert "`integration_tests/test_b.py`: torch 2.11 has none (1)" in page


def test_packages_and_files_are_named() -> None:
    files = list_files(["coilwork-frontend", "integration_tests/test_torch_versions.py"])
    assert Path("packages/coilwork-frontend/tests/test_torch_compat.py") in files
    assert files[-1] == Path("integration_tests/test_torch_versions.py")
    with pytest.raises(SystemExit, match="no-such"):
        list_files(["no-such"])
