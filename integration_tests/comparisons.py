"""What sweeps over torch's operators and modules and random programs found, as a page: docs/comparisons.md.

    python -m integration_tests.comparisons        the page again
    python -m integration_tests.comparisons --operators opinfo.jsonl --programs fuzz.jsonl,again.jsonl
        --modules modules.jsonl

It adds a summary of each kind of records to those in `docs/comparisons/`, of which the page is made: records
are the progress file of `integration_tests.operators.sweep`, findings of `integration_tests.fuzz` (the latest
last), and results of `integration_tests.modules.sweep`. Records that are summarised once are not given again.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.pages import wrap_prose
from integration_tests.comparison_summaries import (
    FAILED,
    ModuleRun,
    OperatorRun,
    ProgramRun,
    Run,
    add,
    load,
    of_modules,
    of_operators,
    of_programs,
)
from integration_tests.operators.exceptions import KNOWN, reason
from integration_tests.operators.verdicts import tally_table

KINDS: Final = ("ok", "rounded", "torch", "skipped", "failed")

HEADER: Final = """\
# Compared with eager

What was compared so far, on a CPU with torch {versions}, and what differed. Made by
`python -m integration_tests.comparisons` from the summaries in `docs/comparisons/`, which it makes of the
files that `nox -s opinfo`, `nox -s fuzz` and `nox -s modules` leave. Each seed and most units ran once, while
Coilwork 0.1.0 was developed: old records are of older states. What failed then ran again after it was mended.

"""
OPERATORS: Final = """\
## Torch's operators

Every operator of torch's own database (`integration_tests/operators/README.md` says what is done), by pairs
of operator and type: in sweep 1 most of them with three or four samples, in sweep 3 with all, but for four
operators with dynamic sizes (`conv2d`, `max_pool2d`, `max_pool3d`, `multi_head_attention_forward`), whose
samples are too many. *Not traced*: Dynamo compiles nothing. *Torch's own*: `aot_eager`, in which nothing is
Coilwork's, differs in the same way.

"""
MODULES: Final = """\
## Torch's modules

Samples of the modules of torch's own database, in training and evaluation, with gradients and buffers.
*Dynamo*: it compiles nothing. *Torch*: `aot_eager` fails, too. *Refused*: eager raises.

"""
PROGRAMS: Final = """\
## Random programs

Programs of the [fuzzer](how-to/fuzz.md), each at every level of the compiler. *Rounded*: 16-bit values that
`numerics="fast"` keeps in f32. *Torch*: `aot_eager` fails, too. *Skipped*: eager refuses the program, or
decides differently in float64.

