"""Runs programs with collectives in flight (`flights.py`) beside eager: over gloo, or with a group that does
everything at the wait.

    python -m integration_tests.fuzz.collectives --ranks 2 3 4 --count 500      over gloo, 500 in all
    python -m integration_tests.fuzz.collectives --delayed --count 100          in one process
    python -m integration_tests.fuzz.collectives --delayed --first 17 --count 1 --show

One set of processes serves many programs. In one process each fault shows. Exit status 1 if a program failed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from integration_tests.delayed_group import RANKS, DelayedGroup, delayed_group
from integration_tests.fuzz.flights import Flights, draw

RUNS = 2
CPU = torch.device("cpu")
# over gloo without a wrapper named, one program after the other
DRIVERS: tuple[dict[str, Any], ...] = (
    {}, {"wrapper": "cpp"}, {"executor": "python"}, {}, {"wrapper": "fx"}, {}, {"executor": "python"},
    {"wrapper": "fx"},
)  # fmt: skip
PROGRESS = 25
PATIENCE = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a program: nothing was wrong if `error` is empty."""

    seed: int
    ranks: int
    collectives: int
    error: str = ""


class EagerRefusal(Exception):
    """Eager mode refuses a program, on all ranks alike: NCCL takes no operand that is not contiguous."""


def _function(program: Flights, groups: tuple[str, str], rank: int) -> Any:
    scope: dict[str, Any] = {
        "torch": torch,
        "ops": torch.ops._c10d_functional,
        "group": groups[0],
        "other": groups[1],
        "rank": rank,
    }
    exec(compile(program.source, f"<flights {program.seed}>", "exec"), scope)
    return scope["f"]


def _inputs(program: Flights, rank: int, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * program.seed + rank)
    return [torch.randn(shape, generator=generator).to(device) for shape in program.inputs]


def _results(function: Any, program: Flights, inputs: Sequence[Tensor]) -> list[Tensor]:
    """All that `function` returns, waited for, and what has become of the inputs."""
    returned = list(function(*inputs))
    for place in program.unwaited:
        returned[place] = torch.ops._c10d_functional.wait_tensor(returned[place])
    return [result.clone() for result in (*returned, *inputs)]


def check(
    program: Flights,
    groups: tuple[str, str],
    rank: int,
    options: dict[str, Any],
    delayed: DelayedGroup | None = None,
    *,
    device: torch.device = CPU,
) -> str:
    """What is wrong with `program`, compiled; empty if nothing.

    Raises:
        EagerRefusal: there is nothing to compare with.
    """
    function = _function(program, groups, rank)
    if delayed is not None:
        delayed.holds = True
    try:
        expected = _results(function, program, _inputs(program, rank, device))
    except RuntimeError as error:
        raise EagerRefusal(str(error)) from error
    torch._dynamo.reset()
    compiled = torch.compile(
        function,
        backend="coilwork",
        fullgraph=program.whole,
        dynamic=program.dynamic,
        options={"strict": True, "verify": True, **options},
    )
    if delayed is not None:
        # the program alone has to keep what is in flight; what it returns in flight, nobody can keep
        delayed.holds = bool(program.unwaited)
    for number in range(RUNS):
        found = _results(compiled, program, _inputs(program, rank, device))
        for place, (got, wanted) in enumerate(zip(found, expected, strict=True)):
            close = torch.allclose(got, wanted, rtol=1e-3, atol=1e-3 * max(1.0, float(wanted.abs().max())))
            if got.shape != wanted.shape or not close:
                return (
                    f"rank {rank}, run {number}: result {place} differs by "
                    f"{float((got - wanted).abs().max())}"
                )
    return ""


