"""A break of what a package exports is found, and a new minor version allows it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="the session `api` runs this, and installs it")

import api_breaks

INIT = """
from coilwork_x.inner import Value, scale

__version__ = "0.1.0"
__all__ = ["Value", "__version__", "scale"]
"""
INNER = """
class Value:
    def first(self, a: int) -> int:
        return a

def scale(x: int, by: int = 2) -> int:
    return by * x

def helper(x: int) -> int:
    return x
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One package, released."""
    source = tmp_path / "packages" / "coilwork-x" / "src" / "coilwork_x"
    source.mkdir(parents=True)
    (source.parents[1] / "pyproject.toml").write_text("")
    (source / "__init__.py").write_text(INIT)
    (source / "inner.py").write_text(INNER)
    for command in (
        ("init", "-q"),
        ("add", "."),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "release"),
        ("tag", "coilwork-x-v0.1.0"),
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def change(root: Path, file: str, old: str, new: str) -> None:
    path = root / "packages/coilwork-x/src/coilwork_x" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("inner.py", "by: int = 2", "times: int = 2"),
        ("inner.py", "def first(self, a: int)", "def second(self, a: int)"),
        ("inner.py", "def first(self, a: int)", "def first(self, a: int, b: int)"),
        ("__init__.py", '"Value", ', ""),
    ],
)
def test_a_break_fails_unless_the_version_allows_it(
    repository: Path, file: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(repository, file, old, new)
    if file == "__init__.py":
        change(repository, file, "Value, scale\n", "scale\n")
    assert api_breaks.main([], repository) == 1
    assert "1 breaks of coilwork-x-v0.1.0" in capsys.readouterr().out
    change(repository, "__init__.py", "0.1.0", "0.2.0")
    assert api_breaks.main([], repository) == 0


def test_exports_without_a_place_are_compared_by_name(repository: Path) -> None:
    change(repository, "inner.py", "def helper", "one, other = 1, 2\n\ndef helper")
    change(repository, "__init__.py", "import Value,", "import Value, one,")
    change(repository, "__init__.py", '["Value",', '["Value", "one",')
    commit = ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-a", "-m", "next")
    subprocess.run(["git", "-C", str(repository), *commit], check=True)
    subprocess.run(["git", "-C", str(repository), "tag", "-f", "coilwork-x-v0.1.0"], check=True)
    assert api_breaks.main([], repository) == 0
    change(repository, "inner.py", "by: int = 2", "times: int = 2")
    assert api_breaks.main([], repository) == 1


def test_what_is_not_exported_may_change(repository: Path) -> None:
    change(repository, "inner.py", "def helper(x: int)", "def helper(y: int, z: int)")
    change(repository, "inner.py", "by: int = 2)", "by: int = 2, *, more: int = 0)")
    assert api_breaks.main([], repository) == 0
    assert api_breaks.main(["--against", "HEAD"], repository) == 0
