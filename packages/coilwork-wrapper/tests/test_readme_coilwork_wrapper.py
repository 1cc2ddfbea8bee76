"""The README's example emits what the README shows."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import re
from pathlib import Path


def readme() -> str:
    """The README beside the tests, or the installed package's long description."""
    beside = Path(__file__).parent.parent / "README.md"
    if beside.exists():
        return beside.read_text(encoding="utf-8")
    return importlib.metadata.metadata("coilwork-wrapper")["Description"]


def test_the_example_emits_what_is_shown() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme(), re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", readme(), re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert shown in out.getvalue()
