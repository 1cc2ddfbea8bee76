"""Passes on kernels that are text files: `passes/PASS/WHAT_HOLDS.txt`.

The settings of a file, beside those of `coilwork_ir.conformance.text_cases`:

- `pass` names the passes of `KERNEL_PASSES` that run, in the table's order; `all` runs all of them.
- `target` is the device.

A phase of a launch is a line, followed by its kernels.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from coilwork_cpp import CppOptions
from coilwork_cpp.rewrites.table import KERNEL_PASSES, Launch, RewriteContext
from coilwork_ir.conformance.text_cases import Settings, Transformed, check_text_case, find_text_cases
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.loops import Graph
from coilwork_ir.scalar import list_loads
from coilwork_ir.target import get_target

CASES = find_text_cases(Path(__file__).parent / "passes")


def apply_passes(given: Graph | Kernel, chosen: Settings) -> Transformed:
    """The kernels that the chosen passes make of one."""
    assert isinstance(given, Kernel)
    names = KERNEL_PASSES.names if chosen["pass"] == "all" else re.findall(r"[\w-]+", chosen["pass"])
    context = RewriteContext(options=CppOptions(), loops=get_target(chosen["target"]).machine.loops)
    launch = KERNEL_PASSES.select(*names).run(Launch(phases=((given,),)), context)
    if launch.phases == ((given,),):
        return Transformed(text="unchanged\n", result=given)
    lines = [
        line
        for number, pieces in enumerate(launch.phases)
        for line in (f"phase {number}", *map(format_kernel, pieces))
    ]
    kernels = tuple(drop_idle_arguments(kernel) for pieces in launch.phases for kernel in pieces)
    return Transformed(text="\n".join(lines), result=kernels)


def drop_idle_arguments(kernel: Kernel) -> Kernel:
    """`kernel` with the arguments that it touches: pieces have those of the whole."""
    roots = list_kernel_roots(kernel)
    touched = {store.buffer for store in kernel.stores} | {load.buffer for load in list_loads(roots)}
    return replace(kernel, args=tuple(arg for arg in kernel.args if arg.name in touched))


@pytest.mark.parametrize("name", CASES)
def test_passes_make_what_the_text_expects(name: str, request: pytest.FixtureRequest) -> None:
    update = request.config.getoption("--update", default=False)
    check_text_case(CASES[name], apply_passes, known=("pass", "target"), update=update)
