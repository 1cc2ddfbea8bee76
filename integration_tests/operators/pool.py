"""Worker processes of a sweep. They survive what an operator does: who dies or takes too long is replaced,
and told of.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from integration_tests.operators.parts import Part, Parts

START_LIMIT_S = 180.0
# A process that has compiled this many units has a large heap, and makes room for a fresh one.
MOST_UNITS = 250
NEW_CONTEXT = ("crash", "died", "timeout")
COMMAND = [sys.executable, "-m", "integration_tests.operators.worker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What every worker is told, how long a few samples may take, when to stop taking units, and who builds
    kernels for a worker.
    """

    device: str
    samples: int
    limit_s: float
    deadline: float
    builders: int = 1


@dataclass(slots=True)
class Answer:
    """What a worker said to a part: `status` is "done", "unfinished", or what became of the process at sample
    `at`.

    `of` is how many samples the unit has, 0 if that was not told.
    """

    status: str
    at: str = ""
    of: int = 0
    outcomes: list[dict[str, Any]] = field(default_factory=list)


class Worker:
    """One process that checks operators."""

    def __init__(self, settings: Settings) -> None:
        # fmt: off
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(
            [*COMMAND, "--device", settings.device, "--samples", str(settings.samples)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, bufsize=0,
            env=os.environ | {"COILWORK_WORKERS": str(settings.builders), "OMP_NUM_THREADS": "1"},
        )
        # fmt: on
        self._unread = b""
        self._is_at_its_end = False
        self.units = 0
        ready = self._line(START_LIMIT_S)
        if ready is None:
            reason = self.last_words()
            self.stop()
            raise RuntimeError(f"a worker does not start: {reason}")
        self.place: str = json.loads(ready)["place"]

    def ask(
        self,
        part: Part,
        settings: Settings,
        *,
        samples_known: Callable[[int], None] = lambda samples: None,
        alone: bool = False,
    ) -> Answer:
        """The worker's answer; afterwards a process that died or took too long is stopped.

        `samples_known` is called with how many samples the unit has, before they are checked.

        Each sign of progress, samples that are compiled together, has `limit_s` to itself: a unit of hundreds
        of samples takes its time. One that is at it still so long after the deadline is "unfinished".
        """
        assert self._process.stdin is not None
        self.units += 1
        at, of = "", 0
        last = settings.deadline + settings.limit_s
        try:
            self._process.stdin.write(f"{part.unit.key} {part.first} {'alone' if alone else ''}\n".encode())
        except BrokenPipeError:
            self.stop()
            return Answer("died")
        while (line := self._line(min(settings.limit_s, last - time.monotonic()))) is not None:
            said = json.loads(line)
            if "outcomes" in said:
                return Answer("done", at, of, said["outcomes"])
            if "of" in said:
                of = said["of"]
                samples_known(of)
            else:
                at = said["at"]
        if self._is_at_its_end:
            status, words = "died", self.last_words()
        else:
            status, words = ("unfinished" if time.monotonic() >= last else "timeout"), ""
        self.stop()
        return Answer(status, f"{at} {words}".strip(), of)

    def last_words(self) -> str:
        """The end of what the process wrote to stderr."""
        self._complaints.seek(0, os.SEEK_END)
        self._complaints.seek(max(0, self._complaints.tell() - 300))
        return self._complaints.read().decode(errors="replace").strip()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._complaints.close()

    def _line(self, limit_s: float) -> bytes | None:
        """The next line; None at the end of the stream, or if none comes in time."""
        assert self._process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self._process.stdout, selectors.EVENT_READ)
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                self._is_at_its_end = True
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line


def work(pending: Parts, done: SimpleQueue[list[dict[str, Any]]], settings: Settings) -> None:
    """One thread: takes parts until there are none or time is up, and puts the outcomes of each."""
    worker: Worker | None = None
    while time.monotonic() < settings.deadline:
        part = pending.take()
        if part is None:
            break
        tell = partial(pending.tell, part)
        started = time.monotonic()
        try:
            worker = worker or Worker(settings)
            answer = worker.ask(part, settings, samples_known=tell)
            if answer.status in ("died", "timeout"):
                # Once more, sample by sample: which one is it, and is it the unit's fault or that of those
                # before it?
                worker = Worker(settings)
                answer = worker.ask(part, settings, samples_known=tell, alone=True)
        finally:
            tell(0)
        if answer.status == "unfinished":
            pending.give_back(part)
            return
        outcomes, place = answer.outcomes, worker.place
        if answer.status != "done":
            worker = None
            outcomes = [_outcome(part, answer)]
        elif worker.units >= MOST_UNITS or any(one["status"] in NEW_CONTEXT for one in outcomes):
            # A GPU's context does not outlive an illegal access.
            worker.stop()
            worker = None
        seconds = f"{time.monotonic() - started:.1f}"
        told: dict[str, Any] = {"unit": part.unit.key, "seconds": seconds, "place": place}
        if answer.of:
            told |= {"first": part.first, "of": answer.of}
        done.put([{**one, **told} for one in outcomes])
    if worker is not None:
        worker.stop()


def _outcome(part: Part, answer: Answer) -> dict[str, Any]:
    return {
        "op": part.unit.op,
        "way": part.unit.way,
        "dtype": part.unit.dtype,
        "status": answer.status,
        "detail": "",
        "sample": answer.at,
        "samples": 0,
    }


def run(
    parts: Sequence[Part], settings: Settings, *, processes: int, finished: SimpleQueue[list[dict[str, Any]]]
) -> tuple[list[threading.Thread], Parts]:
    """Start `processes` threads that work through `parts`; they put outcomes into `finished`."""
    pending = Parts(parts)
    threads = [threading.Thread(target=work, args=(pending, finished, settings)) for _ in range(processes)]
    for thread in threads:
        thread.start()
    return threads, pending
