"""The tutorial of docs/index.md: its programs run, and what it shows of their traces is in the traces."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "index.md").read_text()
FIRST, TRAIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def run(folder: Path, file: str, **variables: str) -> str:
    environment = os.environ | {"COILWORK_CACHE_DIR": str(folder / "cache")} | variables
    ran = subprocess.run(
        [sys.executable, file], cwd=folder, env=environment, capture_output=True, text=True, timeout=540
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def promise(command: str) -> str:
    """What the page says that `command` prints."""
    (printed,) = re.findall(rf"^\$ {re.escape(command)}\n(.*?)(?=^\$ |^```)", PAGE, re.DOTALL | re.MULTILINE)
    return printed


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which `first.py` left its trace."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "first.py").write_text(FIRST)
    assert run(folder, "first.py") == promise("python3 first.py")
    command = "COILWORK_TRACE=trace COILWORK_CACHE=0 python3 first.py"
    assert run(folder, "first.py", COILWORK_TRACE="trace", COILWORK_CACHE="0") == promise(command)
    return folder


def read_trace(folder: Path, pattern: str) -> str:
    """The one text of the trace that `pattern` names, without the source lines of its nodes."""
    (path,) = folder.glob(f"trace/inference_*/{pattern}")
    return re.sub(r'( loc\((?:"(?:[^"\\]|\\.)*"|[^")])*\))+', "", path.read_text())


def test_a_trace_has_the_files_of_the_tutorial(first: Path) -> None:
    (graph,) = first.glob("trace/inference_*")
    shown = promise("ls trace/inference_43aff6a98b").replace("inference_43aff6a98b", graph.name)
    assert sorted(path.name for path in graph.iterdir()) == sorted(shown.split())


def test_the_loops_of_the_tutorial_are_in_the_trace(first: Path) -> None:
    loops = read_trace(first, "*.loops.txt")
    one, other = re.split(r"(?<=\n  }\n)(?=  %)", SHOWN[0])
    assert one in loops
    assert other in loops


def test_the_decisions_of_the_tutorial_are_those_of_the_trace(first: Path) -> None:
    table = read_trace(first, "*.decisions.txt").splitlines()
    width = table[0].index("numbers")
    assert [line[:width].rstrip() for line in table] == SHOWN[1].splitlines()


def test_the_kernel_of_the_tutorial_is_that_of_the_trace(first: Path) -> None:
    assert read_trace(first, "kernels/*.kernel.txt").strip() == SHOWN[2].strip()


def test_the_module_of_the_trace_runs_alone(first: Path) -> None:
    (module,) = first.glob("trace/inference_*/module.py")
    printed = run(first, str(module)).splitlines()
    promised = promise("python3 trace/inference_43aff6a98b/module.py").splitlines()
    assert [line[:55] for line in printed] == [line[:55] for line in promised]


def test_training_leaves_a_trace_of_both_graphs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    run(tmp_path, "train.py")
    assert sorted(path.name.partition("_")[0] for path in (tmp_path / "training").iterdir()) == [
        "backward",
        "forward",
    ]
