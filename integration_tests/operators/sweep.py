"""Every operator of torch's database through Coilwork beside eager; prints a table and writes all outcomes as JSON.

    python -m integration_tests.operators.sweep --device cpu --processes 2 --ways forward,backward --shard 0/4

Needs torch and Coilwork alone. A worker process checks operator after operator; one that takes longer than
`--limit` seconds is killed with its worker, and the next operator goes to a new one. `--results FILE` is appended to
after every operator, and operators that it already holds are not checked again: an interrupted sweep goes on where
it stopped, and `--seconds` ends it in time.
"""

from __future__ import annotations

import argparse
import json
import selectors
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from integration_tests.operators.database import operators

START_LIMIT_S = 180.0
GOOD = ("ok", "random", "marginal", "eager", "torch", "skipped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every worker is told, and how long an operator may take."""

    device: str
    ways: str
    samples: int
    limit_s: float
    deadline: float


class Worker:
    """One process that checks operators; `ask` kills it when it does not answer in time."""

    def __init__(self, settings: Settings) -> None:
        # fmt: off
        self._process = subprocess.Popen(
            [sys.executable, "-m", "integration_tests.operators.worker", "--device", settings.device,
             "--ways", settings.ways, "--samples", str(settings.samples)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )
        # fmt: on
        if self._line(START_LIMIT_S) != "ready":
            self.stop()
            raise RuntimeError(
                "a worker does not start; run `python -m integration_tests.operators.worker` by hand"
            )

    def ask(self, name: str, limit_s: float) -> tuple[str, list[dict[str, str]]]:
        """Status "done", "timeout" or "died" of the process, and the outcomes."""
        assert self._process.stdin is not None
        self._process.stdin.write(name + "\n")
        line = self._line(limit_s)
        if line:
            return "done", json.loads(line)["outcomes"]
        status = "timeout" if self._process.poll() is None and line is None else "died"
        self.stop()
        return status, []

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _line(self, limit_s: float) -> str | None:
        """The next line, "" at the end of the stream, None if none comes in time."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                return None
        return self._process.stdout.readline().strip()


def work(names: SimpleQueue[str], done: SimpleQueue[list[dict[str, str]]], settings: Settings) -> None:
    """One thread: takes names until there are none or time is up."""
    worker: Worker | None = None
    while time.monotonic() < settings.deadline:
        try:
            name = names.get_nowait()
        except Empty:
            break
        worker = worker or Worker(settings)
        started = time.monotonic()
        status, outcomes = worker.ask(name, settings.limit_s)
        if status != "done":
            worker = None
            outcomes = [{"op": name, "way": "all", "dtype": "", "status": status, "detail": "", "sample": ""}]
        elif any(outcome["status"] == "crash" for outcome in outcomes):
            # A GPU's context does not outlive an illegal access.
            worker.stop()
            worker = None
        seconds = f"{time.monotonic() - started:.1f}"
        done.put([{**outcome, "seconds": seconds} for outcome in outcomes])
    if worker is not None:
        worker.stop()


def chosen_names(shard: str, only: str, finished: set[str]) -> list[str]:
    """This shard's operators that are not finished; `only` is a list of names, `a,b`, or a prefix, `nn.*`."""
    names = sorted(operators())
    if only:
        wanted = only.split(",")
        names = [
            name
            for name in names
            if any(name == one or (one.endswith("*") and name.startswith(one[:-1])) for one in wanted)
        ]
    index, count = map(int, shard.split("/"))
    return [name for name in names[index::count] if name not in finished]


def table(records: list[dict[str, Any]]) -> str:
    """Counts of every status by way and dtype."""
    counts = Counter((f"{r['way']} {r['dtype']}", r["status"]) for r in records)
    statuses = sorted({status for _, status in counts}, key=lambda s: (s not in GOOD, s))
    ways = sorted({way for way, _ in counts})
    lines = [f"{'':20}" + "".join(f"{status:>10}" for status in statuses)]
    lines += [f"{way:20}" + "".join(f"{counts[way, s]:>10}" for s in statuses) for way in ways]
    return "\n".join(lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--shard", default="0/1", help="i/n: every n-th operator, from the i-th, counted from 0"
    )
    parser.add_argument(
        "--ways", default="forward", help="of forward, backward, dynamic, inplace, out, narrow, types, hard"
    )
    parser.add_argument("--samples", type=int, default=3, help="samples per operator, compiled together")
    parser.add_argument("--only", default="", help="operators, by commas; `nn.*` for a prefix")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one operator may take")
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no operator after this many seconds"
    )
    parser.add_argument("--results", type=Path, default=Path("operator_sweep.jsonl"))
    parser.add_argument("--failures", type=Path, default=Path("operator_failures.json"))
    return parser.parse_args()


def main() -> int:
    chosen = parse_arguments()
    finished: list[dict[str, Any]] = []
    if chosen.results.exists():
        finished = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    names = chosen_names(chosen.shard, chosen.only, {record["op"] for record in finished})
    pending: SimpleQueue[str] = SimpleQueue()
    for name in names:
        pending.put(name)
    done: SimpleQueue[list[dict[str, str]]] = SimpleQueue()
    settings = Settings(
        device=chosen.device,
        ways=chosen.ways,
        samples=chosen.samples,
        limit_s=chosen.limit,
        deadline=time.monotonic() + chosen.seconds,
    )
    threads = [threading.Thread(target=work, args=(pending, done, settings)) for _ in range(chosen.processes)]
    for thread in threads:
        thread.start()
    with chosen.results.open("a") as file:
        while any(thread.is_alive() for thread in threads) or not done.empty():
            try:
                outcomes = done.get(timeout=1.0)
            except Empty:
                continue
            finished += outcomes
            for outcome in outcomes:
                file.write(json.dumps(outcome) + "\n")
                if outcome["status"] not in GOOD:
                    print(
                        f"{outcome['status']:9} {outcome['op']} {outcome['way']} {outcome['dtype']}",
                        flush=True,
                    )
            file.flush()
    failures = [record for record in finished if record["status"] not in GOOD]
    chosen.failures.write_text(json.dumps(failures, indent=1))
    print(table(finished))
    left = pending.qsize()
    if left:
        print(f"{left} operators are left; the same command goes on with them")
    print(f"{len(failures)} failures, in {chosen.failures}; all outcomes in {chosen.results}")
    return 1 if failures or (left and time.monotonic() < settings.deadline) else 0


if __name__ == "__main__":
    raise SystemExit(main())
