"""The command `python -m benchmarks memory`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpus import gpu_names
from benchmarks.machine import machine_description
from benchmarks.memory_bound.case import SETS
from benchmarks.memory_bound.cases import select
from benchmarks.memory_bound.choices import format_searches
from benchmarks.memory_bound.report import markdown
from benchmarks.memory_bound.results import MemoryRun, Row, to_json
from benchmarks.memory_bound.runner import Plan, measure_cases
from benchmarks.progress import progress


def names(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    parser.add_argument(
        "--backends",
        type=names,
        default=("eager", "inductor", "coilwork"),
        metavar="A,B",
        help=(
            "`backend`, `backend:mode`, or `backend-max` for its mode max-autotune-no-cudagraphs, which is "
            "slow"
        ),
    )
    parser.add_argument(
        "--cases", type=names, default=(), metavar="A,B", help="only those whose name has one of these in it"
    )
    parser.add_argument(
        "--sets", type=names, default=("main",), metavar="A,B", help=f"of {', '.join(SETS)}; default: main"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the benchmark itself")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilations at a time")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="share the cases out among N GPUs")
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds per step of a case"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: memory.json in --out")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="default: memory.md in --out")
    parser.add_argument(
        "--choices",
        type=Path,
        metavar="FILE",
        help="write what searches for configurations tried, kernel by kernel, as JSON; for coilwork-max",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also read hardware counters of every kernel, by ncu where that is installed and permitted",
    )
    parser.add_argument(
        "--list", action="store_true", help="print the names of the cases, and measure nothing"
    )


def list_row_searches(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what searches found, with the name of the case."""
    for row in rows:
        for entries in row.searches.values():
            for entry in entries:
                yield row.case, entry


def run(found: argparse.Namespace, command: str) -> int:
    """Measure; JSON and Markdown are written after every case. Returns 1 if a backend failed somewhere."""
    unknown = set(found.sets) - set(SETS)
    cases = select(found.cases, found.sets)
    if unknown or not cases:
        print(f"unknown sets: {', '.join(unknown)}" if unknown else "no such case", file=sys.stderr)
        return 2
    if found.list:
        print("\n".join(case.name for case in cases))
        return 0
    try:
        gpus = gpu_names(found.gpus)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    plan = Plan(
        cases=cases,
        backends=found.backends,
        device=found.device,
        tiny=found.tiny,
        jobs=found.jobs,
        timeout_s=found.timeout,
        profile=found.profile and found.device == "cuda",
        gpus=gpus,
    )
    json_path = found.json or found.out / "memory.json"
    markdown_path = found.markdown or found.out / "memory.md"
    for path in (json_path, markdown_path, *([found.choices] if found.choices else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
    start, when = time.monotonic(), datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = machine_description(plan.device)
    rows: list[Row] = []
    with (
        progress(len(cases)) as (say, advance),
        tempfile.TemporaryDirectory(prefix="coilwork-bench-", ignore_cleanup_errors=True) as folder,
    ):
        for row in measure_cases(plan, Path(folder), say):
            rows.append(row)
            results = MemoryRun(
                command=command,
                when=when,
                device=plan.device,
                seconds=time.monotonic() - start,
                machine=machine,
                backends=plan.backends,
                rows=tuple(rows),
            )
            json_path.write_text(to_json(results))
            markdown_path.write_text(markdown(results))
            if found.choices:
                found.choices.write_text(format_searches(list_row_searches(rows)))
            advance()
    print(markdown_path.read_text())
    return 1 if any(figure.failure for row in rows for figure in row.figures.values()) else 0
