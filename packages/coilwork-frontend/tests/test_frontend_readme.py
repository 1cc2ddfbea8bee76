"""The program in the package's README runs, with this package and what it declares alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_readmes_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    assert "aten.relu" in said and said.endswith("True\n")
