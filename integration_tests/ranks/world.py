"""Processes that are the ranks of one group, start once, and run one task after the other.

A task is the dotted name of a function `(Rank, **arguments) -> answer`. Every rank runs it, and sends what it
returns, or the text of what it raises. A rank that raises, dies or hangs leaves the others waiting in a
collective, so the world ends then, and the next task starts another.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing.connection
import os
import signal
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# after one rank's failure, how long the others get to notice
GRACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a world, as tasks see it.

    Attributes:
        kept: what tasks of this process leave for later ones, by name.
    """

    rank: int
    ranks: int
    device: torch.device
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)

    def meet(self) -> None:
        """Wait for this rank's device and for the other ranks."""
        self.synchronize()
        dist.barrier(device_ids=[self.device.index] if self.is_cuda else None)
        self.synchronize()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a task.

    Attributes:
        answers: of each rank; None of one that has none.
        errors: what went wrong on each rank; empty if nothing, or if it still hangs.
        error: what went wrong first.
        seconds: from the request to the last answer.
    """

    answers: tuple[Any, ...]
    errors: tuple[str, ...]
    error: str
    seconds: float


class World:
    """`ranks` processes over NCCL (`device` is `"cuda"`, a GPU each) or gloo (`"cpu"`).

    A collective that takes longer than `patience_s` is an error in its rank.
    """

    def __init__(self, ranks: int, device: str, *, patience_s: float = 120.0) -> None:
        self.ranks = ranks
        self.device = device
        self.starts = 0
        self._patience_s = patience_s
        self._processes: list[Any] = []
        self._pipes: list[Any] = []
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()

    def run(
        self, task: str, arguments: Mapping[str, Any], *, limit_s: float, grace_s: float = GRACE_S
    ) -> Outcome:
        """Run `task`, `"module:function"`, on every rank, at most `limit_s`, and `grace_s` from the first
        error on. If a rank then has no answer, all end."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((task, dict(arguments)))
        start, answers, errors = time.monotonic(), [None] * self.ranks, [""] * self.ranks
        end, error, missing, dead = start + limit_s, "", set(range(self.ranks)), False
        while missing and (left := end - time.monotonic()) > 0:
            ready = multiprocessing.connection.wait([self._pipes[rank] for rank in missing], left)
            for rank in [rank for rank in missing if self._pipes[rank] in ready]:
                missing.discard(rank)
                try:
                    answers[rank], raised = self._pipes[rank].recv()
                except (EOFError, ConnectionError):
                    self._processes[rank].join(GRACE_S)
                    raised, dead = f"died with exit status {self._processes[rank].exitcode}", True
                errors[rank] = raised
                if raised and not error:
                    error = f"rank {rank}: {raised}"
                    end = min(end, time.monotonic() + grace_s)
        for rank in missing:
            # it says on stderr where it hangs
            os.kill(self._processes[rank].pid, signal.SIGUSR1)
            self._processes[rank].join(0.5)
        if missing and not error:
            error = f"no answer of ranks {sorted(missing)} after {limit_s:.0f} s"
        # if all have raised, none is left in a collective
        if missing or dead or (error and not all(errors)):
            self.end()
        return Outcome(tuple(answers), tuple(errors), error, time.monotonic() - start)

    def end(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self.starts += 1
        context = mp.get_context("spawn")
        self._folder = TemporaryDirectory()
        for rank in range(self.ranks):
            here, there = context.Pipe()
            given = (rank, self.ranks, self.device, str(Path(self._folder.name, "store")), self._patience_s)
            process = context.Process(target=_serve, args=(*given, there), daemon=False)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)


def _serve(rank: int, ranks: int, device: str, store: str, patience_s: float, pipe: Any) -> None:
    """Be one rank: answer requests until the pipe ends."""
    warnings.simplefilter("ignore")
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    torch.set_num_threads(1)
    here = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(here)
        # a collective that times out ends the process at once, instead of collecting what all ranks did
        os.environ.update({"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"})
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        rank=rank,
        world_size=ranks,
        store=dist.FileStore(store, ranks),
        timeout=timedelta(seconds=patience_s),
        device_id=here if device == "cuda" else None,
    )
    # many models share functions, and none of their graphs may be given up for that
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1000
    me = Rank(rank, ranks, here)
    while True:
        try:
            task, arguments = pipe.recv()
        except (EOFError, ConnectionError):
            os._exit(0)
        module, _, name = task.partition(":")
        try:
            answer, raised = getattr(importlib.import_module(module), name)(me, **arguments), ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the task's outcome
            answer, raised = None, f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-6)}"
        pipe.send((answer, raised))
