"""The README's first example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_first_example(capsys: pytest.CaptureFixture[str]) -> None:
    readme = Path(__file__).parent.parent / "README.md"
    if not readme.exists():
        pytest.skip("the tests were copied without the README")
    example = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out == "tensor([2., 2., 2., 2.])\n"