def run_delayed(seeds: Sequence[int], options: dict[str, Any]) -> Iterator[Outcome]:
    """Each of the programs in this process, with a group that does everything at the wait."""
    with delayed_group() as group:
        for seed in seeds:
            program = draw(seed, RANKS, delayed=True)
            try:
                error = check(program, ("0", "0"), 0, options, group)
            except Exception as raised:  # noqa: BLE001 - whatever it is, it is the program's outcome
                error = f"{type(raised).__name__}: {raised}"
            yield Outcome(seed, RANKS, program.collectives, error)


def _serve(
    rank: int, ranks: int, seeds: Sequence[int], options: dict[str, Any], store: str, queue: Any
) -> None:
    """One rank: every program, and what all ranks say of it after each."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=ranks, store=dist.FileStore(store, ranks), timeout=PATIENCE
    )
    groups = dist.group.WORLD.group_name, dist.new_group(list(range(ranks))).group_name
    try:
        for seed in seeds:
            program = draw(seed, ranks)
            try:
                error = check(program, groups, rank, options or DRIVERS[seed % len(DRIVERS)])
            except Exception as raised:
                # the others are waiting for what this rank has not done
                queue.put(
                    Outcome(
                        seed, ranks, program.collectives, f"rank {rank}: {type(raised).__name__}: {raised}"
                    )
                )
                raise
            errors: list[Any] = [None] * ranks
            dist.all_gather_object(errors, error)
            if rank == 0:
                queue.put(Outcome(seed, ranks, program.collectives, "; ".join(filter(None, errors))))
    finally:
        dist.destroy_process_group()


def run_gloo(ranks: int, seeds: Sequence[int], options: dict[str, Any], limit_s: float) -> Iterator[Outcome]:
    """Each of the programs over so many processes, as many as are through after `limit_s`."""
    left, end = list(seeds), time.monotonic() + limit_s
    context = mp.get_context("spawn")
    while left and time.monotonic() < end:
        with tempfile.NamedTemporaryFile() as store:
            queue = context.Queue()
            group = mp.spawn(
                _serve, (ranks, left, options, f"{store.name}.store", queue), nprocs=ranks, join=False
            )
            try:
                while left and time.monotonic() < end:
                    outcome = queue.get(timeout=2 * PATIENCE.total_seconds())
                    yield outcome
                    left = left[left.index(outcome.seed) + 1 :]
                    if outcome.error.startswith("rank") and "run" not in outcome.error:
                        break
            finally:
                for process in group.processes:
                    process.terminate()
                for process in group.processes:
                    process.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="integration_tests.fuzz.collectives")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2])
    parser.add_argument(
        "--delayed", action="store_true", help="in one process, with a group that does everything at the wait"
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=50, help="programs, over all numbers of ranks")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--wrapper", default="")
    parser.add_argument("--show", action="store_true", help="print the programs")
    given = parser.parse_args(arguments)
    options = (
        {"executor": "python"}
        if given.wrapper == "module"
        else {"wrapper": given.wrapper}
        if given.wrapper
        else {}
    )
    done = failed = started = 0
    for number, ranks in enumerate([RANKS] if given.delayed else given.ranks):
        share = given.count if given.delayed else len(range(number, given.count, len(given.ranks)))
        seeds = range(given.first, given.first + share)
        outcomes = (
            run_delayed(seeds, options)
            if given.delayed
            else run_gloo(ranks, seeds, options, given.seconds / len(given.ranks))
        )
        for outcome in outcomes:
            done, started = done + 1, started + outcome.collectives
            if outcome.error:
                failed += 1
            if outcome.error or given.show:
                print(f"seed {outcome.seed}, {ranks} ranks: {outcome.error or 'ok'}", flush=True)
                print(draw(outcome.seed, ranks, delayed=given.delayed).source, flush=True)
            if done % PROGRESS == 0:
                print(f"{done} programs, {started} collectives, {failed} failed", file=sys.stderr, flush=True)
    print(f"{done} programs, {started} collectives, {failed} failed", flush=True)
    return int(bool(failed) or not done)


if __name__ == "__main__":
    sys.exit(main())
