"""The decision about each buffer's layout as a table for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coilwork_ir.index import Expr, format_expr
from coilwork_ir.kernels import Decision
from coilwork_ir.loops import Graph
from coilwork_ir.loops.access import buffers_defined_by
from coilwork_ir.loops.layouts import Fixed, memory_roots
from coilwork_ir.target import Targets
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.layouts.assign import layouts_beside, list_sites, survey
from coilwork_scheduler.layouts.rules import RULES
from coilwork_scheduler.layouts.sites import LayoutRule
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import hints_of


def explain_layouts(
    steps: Sequence[tuple[str, Graph]],
    decisions: Iterable[Decision],
    *,
    targets: Targets,
    options: ScheduleOptions,
    rules: Sequence[LayoutRule] = RULES,
) -> str:
    """One line for each buffer with memory of its own: its shape, how it lies, and why. Columns are aligned.

    Args:
        steps: what `schedule` told its observer, in order: the name of each pass and the graph that it made.
        decisions: what was recorded.
        targets: the devices that it ran for.
        options: the options that it ran with.
        rules: the rules that it asked.
    """
    place = next(k for k, (name, _) in enumerate(steps) if name == "layouts")
    before, after = steps[place - 1][1], steps[place][1]
    hints = hints_of(options)
    around = survey(before, analyse(before), targets=targets, sizes=hints)
    layouts = layouts_beside(around, list_sites(around, rules, options))
    chosen = {d.subjects[0]: d for d in decisions if d.rule == "layout"}
    copies = {d.subjects[0]: d for d in decisions if d.rule == "layout-copy"}
    roots = memory_roots(after)
    rows = [("buffer", "shape", "strides", "layout", "why")]
    for buffer in (b for node in after.nodes for b in buffers_defined_by(node)):
        if roots[buffer.name] != buffer.name or len(buffer.shape) < 2:
            continue
        layout, decision = layouts.get(buffer.name), chosen.get(buffer.name)
        if layout is None:
            kind, why = "copy", "a copy between layouts"
        elif isinstance(layout, Fixed):
            kind, why = "fixed", layout.why
        elif decision is None:
            kind, why = "free", "nothing around it moves more than it must"
        else:
            kind, why = "moved" if decision.accepted else "free", _runner_up(decision)
        copy = copies.get(buffer.name)
        if copy is not None:
            why += f"; copied for a call: {dict(copy.numbers)['copied_bytes']:.0f} bytes"
        rows.append((f"%{buffer.name}", _list(buffer.shape), _list(buffer.strides), kind, why))
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "".join(f"{line}\n" for line in lines)


def _runner_up(decision: Decision) -> str:
    numbers = dict(decision.numbers)
    _, second = decision.reason.split("}, ", 1)
    if not numbers["runner_up_bytes"]:
        return second
    return f"{second}: {numbers['runner_up_bytes']:.0f} bytes, {numbers['runner_up_us']:.2f} us more"


def _list(sizes: Iterable[Expr]) -> str:
    return " ".join(format_expr(size) for size in sizes)
