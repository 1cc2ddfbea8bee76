"""The README's example runs and prints what the README says."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
from pathlib import Path

import pytest

from coilwork_ir.errors import VerifyError
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.loops.verify import verify_graph


def readme() -> str:
    """The README beside the tests, or the installed package's long description."""
    beside = Path(__file__).parent.parent / "README.md"
    if beside.exists():
        return beside.read_text()
    return importlib.metadata.metadata("coilwork-ir")["Description"]


def example() -> str:
    code: str
    (code,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    return code


def test_the_example_runs() -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(example(), "README.md", "exec"), {})
    promised = re.search(r"prints `(.*?)`", readme())
    assert promised is not None
    assert out.getvalue().strip() == promised[1]


def test_the_shown_error_is_the_error() -> None:
    (graph,) = re.findall(r'text = """\\\n(.*?)"""', example(), re.DOTALL)
    with pytest.raises(VerifyError) as caught:
        verify_graph(parse_graph(graph.replace("input %x: f32", "input %x: bf16")))
    assert str(caught.value) in readme()
