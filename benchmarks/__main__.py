"""`python -m benchmarks run` measures models, `memory` kernels; `report results.json` prints what was
measured of models.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import torch

from benchmarks import memory_bound
from benchmarks.gpus import gpu_names, side_by_side
from benchmarks.machine import machine_description
from benchmarks.memory_bound import command as memory_command
from benchmarks.models import CASES, find_case
from benchmarks.progress import progress
from benchmarks.report import markdown
from benchmarks.results import Measurement, Run, read_json, to_json
from benchmarks.runner import Plan, measure_together


def names(text: str) -> tuple[str, ...]:
    """A comma-separated list."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure models under several backends")
    run.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    run.add_argument("--models", type=names, default=tuple(case.name for case in CASES), metavar="A,B")
    run.add_argument("--size", choices=("full", "reduced"), default="full")
    run.add_argument("--modes", type=names, default=("infer", "train"), metavar="infer,train")
    run.add_argument(
        "--dtypes", type=names, default=(), metavar="f32,bf16", help="default: f32; on a GPU both"
    )
    run.add_argument(
        "--backends",
        type=names,
        default=("eager", "inductor", "coilwork"),
        metavar="A,B",
        help="`backend` or `backend:mode`, such as inductor:max-autotune",
    )
    run.add_argument(
        "--batch",
        type=int,
        default=None,
        metavar="N",
        help="the first N rows of every model's inputs; default: each model's own batch",
    )
    run.add_argument("--out", type=Path, default=Path("benchmarks/results"), metavar="DIR")
    run.add_argument(
        "--quick", action="store_true", help="few repetitions, to save minutes on a borrowed GPU"
    )
    run.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="models that compile at the same time, each with --threads; timed they are one by one",
    )
    run.add_argument(
        "--gpus", type=int, default=1, metavar="N", help="GPUs that share the models out, --together on each"
    )
    run.add_argument("--threads", type=int, default=min(16, os.cpu_count() or 1), help="of every compiler")
    run.add_argument("--timeout", type=float, default=900.0, metavar="S", help="seconds per compile or round")
    memory = commands.add_parser(
        "memory", help="measure kernels that memory limits", description=memory_bound.__doc__
    )
    memory_command.add_arguments(memory)
    report = commands.add_parser("report", help="Markdown from a results file")
    report.add_argument("results", type=Path)
    report.add_argument("-o", "--output", type=Path, default=None, help="default: standard output")
    found = parser.parse_args(arguments)
    if found.command == "run":
        unknown = set(found.modes) - {"infer", "train"} or set(found.dtypes) - {"f32", "bf16", "f16"}
        if unknown:
            parser.error(f"unknown mode or dtype: {', '.join(sorted(unknown))}")
        if found.batch is not None and found.batch < 1:
            parser.error("--batch: a batch has at least one row")
        try:
            found.models = tuple(find_case(name) for name in found.models)
            found.gpus = gpu_names(found.gpus)
        except ValueError as error:
            parser.error(str(error))
    return found


def run(found: argparse.Namespace, command: str) -> int:
    """Measure, and write results.json and results.md after every model. Returns 1 if any backend failed."""
    plan = Plan(
        cases=found.models,
        modes=found.modes,
        dtypes=found.dtypes or (("f32", "bf16") if found.device == "cuda" else ("f32",)),
        backends=found.backends,
        size=found.size,
        device=found.device,
        quick=found.quick,
        threads=found.threads,
        timeout_s=found.timeout,
        batch=found.batch,
    )
    found.out.mkdir(parents=True, exist_ok=True)
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    machine = machine_description(plan.device)
    measurements: list[Measurement] = []
    combinations = list(plan.combinations())
    groups = iter([combinations[k : k + found.together] for k in range(0, len(combinations), found.together)])
    with progress(len(combinations)) as (say, advance):

        def lane(gpu: str) -> Iterator[list[Measurement]]:
            for group in groups:
                with tempfile.TemporaryDirectory(
                    prefix="coilwork-bench-", ignore_cleanup_errors=True
                ) as folder:
                    yield from measure_together(plan, group, Path(folder), say, gpu)

        for measured in side_by_side(found.gpus, lane):
            measurements += measured
            results = Run(
                command=command,
                when=when,
                size=plan.size,
                device=plan.device,
                threads=plan.threads,
                machine=machine,
                measurements=tuple(measurements),
                batch=plan.batch,
            )
            (found.out / "results.json").write_text(to_json(results))
            (found.out / "results.md").write_text(markdown(results))
            advance()
    if measurements:
        print((found.out / "results.md").read_text())
    return 1 if any(entry.failure or entry.correct is False for entry in measurements) else 0


def main(arguments: list[str]) -> int:
    found = parse(arguments)
    if found.command == "run":
        return run(found, "python -m benchmarks " + shlex.join(arguments))
    if found.command == "memory":
        return memory_command.run(found, "python -m benchmarks " + shlex.join(arguments))
    text = markdown(read_json(found.results))
    if found.output is None:
        print(text)
    else:
        found.output.parent.mkdir(parents=True, exist_ok=True)
        found.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
