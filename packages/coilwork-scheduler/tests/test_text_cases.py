"""Passes on graphs that are text files: `passes/PASS/WHAT_HOLDS.txt`.

The settings of a file, beside those of `coilwork_ir.conformance.text_cases`:

- `pass` names the passes of `PASSES` that run, in the table's order; `all` runs all of them.
- `target` is the device, with what the generators in `declared.py` declare. `kept_bytes` is how long the rows
  are that its programs keep.
- `show` is what the text of a schedule holds: `all`, `calls` (one line for each step, with the shape of its
  kernel), or `decisions RULE ...` (the same, and what was decided by these rules; by any without one).
- Any field of `ScheduleOptions`, and, after `device.`, any of `Target` that differs from the named one.
"""

from __future__ import annotations

import ast
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from declared import declare

from coilwork_ir.buffers import Buffer
from coilwork_ir.conformance.text_cases import Settings as TextSettings
from coilwork_ir.conformance.text_cases import Transformed, check_text_case, find_text_cases
from coilwork_ir.index import format_expr
from coilwork_ir.kernels import Kernel, KernelCall, Schedule
from coilwork_ir.kernels.text import format_schedule, parse_schedule
from coilwork_ir.loops import Extern, Graph
from coilwork_ir.loops.text import format_graph
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.program.verify import verify_program
from coilwork_ir.scalar import Reduce, Scan, Sort, iterate_postorder
from coilwork_ir.target import Target, get_target
from coilwork_scheduler import RooflineCost, ScheduleOptions
from coilwork_scheduler.contractions.registry import REGISTRY
from coilwork_scheduler.dependence import analyse
from coilwork_scheduler.kernels.rounding import has_low_precision
from coilwork_scheduler.memory import plan
from coilwork_scheduler.optimization_remarks import Remarks
from coilwork_scheduler.options import make_size_hints
from coilwork_scheduler.pipeline import PASSES, Draft, Settings

CASES = find_text_cases(Path(__file__).parent / "passes")
DEVICE = tuple(field.name for field in fields(Target))
OPTIONS = tuple(field.name for field in fields(ScheduleOptions))
KNOWN = ("pass", "target", "kept_bytes", "show", *OPTIONS, *(f"device.{name}" for name in DEVICE))
# A kernel's name ends in a digest of what it computes.
DIGEST = re.compile(r"@(\w+)_[0-9a-f]{8}\b")


def option(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def apply_passes(given: Graph | Kernel, chosen: TextSettings) -> Transformed:
    """The graph that the chosen passes make of `given`, or the schedule if the last of them runs."""
    assert isinstance(given, Graph)
    given_options: dict[str, Any] = {name: option(chosen[name]) for name in OPTIONS if name in chosen}
    options = ScheduleOptions(**given_options)
    kept_bytes = int(chosen["kept_bytes"]) if "kept_bytes" in chosen else None
    device = get_target(chosen["target"])
    changed: dict[str, Any] = {
        name: option(chosen[f"device.{name}"]) for name in DEVICE if f"device.{name}" in chosen
    }
    targets = declare(replace(device, **changed), kept_bytes=kept_bytes)
    settings = Settings(
        targets=targets,
        options=options,
        model=RooflineCost(target=targets.main),
        sizes=make_size_hints(options),
        remarks=Remarks(options.max_decisions),
        keeps_wide=options.numerics == "fast" and has_low_precision(given),
        registry=REGISTRY,
    )
    names = PASSES.names if chosen["pass"] == "all" else re.findall(r"[\w-]+", chosen["pass"])
    passes = PASSES.select(*names)
    begun = Draft(graph=given, facts=analyse(given))
    made = passes.run(begun, settings, observe=lambda name, before, after: verify_graph(after.graph))
    if made.schedule is not None:
        assert parse_schedule(format_schedule(made.schedule)) == made.schedule
        verify_program(plan(made.schedule))
        return Transformed(text=show_schedule(made.schedule, chosen.get("show", "all")), result=made.schedule)
    unchanged = made.graph == given
    return Transformed(
        text="unchanged\n" if unchanged else format_graph(made.graph, origins=False), result=made.graph
    )


def show_schedule(schedule: Schedule, view: str) -> str:
    """The text of `schedule`, whose kernels have numbers instead of digests where one name stands twice."""
    if view == "all":
        return without_digests(format_schedule(schedule, origins=False, decisions=False))
    lines = [show_step(step, schedule) for step in schedule.steps]
    kind, *rules = view.split()
    for one in schedule.decisions if kind == "decisions" else ():
        if one.rule in rules or not rules:
            verdict = "accepted" if one.accepted else "rejected"
            lines.append(f"{one.rule} {verdict}: {', '.join(one.subjects)}")
    return without_digests("\n".join(lines) + "\n")


def show_step(step: object, schedule: Schedule) -> str:
    """A line: what runs on what, along which ranges, and what is combined along them."""
    if isinstance(step, Extern):
        outputs = ", ".join(f"%{b.name}" for b in step.outputs if isinstance(b, Buffer))
        return f"{outputs or 'none'} = {step.target}"
    if not isinstance(step, KernelCall):
        return type(step).__name__
    (kernel,) = (k for k in schedule.kernels if k.name == step.kernel)
    body = kernel if kernel.combined is None else kernel.combined.body
    ranges = ", ".join(f"{r.symbol.name}: {format_expr(r.extent)} {r.kind}" for r in body.ranges)
    roots = [store.value for store in body.stores]
    what = [describe(n) for n in iterate_postorder(roots) if isinstance(n, Reduce | Scan | Sort)]
    what += [f"{store.mode} to {store.buffer}" for store in body.stores if store.mode != "store"]
    what += [f"{store.buffer} masked" for store in body.stores if store.mask is not None]
    what += [f"check {check.message}" for check in body.checks]
    if kernel.combined is not None:
        what.append(f"{len(kernel.combined.members)} in one launch")
    shown = "".join(f"; {one}" for one in dict.fromkeys(what))
    sizes = f" sizes {', '.join(format_expr(e) for e in step.sizes)}" if step.sizes else ""
    into = "".join(f" {new} over {old}" for new, old in step.into)
    return f"@{step.kernel} ({', '.join(step.args)}){sizes}{into} [{ranges}]{shown}"


def describe(node: Reduce | Scan | Sort) -> str:
    match node:
        case Reduce():
            return f"{node.kind} along {', '.join(r.name for r in node.axes)}"
        case Scan():
            return f"scan {node.kind} along {node.axis.name}{' from the end' if node.reverse else ''}"
        case Sort():
            return f"sort along {node.axis.name}"


def without_digests(text: str) -> str:
    """`text` in which kernels that have one name are numbered instead."""
    numbers: dict[str, str] = {}
    for match in DIGEST.finditer(text):
        taken = sum(1 for name in numbers.values() if re.fullmatch(rf"{match[1]}(_\d+)?", name))
        numbers.setdefault(match[0], f"{match[1]}_{taken + 1}" if taken else match[1])
    return DIGEST.sub(lambda match: f"@{numbers[match[0]]}", text)


@pytest.mark.parametrize("name", CASES)
def test_passes_make_what_the_text_expects(name: str, request: pytest.FixtureRequest) -> None:
    update = request.config.getoption("--update", default=False)
    check_text_case(CASES[name], apply_passes, known=KNOWN, update=update)
