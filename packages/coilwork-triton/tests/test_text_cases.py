"""Passes on kernels that are text files: `passes/PASS/WHAT_HOLDS.txt`.

The settings of a file, beside those of `coilwork_ir.conformance.text_cases`:

- `pass` names the passes of `KERNEL_PASSES` that run, in the table's order; `all` runs all of them.
- `target` is the device.
- `likely` is what the kernel's sizes likely are.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kernel_bench import declare_topk_range

from coilwork_ir.conformance.text_cases import Settings, Transformed, check_text_case, find_text_cases
from coilwork_ir.index import format_expr, get_extent
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.text import format_kernel
from coilwork_ir.loops import Graph
from coilwork_ir.target import get_target
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, begin_draft

CASES = find_text_cases(Path(__file__).parent / "passes")


def apply_passes(given: Graph | Kernel, chosen: Settings) -> Transformed:
    """What the chosen passes make of a kernel, and what they say of it."""
    assert isinstance(given, Kernel)
    likely = tuple(int(number) for number in chosen.get("likely", "").split(",") if number)
    names = KERNEL_PASSES.names if chosen["pass"] == "all" else re.findall(r"[\w-]+", chosen["pass"])
    begun = begin_draft(given, likely)
    draft = KERNEL_PASSES.select(*names).run(begun, get_target(chosen["target"]))
    if draft is begun:
        return Transformed(text="unchanged\n", result=given)
    lines = []
    if draft.topk is not None:
        lines.append(f"first elements along {draft.topk.name}: {format_expr(get_extent(draft.topk))}")
    if draft.coarsening > 1:
        lines.append(f"points in one: {draft.coarsening}")
    if draft.bins:
        lines.append(f"bins: {draft.bins}")
    text = "".join(f"{line}\n" for line in lines) + format_kernel(draft.kernel)
    return Transformed(text=text, result=declare_topk_range(draft.kernel, draft.topk))


@pytest.mark.parametrize("name", CASES)
def test_passes_make_what_the_text_expects(name: str, request: pytest.FixtureRequest) -> None:
    update = request.config.getoption("--update", default=False)
    check_text_case(CASES[name], apply_passes, known=("pass", "target", "likely"), update=update)
