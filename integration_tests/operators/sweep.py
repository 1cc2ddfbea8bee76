"""Every operator of torch's database through Coilwork beside eager; prints a table and what failed.

    python -m integration_tests.operators.sweep --device cpu --processes 2
    python -m integration_tests.operators.sweep --dtypes float32,int64 --ways forward,dynamic --shard 0/4
        --samples 4

Needs torch and Coilwork alone. Worker processes check unit after unit: an operator called one way with one
dtype, in parts if it has many samples. One that dies, or takes longer than `--limit` seconds for samples that
are compiled together, is replaced. `--results FILE` is appended to after every part, and what it already
holds is not checked again: an interrupted sweep goes on where it stopped, and `--seconds` ends it in time.
`--again` forgets those that failed.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TextIO

from integration_tests.operators.database import operators
from integration_tests.operators.exceptions import reason
from integration_tests.operators.parts import parts_left
from integration_tests.operators.pool import Settings, run
from integration_tests.operators.units import DTYPES, FULLY, WAYS_OF_A_SWEEP, chosen_names, units
from integration_tests.operators.verdicts import is_failure, others, table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--device", default="cpu", help="cpu or cuda")
    add("--processes", type=int, default=1)
    add(
        "--builders",
        type=int,
        default=0,
        help="processes that build kernels for each; 0 for one on a CPU, all cores on a GPU",
    )
    add("--shard", default="0/1", help="i/n: every n-th operator, from the i-th, counted from 0")
    add(
        "--ways",
        default=",".join(WAYS_OF_A_SWEEP),
        help="of forward, errors, backward, dynamic, dynamic_backward, inplace, out, hard",
    )
    add("--dtypes", default="", help="by commas; without it, all on a CPU, and the most used five on a GPU")
    add("--fully", default=",".join(FULLY), help="dtypes that are tried in all ways; others go forward alone")
    add("--samples", type=int, default=0, help="most samples per unit; 0 for all")
    add("--only", default="", help="operators, by commas; `nn.*` for a prefix")
    add("--limit", type=float, default=240.0, help="seconds that a few samples may take")
    add(
        "--seconds",
        type=float,
        default=1e9,
        help="start no unit after this many seconds, and end `--limit` later",
    )
    add("--results", type=Path, default=Path("opinfo.jsonl"), help="the progress file")
    add("--again", action="store_true", help="check again what failed")
    add("--quiet", action="store_true", help="print no failures while it runs")
    return parser.parse_args()


def collect(
    threads: list[threading.Thread], done: SimpleQueue[list[dict[str, Any]]], file: TextIO, *, quiet: bool
) -> list[dict[str, Any]]:
    """All outcomes, written to `file` as they come."""
    found: list[dict[str, Any]] = []
    while any(thread.is_alive() for thread in threads) or not done.empty():
        try:
            outcomes = done.get(timeout=1.0)
        except Empty:
            continue
        found += outcomes
        for outcome in outcomes:
            file.write(json.dumps(outcome) + "\n")
            if is_failure(outcome) and not quiet:
                print(
                    f"{outcome['status']:10} {outcome['op']} {outcome['way']} {outcome['dtype']}", flush=True
                )
        file.flush()
    return found


def read_progress(path: Path, *, again: bool) -> list[dict[str, Any]]:
    """What an earlier sweep found; with `again`, without the units that failed. A line cut short
    is left out.
    """
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    if again:
        failed = {record["unit"] for record in records if is_failure(record)}
        records = [record for record in records if record["unit"] not in failed]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


def main() -> int:
    chosen = parse_arguments()
    records = read_progress(chosen.results, again=chosen.again)
    database = operators()
    most_used = ["float32", "int64", "bool", "bfloat16", "float16"]
    wanted = units(
        database,
        chosen_names(database, shard=chosen.shard, only=chosen.only),
        ways=chosen.ways.split(","),
        dtypes=chosen.dtypes.split(",") if chosen.dtypes else DTYPES if chosen.device == "cpu" else most_used,
        device=chosen.device,
        fully=chosen.fully.split(","),
    )
    todo = parts_left(wanted, records)
    started = time.monotonic()
    settings = Settings(
        device=chosen.device,
        samples=chosen.samples,
        limit_s=chosen.limit,
        deadline=started + chosen.seconds,
        # Triton takes a hundred times as long as a C++ compiler
        builders=chosen.builders
        or (1 if chosen.device == "cpu" else max(1, (os.cpu_count() or 1) // chosen.processes)),
    )
    done: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()
    threads, pending = run(todo, settings, processes=chosen.processes, finished=done)
    with chosen.results.open("a") as file:
        records += collect(threads, done, file, quiet=chosen.quiet)
    keys = {unit.key for unit in wanted}
    return report([record for record in records if record["unit"] in keys], left=len(pending))


def report(records: list[dict[str, Any]], *, left: int) -> int:
    """Print the table and the exceptions; 1 if one is not explained."""
    print(table(records))
    if left:
        print(f"{left} units or parts of them are left; the same command goes on with them")
    failures = [record for record in records if is_failure(record)]
    unexplained = 0
    for record in failures:
        known = reason(record)
        unexplained += known is None
        why = f"known: {known}" if known else f"{record['detail'][:400]}  [{record['sample'][:160]}]"
        print(f"{record['status']:10} {record['op']} {record['way']} {record['dtype']}: {why}")
    for line in others(records):
        print(line)
    print(f"{len(failures)} failures, {unexplained} of them without a known reason")
    return 1 if unexplained else 0


if __name__ == "__main__":
    raise SystemExit(main())
