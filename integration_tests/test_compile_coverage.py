"""The command that lists what of a program is not generated code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from coilwork_tools.explain.compile_coverage import Uncompiled
from coilwork_tools.explain.report import CompileReport

PROGRAM = """
import logging, os, sys, warnings
from pathlib import Path

import torch

from coilwork_frontend.errors import CoilworkFallbackWarning
from coilwork_tools.explain.report import CompileReport

folder = Path(os.environ["COILWORK_TRACE"], "g")
folder.mkdir()
driver = {"executor": "python", "executor_reason": "asked for"}
report = CompileReport(graph_id="g", role="inference", kernels=2, **driver)
(folder / "report.json").write_text(report.to_json())


def broken(x):
    y = x.sin()
    torch._dynamo.graph_break("a reason")
    return y.cos()


def sized(x, k):
    return x * k


torch.compile(broken, backend="eager")(torch.ones(2))
sized = torch.compile(sized, backend="eager", dynamic=False)
with torch._dynamo.config.patch(recompile_limit=2):
    for k in range(4):
        sized(torch.ones(2 + k), 1)
warnings.warn("a graph runs in eager mode", CoilworkFallbackWarning)
logging.getLogger("coilwork").warning("sizes differ: the captured graph runs, in eager mode")
assert sys.argv[1:] == ["--some", "argument"]
raise ValueError("at the end")
"""


# In a process of its own: torch tells of a limit once, to whoever has set up its log first.
LISTING = """
import os, sys
from pathlib import Path

from coilwork_tools.explain.compile_coverage import run_script

found = run_script(Path(sys.argv[1]), sys.argv[2:])
print("\\n".join(found.list_lines()))
print(repr(found.error), "COILWORK_TRACE" in os.environ)
"""


def test_each_kind_is_listed_with_its_reason(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LISTING, str(script), "--some", "argument"],
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, ending = done.stdout.splitlines()
    (broken,) = [line for line in lines if line.startswith("graph break")]
    assert "a reason" in broken
    assert broken.endswith(f" at {script}:19")
    assert any(line.startswith("warning") and "a graph runs in eager mode" in line for line in lines)
    logged = [line for line in lines if line.startswith("log ")]
    assert any("the captured graph runs" in line for line in logged)
    assert any("recompile_limit" in line and "sized" in line for line in logged)
    assert "g: 2 kernels, 0 operators" in lines
    assert "  driver     Python: asked for" in lines
    assert ending == "ValueError('at the end') False"


def test_what_a_part_holds_is_listed_once() -> None:
    call = {"op": "print", "reason": "print is driven by Python", "source": "model.py:3"}
    operator = {"op": "aten.svd", "reason": "no lowering", "source": "", "count": 2}
    part = CompileReport(graph_id="part", role="inference", kernels=3, operators=[operator])
    whole = CompileReport(
        graph_id="whole",
        role="forward",
        kernels=3,
        parts=["part"],
        called=[call],
        operators=[operator],
        fallback="an error",
    )
    assert list(Uncompiled(reports=(part, whole)).list_lines()) == [
        "whole: 3 kernels, 0 operators in 1 parts",
        "  eager      an error",
        "  by Python  print: print is driven by Python  at model.py:3",
        "  operator   2x  aten.svd: no lowering",
    ]
