"""Each folder beside this file is a small project that uses some of our packages; here each gets what it
names, and runs.

A consumer is a folder with:

- `requirements.txt`: what it installs, and nothing else is installed;
- `main.py`: the program; runs in a copy of the folder outside the repository;
- `expected.txt`: what it prints; `*` stands for any text within a line, a line `...` for any number of lines;
- `installed.txt`: the distributions of ours that may be in the environment afterwards, one a line. `no
  torch` on a line of its own says that torch must not be there;
- `prepare.py`, if it needs something made beforehand: runs in the full stack's environment and writes into
  the copy.

A folder without `requirements.txt` is a package of somebody else's that is installed beside ours: a test of
its own builds its wheel (`integration_tests/test_example_wrapper.py`, `test_example_emitter.py`).

`nox -s consumers` builds the wheels and names their folder in NOX_WHEELHOUSE. Where NOX_LIBRARIES names a
folder with torch and Triton in it, those that a consumer's packages declare are linked from there, and pip
finds them installed. NOX_DECLARED says in JSON which those are, by consumer.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from linked_libraries import link_distributions

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FULL_STACK = "full_stack"
INSTALL_LIMIT_S = 600
RUN_LIMIT_S = 300

CONSUMERS = tuple(sorted(path.parent.name for path in HERE.glob("*/main.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A clean virtual environment with one consumer's requirements."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def run(self, *arguments: str, cwd: Path) -> str:
        """Standard output of a command of this environment's Python; fails the test with all output if it
        fails."""
        return checked_output([str(self.python), *arguments], cwd=cwd, limit_s=RUN_LIMIT_S)

    def pip(self, *arguments: str) -> str:
        """Standard output of a command of this process's pip, for this environment, which has none."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        return checked_output([*command, *arguments], cwd=self.folder, limit_s=INSTALL_LIMIT_S)

    def distributions(self) -> set[str]:
        listing = self.pip("list", "--format=json")
        return {entry["name"].lower().replace("_", "-") for entry in json.loads(listing)}


def checked_output(command: Sequence[str], *, cwd: Path, limit_s: float) -> str:
    """Standard output of a command; fails the test with all output if it fails."""
    settings = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COILWORK_"))
    }
    done = subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@pytest.fixture(scope="session")
def constraints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """pip options: our packages from the wheels' folder, in its versions; the rest as the repository pins
    it."""
    wheelhouse = os.environ.get("NOX_WHEELHOUSE")
    if not wheelhouse:
        pytest.skip("needs a folder of wheels in NOX_WHEELHOUSE; `nox -s consumers` makes one")
    folder = Path(wheelhouse).resolve()
    wheels = [wheel.name.split("-") for wheel in sorted(folder.glob("coilwork*.whl"))]
    assert len(wheels) == len([*ROOT.glob("packages/*/pyproject.toml")]), wheels
    path = tmp_path_factory.mktemp("constraints") / "wheels.txt"
    lines = (f"{name.replace('_', '-')}=={version}\n" for name, version, *_ in wheels)
    path.write_text("".join(lines))
    return ("--find-links", str(folder), "-c", str(path), "-c", str(ROOT / "constraints.txt"))


def make_environment(folder: Path, name: str, constraints: Sequence[str]) -> Environment:
    command = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, timeout=INSTALL_LIMIT_S)
    environment = Environment(folder=folder)
    link_libraries(environment, name)
    requirements = HERE / name / "requirements.txt"
    # bytecode is made of what is imported, when it is: pip would compile all of torch
    environment.pip("install", "-q", "--no-compile", "-r", str(requirements), *constraints)
    return environment


def link_libraries(environment: Environment, name: str) -> None:
    """Link what NOX_DECLARED names for a consumer, where NOX_LIBRARIES has it."""
    shared, declared = os.environ.get("NOX_LIBRARIES"), json.loads(os.environ.get("NOX_DECLARED", "{}"))
    if shared and declared.get(name):
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = environment.run("-c", ask, cwd=environment.folder).strip()
        link_distributions(Path(shared), Path(site), declared[name])


@pytest.fixture(scope="session")
def full_stack(
    tmp_path_factory: pytest.TempPathFactory, constraints: tuple[str, ...]
) -> Iterator[Environment]:
    """The environment in which the others' `prepare.py` run."""
    folder = tmp_path_factory.mktemp("full_stack") / "venv"
    yield make_environment(folder, FULL_STACK, constraints)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(2 * (INSTALL_LIMIT_S + RUN_LIMIT_S))
@pytest.mark.parametrize("name", CONSUMERS)
def test_consumer(
    name: str, constraints: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    project = tmp_path / "project"
    shutil.copytree(HERE / name, project)
    if (project / "prepare.py").exists():
        maker: Environment = request.getfixturevalue("full_stack")
        maker.run("prepare.py", cwd=project)
    if name == FULL_STACK:
        environment: Environment = request.getfixturevalue("full_stack")
    else:
        environment = make_environment(tmp_path / "venv", name, constraints)
    check_installed(environment.distributions(), (project / "installed.txt").read_text().splitlines())
    output = environment.run("main.py", cwd=project)
    check_output(output, (project / "expected.txt").read_text().splitlines())
    shutil.rmtree(tmp_path / "venv", ignore_errors=True)  # torch is large


def check_installed(distributions: set[str], allowed: Sequence[str]) -> None:
    ours = {name for name in distributions if name == "coilwork" or name.startswith("coilwork-")}
    assert ours == {line for line in allowed if line.startswith("coilwork")}
    if "no torch" in allowed:
        assert not distributions & {"torch", "triton", "sympy", "numpy"}


def check_output(output: str, expected: Sequence[str]) -> None:
    """The whole output, but for what `*` and `...` stand for."""
    pattern = "".join("(.*\n)*?" if line == "..." else escaped(line) + "\n" for line in expected)
    assert re.fullmatch(pattern, output), f"expected:\n{chr(10).join(expected)}\noutput:\n{output}"


def escaped(line: str) -> str:
    """Only `*` is special within a line of expected.txt; brackets are common in IR text."""
    return re.escape(line).replace(r"\*", ".*")


def test_expected_output_is_compared_whole() -> None:
    check_output("a [1]\nmore\nb 2\n", ["a [1]", "...", "b *"])
    for wrong in ("b 2\na [1]\n", "a [1]\nb 2\nc\n", "a 1\nb 2\n"):
        with pytest.raises(AssertionError, match="expected"):
            check_output(wrong, ["a [1]", "...", "b *"])


def test_every_named_consumer_is_there() -> None:
    assert set(CONSUMERS) == {path.name for path in HERE.iterdir() if (path / "requirements.txt").exists()}