"""


def page(runs: Sequence[Run]) -> str:
    """The whole page."""
    operators = [run for run in runs if isinstance(run, OperatorRun)]
    modules = [run for run in runs if isinstance(run, ModuleRun)]
    programs = [run for run in runs if isinstance(run, ProgramRun)]
    versions = ", ".join(sorted({run.torch for run in runs}, reverse=True))
    text = HEADER.format(versions=versions) + OPERATORS + _operators(operators)
    if modules:
        text += "\n" + MODULES + _modules(modules)
    return wrap_prose(text + "\n" + PROGRAMS + _programs(programs))


def _operators(runs: Sequence[OperatorRun]) -> str:
    lines = ["Known to differ:", ""]
    lines += [
        f"- {known.ops} ({known.ways}, {known.dtypes}, {known.statuses}): {known.reason}" for known in KNOWN
    ]
    for number, run in enumerate(runs, 1):
        lines += ["", f"### Sweep {number}", "", *_sweep(run, later=runs[number:])]
    return "\n".join(lines) + "\n"


def _sweep(run: OperatorRun, *, later: Sequence[OperatorRun]) -> list[str]:
    lines = ["```", tally_table(run.tally), "```", ""]
    lines += ["| way | operators and types | samples |", "|---|---:|---:|"]
    lines += [f"| {way} | {units:,} | {samples:,} |" for way, (units, samples) in run.samples.items()]
    known = [one for one in run.failures if reason(one)]
    passing = [one for one in run.failures if _passes(one, later)]
    lines += [
        "",
        f"Failures: {len(run.failures)}, {len(known)} of them known, {len(passing)} in units that pass now.",
        "",
    ]
    lines += [
        f"- `{one['op']}` {one['way']} {one['dtype']}: {one['status']}, {_cell(one['what'])}"
        + ("; passes now" if one in passing else "")
        for one in run.failures
    ]
    if run.others:
        lines += ["", "Not Coilwork's:", "", *(f"- {_cell(line)}" for line in run.others)]
    return lines


def _passes(failure: Mapping[str, str], later: Sequence[OperatorRun]) -> bool:
    """Whether the unit ran again, and did not fail the last time."""
    unit = [failure[name] for name in ("way", "dtype", "op")]
    again = [run for run in later if unit[2] in run.done.get(unit[0], {}).get(unit[1], ())]
    return bool(again) and all(
        [one[name] for name in ("way", "dtype", "op")] != unit for one in again[-1].failures
    )


def _modules(runs: Sequence[ModuleRun]) -> str:
    statuses = sorted({status for run in runs for status in run.counts})
    lines = ["| sweep | modules | " + " | ".join(statuses) + " |", "|---|" + "---:|" * (len(statuses) + 1)]
    for number, run in enumerate(runs, 1):
        cells = " | ".join(f"{run.counts.get(status, 0):,}" for status in statuses)
        lines.append(f"| {number} | {run.modules} | {cells} |")
    failures = [one for run in runs for one in run.failures]
    lines += ["", f"Failures: {len(failures)}.", ""]
    lines += [f"- {_cell(one['sample'])}: {one['status']}, {_cell(one['what'])}" for one in failures]
    return "\n".join(lines).rstrip() + "\n"


def _programs(runs: Sequence[ProgramRun]) -> str:
    lines = ["| seeds | programs | " + " | ".join(KINDS) + " |", "|---|" + "---:|" * (len(KINDS) + 1)]
    parts = sorted((part for run in runs for part in run.ranges), key=lambda part: part["first"])
    for part in parts:
        lines.append(_row(f"{part['first']} to {part['last']}", Counter(part["counts"])))
    lines.append(_row("all", sum((Counter(part["counts"]) for part in parts), Counter[str]())))
    now: dict[str, str] = {}
    for run in runs:
        now.update(run.again)
    failures = sorted((one for run in runs for one in run.failures), key=lambda one: one["seed"])
    last = {one["seed"]: now.get(str(one["seed"]), one["kind"]) for one in failures}
    passing = sum(kind not in FAILED for kind in last.values())
    lines += ["", f"Failed when they ran first: {len(failures)}; of these {passing} pass now.", ""]
    lines += ["| seed | then | first level that is wrong | what | now |", "|---|---|---|---|---|"]
    lines += [
        f"| {one['seed']} | {one['kind']} | {one['level']} | {_cell(one['what'])} | {last[one['seed']]} |"
        for one in failures
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | {counts.total()} | " + " | ".join(str(counts[kind]) for kind in KINDS) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _records(paths: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in paths.split(",") if path for line in Path(path).read_text().splitlines()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", default="", help="progress files of the sweep, by commas")
    parser.add_argument("--programs", default="", help="findings of the fuzzer, by commas, the latest last")
    parser.add_argument("--modules", default="", help="results of the sweep over modules, by commas")
    parser.add_argument("--summaries", type=Path, default=Path("docs/comparisons"), help="their folder")
    parser.add_argument("--output", type=Path, default=Path("docs/comparisons.md"))
    chosen = parser.parse_args()
    version = torch.__version__.partition("+")[0]
    if chosen.operators:
        add(of_operators(_records(chosen.operators), torch=version), chosen.summaries)
    if chosen.programs:
        before = [run for run in load(chosen.summaries) if isinstance(run, ProgramRun)]
        add(of_programs(_records(chosen.programs), torch=version, before=before), chosen.summaries)
    if chosen.modules:
        add(of_modules(_records(chosen.modules), torch=version), chosen.summaries)
    chosen.output.write_text(page(load(chosen.summaries)))


if __name__ == "__main__":
    main()
