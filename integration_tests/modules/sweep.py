"""Every module of torch's database through generated code, in training and evaluation, beside eager.

    python -m integration_tests.modules.sweep                       all samples of all modules
    python -m integration_tests.modules.sweep --only nn.GRU,nn.LSTM --most 20

A worker process checks them one after the other; `--results` keeps what it finds. Exit status 1 if any sample
is wrong, raises or is not compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch

from integration_tests.modules.checks import GOOD, check
from integration_tests.modules.database import modules, samples
from integration_tests.quicker_compiles import quicken_compiles


def spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count`, evenly apart, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})


def check_module(name: str, info: Any, most: int, device: str = "cpu") -> list[dict[str, str]]:
    """Outcomes of up to `most` samples of the module in each mode on `device`, as records."""
    records = []
    for training in (True, False):
        made = samples(name, info, training=training)
        chosen = [made[position].on(device) for position in spread(len(made), most)]
        records += [
            {"sample": one.sample, "status": one.status, "detail": one.detail} for one in check(chosen)
        ]
    return records


def outcomes(
    program: str, names: list[str], options: list[str], limit_s: float
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The records of each name. A worker process, `program --worker --only NAMES`, checks one after the
    other; when it dies, another goes on.
    """
    pending = list(names)
    while pending:
        command = [sys.executable, "-W", "ignore", "-m", program, "--worker", *options]
        worker = subprocess.Popen(
            [*command, "--only", ",".join(pending)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert worker.stdout is not None
        while pending:
            with selectors.DefaultSelector() as selector:
                selector.register(worker.stdout, selectors.EVENT_READ)
                line = worker.stdout.readline() if selector.select(limit_s) else None
            name = pending.pop(0)
            if not line:
                status = "died" if line == "" else "timeout"
                yield name, [{"sample": name, "status": status, "detail": ""}]
                break
            yield name, json.loads(line)
        worker.kill()
        worker.wait()


def several(
    program: str, names: list[str], options: list[str], limit_s: float, processes: int
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The same by several workers, each with its share of the names; in the order in which they come."""
    found: SimpleQueue[tuple[str, list[dict[str, str]]]] = SimpleQueue()

    def follow(share: list[str]) -> None:
        for one in outcomes(program, share, options, limit_s):
            found.put(one)

    shares = [names[k::processes] for k in range(processes) if names[k::processes]]
    threads = [Thread(target=follow, args=(share,), daemon=True) for share in shares]
    for thread in threads:
        thread.start()
    while not found.empty() or any(thread.is_alive() for thread in threads):
        try:
            yield found.get(timeout=0.5)
        except Empty:
            continue


def main() -> int:
    quicken_compiles()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names, by commas")
    parser.add_argument("--most", type=int, default=10_000, help="samples of a module in each mode")
    parser.add_argument("--limit", type=float, default=1800.0, help="seconds that a module may take")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=1, help="workers at a time")
    parser.add_argument("--results", type=Path, help="append all outcomes to this file, as lines of JSON")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    names = chosen.only.split(",") if chosen.only else list(modules())
    if chosen.worker:
        database = modules()
        work(names, lambda name: check_module(name, database[name], chosen.most, chosen.device))
        return 0
    options = ["--most", str(chosen.most), "--device", chosen.device]
    found = several("integration_tests.modules.sweep", names, options, chosen.limit, chosen.processes)
    return summarized("module", found, results=chosen.results)


def work(names: list[str], records_of: Callable[[str], list[dict[str, str]]]) -> None:
    """What a worker does: a line of records for each name. They go to the real stdout; whatever else prints
    there goes to stderr.
    """
    report = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in names:
        print(json.dumps(records_of(name)), file=report)


def summarized(
    kind: str, found: Iterator[tuple[str, list[dict[str, str]]]], *, results: Path | None = None
) -> int:
    """Print what is wrong and how many are what, and append all to `results`; 1 if anything is
    wrong, else 0.
    """
    counts: Counter[str] = Counter()
    names = bad = 0
    started = time.monotonic()
    before = started
    for name, records in found:
        names += 1
        for record in records:
            counts[record["status"]] += 1
            good = record["status"] in GOOD
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps({kind: name, **record, "good": good}) + "\n")
            if not good:
                bad += 1
                print(f"{record['status']}: {record['sample']}\n    {record['detail']}", flush=True)
        print(f"{name}: {time.monotonic() - before:.0f} s", file=sys.stderr, flush=True)
        before = time.monotonic()
    kinds = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    print(f"{names} {kind}s, {sum(counts.values())} samples in {time.monotonic() - started:.0f} s: {kinds}")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
