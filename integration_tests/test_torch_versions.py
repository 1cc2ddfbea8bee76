"""What became of test files with each torch (`devtools/torch_versions.py`): counts, names, and the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch_versions
from torch_versions import FileRun, format_page, list_files, read_runs, run_files, run_together

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


@pytest.fixture(scope="module", autouse=True)
def without_plugins() -> Iterator[None]:
    """Plugins take most of the time of such small runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        yield


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> FileRun:
    path = tmp_path_factory.mktemp("packages") / "test_mixed.py"
    path.write_text(FOUR_TESTS)
    other = path.with_name("test_other.py")
    other.write_text("def test_other(): pass\n")
    mixed, single = run_together([path, other])
    assert (single.passed, single.failed) == (1, 0)
    return mixed


def test_each_outcome_is_counted(mixed: FileRun) -> None:
    assert (mixed.passed, mixed.failed, mixed.skipped) == (1, 2, 1)
    assert set(mixed.failures) == {"test_that_fails", "test_in_error"}
    assert list(mixed.reasons.values()) == [1]


def test_a_process_that_ends_early_is_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "test_crash.py"
    path.write_text("import os\n\ndef test_crash(): os._exit(3)\n")
    other = tmp_path / "test_other.py"
    other.write_text("def test_other(): pass\n")
    crashed, passed = run_together([path, other])
    assert (crashed.passed, crashed.failures) == (0, ("exit 3",))
    assert (passed.passed, passed.failures) == (1, ())


def test_what_has_passed_is_not_run_again(
    mixed: FileRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path("integration_tests/test_torch_versions.py")
    passed = replace(mixed, file=file.as_posix(), digest=torch_versions.digest_of(file), failed=0)
    ran: list[Path] = []
    outcomes = iter((replace(passed, failed=1), passed))

    def run(files: list[Path]) -> list[FileRun]:
        ran.extend(files)
        return [next(outcomes)]

    monkeypatch.setattr(torch_versions, "run_together", run)
    results = tmp_path / "lines.jsonl"
    assert run_files([file], results) == 1
    assert run_files([file], results) == 0 and run_files([file], results) == 0
    assert len(ran) == 2 and read_runs(results) == [passed]


def test_the_page_has_a_column_for_each_torch(mixed: FileRun) -> None:
    older = replace(
        mixed, python="3.11.7", torch="2.9.1", file="packages/coilwork-ir/tests/test_a.py", reasons={}
    )
    newer = replace(older, torch="2.11.0", file="integration_tests/test_b.py", reasons=mixed.reasons)
    page = format_page([newer, older])
    assert "| tests of | torch 2.9.1, Python 3.11 | torch 2.11.0, Python 3.11 |" in page
    files = len(list_files(["coilwork-ir"]))
    assert f"| coilwork-ir | 1 / 2 / 1 in 1 of {files} files | not run |" in page
    assert "| integration_tests | not run | 1 / 2 / 1 in 1 of " in page
    assert "`integration_tests/test_b.py` | 1: torch 2.11 has none |" in page


def test_packages_and_files_are_named() -> None:
    files = list_files(["coilwork-frontend", "integration_tests/test_torch_versions.py"])
    assert Path("packages/coilwork-frontend/tests/test_torch_compat.py") in files
    assert files[-1] == Path("integration_tests/test_torch_versions.py")
    with pytest.raises(SystemExit, match="no-such"):
        list_files(["no-such"])
