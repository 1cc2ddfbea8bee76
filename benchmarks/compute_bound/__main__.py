"""Products, attention and layers on a GPU: the time that it is busy, beside eager mode and another compiler.

    python -m benchmarks.compute_bound                              all cases, beside Inductor's default
    python -m benchmarks.compute_bound --only swiglu,flex --beside eager,inductor,autotune --kernels 4
    python -m benchmarks.compute_bound --workers 14 --seconds 100 --json results.json --page page.md
    python -m benchmarks.compute_bound --read results.json --page page.md

Each line has microseconds per way, the best of the others over Coilwork, and how far eager's results and ours
are from float64. Processes compile side by side and measure one after another. After `--seconds` what is not
done is left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any, Final

import torch

from benchmarks.compute_bound.programs import CASES, KINDS
from benchmarks.compute_bound.report import describe, summarise, write_page
from benchmarks.compute_bound.timing import WAYS, serve

COMMAND: Final = "python -m benchmarks.compute_bound --workers 15 --page docs/benchmarks/compute-bound.md"
Records = dict[str, dict[str, dict[str, Any]]]


def list_names(only: str, modes: list[str], kinds: list[str]) -> list[str]:
    """Return the cases whose names contain one of the comma-separated words `only`."""
    words = only.split(",") if only else [""]
    return [
        f"{case.mode}:{case.name}"
        for kind in kinds
        for case in KINDS[kind]
        if case.mode in modes and any(word in f"{case.mode}:{case.name}" for word in words)
    ]


def measure(names: list[str], options: argparse.Namespace) -> Records:
    """Measure the cases in several processes, and print a line about each as it is done."""
    ways = tuple(way for way in WAYS if way == "coilwork" or way in options.beside.split(","))
    end = time.monotonic() + options.seconds
    # each process has one core: compilers that start processes of their own would be in each other's way
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    context = multiprocessing.get_context("spawn")
    waiting, results, lock = context.Queue(), context.Queue(), context.Lock()
    for name in names:
        waiting.put(name)
    given = (waiting, results, lock, ways, options.device)
    workers = [context.Process(target=serve, args=given, daemon=True) for _ in range(options.workers)]
    for worker in workers:
        worker.start()
    records: Records = {}
    while len(records) < len(names) and (left := end - time.monotonic()) > 0:
        try:
            name, record = results.get(timeout=min(left, 2.0))
        except Empty:
            if not any(worker.is_alive() for worker in workers):
                break
            continue
        records[name] = record
        print(describe(name, record), flush=True)
        for kernel in record.get("coilwork", {}).get("kernels", ())[: options.kernels]:
            print(f"    {kernel['total_us']:9.1f} us {kernel['launches']:4} x {kernel['name'][:100]}")
    for worker in workers:
        worker.kill()
    missing = [name for name in names if name not in records]
    if missing:
        print("not done:", " ".join(missing))
    return records


def main(arguments: list[str]) -> int:
    """Print a line for each case, and means."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compute_bound",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="words in names of cases, joined by commas")
    parser.add_argument("--modes", nargs="+", choices=("infer", "train"), default=["infer", "train"])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--beside", default="eager,inductor", help="other ways to run, joined by commas")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes that compile side by side")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end")
    parser.add_argument("--kernels", type=int, default=0, help="kernels of Coilwork's calls to print")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--read", type=Path, help="measure nothing; read what was measured")
    parser.add_argument("--page", type=Path, help="write a page in Markdown there")
    parser.add_argument("--machine", default="NVIDIA H200, torch 2.11", help="of the page")
    options = parser.parse_args(arguments)
    if options.read:
        records: Records = json.loads(options.read.read_text())
    else:
        records = measure(list_names(options.only, options.modes, options.kinds), options)
    records = {name: records[name] for name in CASES if name in records}
    for line in summarise(records):
        print(line)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    if options.page:
        options.page.write_text(write_page(records, COMMAND, options.machine))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
