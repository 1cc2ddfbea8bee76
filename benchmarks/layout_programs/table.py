"""The table of all programs, measured by many processes that compile side by side.

    python -m benchmarks.layout_programs.table --output docs/layout-programs.md --results table.json

Each process compiles one case after another, by each backend, until none is left or `--seconds` have passed.
Then the cases are measured, one at a time. Without `--cases` there is one for each combination of
`--programs`, `--modes`, `--precisions` and `--orders`; its text is `convnext/train/bf16/own`. `--backends`
may name more than the three, as `inductor-max` with its widest search. `--from` makes the page from results
of earlier commands instead; of several for a case and a backend the last counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from benchmarks.layout_programs.cases import Case, list_cases
from benchmarks.layout_programs.programs import PROGRAMS, Precision
from benchmarks.layout_programs.table_page import make_page
from benchmarks.layout_programs.table_worker import BACKENDS
from benchmarks.machine import machine_description
from benchmarks.session import ROOT, cache_variables

WORKER: Final = "benchmarks.layout_programs.table_worker"
# Seconds for which those that still compile are waited for.
_GRACE: Final = 30.0
_LONGEST_S: Final = 60.0

Said = dict[str, Any]


class Process:
    """A process of `table_worker`. What it says is put into `heard`, beside its number."""

    def __init__(
        self,
        number: int,
        folder: Path,
        heard: queue.Queue[tuple[int, Said | None]],
        backends: Sequence[str] = BACKENDS,
    ) -> None:
        self.number = number
        paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        threads = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "COILWORK_WORKERS": "1", "OMP_NUM_THREADS": "1"}
        folder.mkdir()
        environment = {**os.environ, **cache_variables(folder), **threads, "PYTHONPATH": paths}
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER, *backends],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder.parent / f"{folder.name}.log").open("w"),
            text=True,
            env=environment,
        )
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: queue.Queue[tuple[int, Said | None]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard.put((self.number, json.loads(line)))
        heard.put((self.number, None))

    def tell(self, *words: str) -> None:
        """Tell the process to `compile` or to `measure` a case."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # that it ended is heard
            print(*words, file=self._process.stdin, flush=True)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def measure(
    cases: Sequence[str], processes: int, seconds: float, backends: Sequence[str] = BACKENDS
) -> Iterator[dict[str, Said]]:
    """Yield what is found so far after each case, in `processes` that compile for at most so many seconds."""
    heard: queue.Queue[tuple[int, Said | None]] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(min(processes, len(cases)))
        workers = [Process(n, Path(folder) / str(n), heard, backends) for n in numbers]
        try:
            found, owners = _compile_all(cases, workers, heard, time.monotonic() + seconds)
            for _ in _measure_all(found, owners, workers, heard, backends):
                yield found
        finally:
            for worker in workers:
                worker.end()


def _compile_all(
    cases: Sequence[str],
    workers: Sequence[Process],
    heard: queue.Queue[tuple[int, Said | None]],
    until: float,
) -> tuple[dict[str, Said], dict[str, int]]:
    """Return what compiling found of each case, and which process has it."""
    left, busy, owners = list(cases), {}, dict[str, int]()
    found: dict[str, Said] = {case: {"failed": "not compiled in time"} for case in cases}
    for worker in workers:
        busy[worker.number] = left.pop(0)
        worker.tell("compile", busy[worker.number])
    while busy:
        try:
            number, said = heard.get(timeout=max(0.0, until + _GRACE - time.monotonic()))
        except queue.Empty:
            break
        case = busy.pop(number)
        if said is None:
            found[case] = {"failed": "its process ended"}
            continue
        found[case], owners[case] = said, number
        print(f"{case}: {json.dumps(said['seconds'])}", flush=True)
        if left and time.monotonic() < until:
            busy[number] = left.pop(0)
            workers[number].tell("compile", busy[number])
    late = {case: number for case, number in owners.items() if number in busy}
    order = *_in_turns({case: owners[case] for case in owners.keys() - late}), *_in_turns(late)
    return found, {case: owners[case] for case in order}


def _measure_all(
    found: Mapping[str, Said],
    owners: Mapping[str, int],
    workers: Sequence[Process],
    heard: queue.Queue[tuple[int, Said | None]],
    backends: Sequence[str],
) -> Iterator[str]:
    """Add the times of kernels to what is `found`, and yield each case when that is done.

    While one process reads its profile, another has the GPU.
    """
    waiting = {(case, backend) for case in owners for backend in backends if f"{backend} MB" in found[case]}
    # of neighbours in the order, which are of different processes, one after another
    order = sorted(waiting, key=lambda pair: (list(owners).index(pair[0]) // len(workers), pair[1]))
    for pair in [*order, None]:
        if pair is not None:
            workers[owners[pair[0]]].tell("measure", *pair)
        while waiting:
            try:
                number, said = heard.get(timeout=_LONGEST_S)
            except queue.Empty:
                break
            if said and "backend" in said:
                case, backend = said["case"], said["backend"]
                found[case].setdefault("kernels", {})[backend] = said["kernels"]
                waiting.discard((case, backend))
                yield case
            elif said:
                found[said["case"]].update(said)
            elif said is None:
                waiting -= {each for each in waiting if owners[each[0]] == number}
            if not said and pair is not None and number == owners[pair[0]]:
                break


def _in_turns(owners: Mapping[str, int]) -> Iterator[str]:
    """Yield the cases of different processes in turns."""
    queues = {owner: [case for case in owners if owners[case] == owner] for owner in owners.values()}
    while any(queues.values()):
        for each in queues.values():
            if each:
                yield each.pop(0)


def main(arguments: list[str]) -> int:
    """Measure, and write what is found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layout_programs.table", description=__doc__)
    parser.add_argument("--programs", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--modes", nargs="+", choices=("train", "infer"), default=["train", "infer"])
    parser.add_argument("--precisions", nargs="+", choices=get_args(Precision), default=["bf16"])
    parser.add_argument("--orders", nargs="+", choices=("own", "last"), default=["own"])
    parser.add_argument("--cases", nargs="+", help="these instead, in this order")
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), help="the first says what is right")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=600.0, help="to compile for")
    parser.add_argument("--from", nargs="+", type=Path, dest="given", help="results to make the page from")
    parser.add_argument("--results", type=Path, help="file for all that is found, kernel by kernel")
    parser.add_argument("--output", type=Path, help="file for the page")
    asked = parser.parse_args(arguments)
    found: dict[str, Said] = {}
    machine: dict[str, str] = {}
    for path in asked.given or ():
        given = json.loads(path.read_text())
        machine = given["machine"]
        for case, said in given["cases"].items():
            if "kernels" in said:
                kernels = {**found.get(case, {}).get("kernels", {}), **said["kernels"]}
                found[case] = {**found.get(case, {}), **said, "kernels": kernels}
    if not asked.given:
        machine = machine_description("cuda")
        listed = list_cases(asked.programs, asked.modes, asked.precisions, asked.orders)
        cases = [str(Case.parse(text)) for text in asked.cases or map(str, listed)]
        for found in measure(cases, asked.processes, asked.seconds, asked.backends):
            if asked.results:
                asked.results.write_text(json.dumps({"machine": machine, "cases": found}))
    page = make_page(found, machine)
    print(page)
    if asked.output:
        asked.output.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
