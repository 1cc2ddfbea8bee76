"""The packages hold no code that nobody uses, and what finds it finds what is planted."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("vulture", reason="the sessions `integration` and `lint` install it")

import dead_code

SOURCE = '''"""A module."""


def used() -> int:
    return 1


def unused() -> int:
    return used()


class Kept:
    def __len__(self) -> int:
        return 0

    def forgotten(self) -> int:
        return len(Kept())
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    module = tmp_path / "packages" / "coilwork-one" / "src" / "coilwork_one" / "a.py"
    module.parent.mkdir(parents=True)
    module.write_text(SOURCE)
    test = tmp_path / "packages" / "coilwork-one" / "tests" / "test_a.py"
    test.parent.mkdir()
    test.write_text("from coilwork_one.a import Kept, unused\n\nassert unused() and Kept().forgotten()\n")
    return tmp_path


def test_the_packages_have_no_dead_code() -> None:
    allowed = dead_code.read_allowed(dead_code.ROOT / "devtools" / "dead_code.toml")
    assert dead_code.judge(dead_code.list_unused(dead_code.ROOT), allowed) == []


def test_code_that_only_tests_use_is_found(tree: Path) -> None:
    assert [(one.name, one.line) for one in dead_code.list_unused(tree)] == [("unused", 8), ("forgotten", 16)]


def test_a_use_by_a_benchmark_counts(tree: Path) -> None:
    (tree / "benchmarks").mkdir()
    (tree / "benchmarks" / "b.py").write_text("from coilwork_one.a import unused\n\nunused()\n")
    assert [one.name for one in dead_code.list_unused(tree)] == ["forgotten"]


def test_an_exception_must_be_needed(tree: Path) -> None:
    found = dead_code.list_unused(tree)
    assert dead_code.judge(found, {"unused": "", "forgotten": ""}) == []
    wrong = dead_code.judge(found, {"unused": "", "gone": ""})
    assert ["forgotten" in wrong[0], "'gone' needs no row" in wrong[1]] == [True, True]
