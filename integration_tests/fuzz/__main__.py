"""Random programs through every level of the compiler, beside eager.

    python -m integration_tests.fuzz --count 200 --seconds 300
    python -m integration_tests.fuzz --seed 4711            one program, with its source
    python -m integration_tests.fuzz --interpreted          decisions for a CPU and a GPU; builds nothing
    python -m integration_tests.fuzz --first 100000 --count 5000 --findings fuzz.jsonl

A seed stands for one program. Programs run in worker processes, many in each; one that dies or does not
answer counts as a failure of the program that it was at, and another goes on behind it. What fails is shrunk
and printed as a script. Exit status 1 if anything failed.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from integration_tests.fuzz.generate import generate

PER_PROCESS = 250
# Threads of OpenMP that wait would keep a core busy until the others come, which share it.
PATIENT = {"OMP_WAIT_POLICY": "passive"}
START_LIMIT_S = 120.0


class Worker:
    """A process at the seeds from `first` on."""

    def __init__(self, first: int, count: int, shrinking_s: float, more: Sequence[str]) -> None:
        # fmt: off
        self._process = subprocess.Popen(
            [sys.executable, "-m", "integration_tests.fuzz.worker", "--first", str(first), "--count",
            str(count),
             "--shrinking", str(shrinking_s), *more],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
            env={**PATIENT, **os.environ, **({"TRITON_INTERPRET": "1"} if "--triton" in more else {})},
        )
        # fmt: on

    def answer(self, limit_s: float) -> dict[str, Any] | str:
        """The next record, or "died" or "timeout"."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                return "timeout"
        line = self._process.stdout.readline()
        found: dict[str, Any] | str = json.loads(line) if line else "died"
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _source(seed: int) -> str:
    """The program's, if drawing it ends: that may be what a worker died of."""
    drawing = [
        sys.executable,
        "-c",
        f"from integration_tests.fuzz.generate import generate; print(generate({seed}).source())",
    ]
    try:
        drawn = subprocess.run(drawing, capture_output=True, text=True, timeout=START_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        return f"# seed {seed} cannot be drawn: {error}"
    return drawn.stdout


def findings(
    first: int, count: int, *, seconds: float, limit_s: float, shrinking_s: float, more: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """A record per program, until the time is up; the last may take up to `limit_s` beyond it. `more` is for
    the workers.
    """
    deadline = time.monotonic() + seconds
    seed, end = first, first + count
    while seed < end and time.monotonic() < deadline:
        amount = min(PER_PROCESS, end - seed)
        worker = Worker(seed, amount, shrinking_s, more)
        try:
            limit, stop = START_LIMIT_S, seed + amount
            while seed < stop and time.monotonic() < deadline:
                answer = worker.answer(limit)
                if isinstance(answer, str):
                    kind = "crash" if answer == "died" else "timeout"
                    yield {"seed": seed, "kind": kind, "detail": answer, "script": _source(seed)}
                    seed += 1
                    break
                limit = limit_s + shrinking_s
                if "start" not in answer:
                    yield answer
                    seed += 1
        finally:
            worker.stop()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=200, help="programs")
    parser.add_argument("--seed", type=int, help="this program alone; prints its source")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no program after this many seconds")
    parser.add_argument("--limit", type=float, default=90.0, help="seconds that one program may take")
    parser.add_argument(
        "--shrinking", type=float, default=60.0, help="seconds for shrinking one program; 0 not to"
    )
    parser.add_argument(
        "--device", default="cpu", help="cuda: generated code alone, as interpreters have no GPU"
    )
    parser.add_argument(
        "--interpreted",
        action="store_true",
        help="by interpreters alone: nothing is built, three times as quick",
    )
    parser.add_argument(
        "--triton",
        action="store_true",
        help="generated code is Triton's, as for an accelerator, in its interpreter",
    )
    parser.add_argument("--findings", type=Path, help="append all records to this file, as lines of JSON")
    return parser.parse_args()


def main() -> int:
    chosen = parse_arguments()
    first, count = (chosen.first, chosen.count) if chosen.seed is None else (chosen.seed, 1)
    if chosen.seed is not None:
        print(generate(chosen.seed).source())
    kinds: Counter[str] = Counter()
    failed: list[int] = []
    started = time.monotonic()
    records = findings(
        first,
        count,
        seconds=chosen.seconds,
        limit_s=chosen.limit,
        shrinking_s=chosen.shrinking,
        more=[
            *("--device", chosen.device),
            *(f"--{name}" for name in ("interpreted", "triton") if getattr(chosen, name)),
        ],
    )
    for record in records:
        kinds[record["kind"]] += 1
        if chosen.findings is not None:
            with chosen.findings.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if "script" in record:
            failed.append(record["seed"])
            print(f"seed {record['seed']}: {record['kind']} {record.get('level', '')}\n{record['detail']}")
            print(record["script"], flush=True)
    done = sum(kinds.values())
    print(
        f"{done} programs in {time.monotonic() - started:.0f} s, seeds {first} to {first + done - 1}: "
        + ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    )
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
