"""Runs the programs of `flight_programs.py` beside eager, in one process per rank for all of them and all
drivers.

    python -m integration_tests.flight_runs                              over gloo
    python -m integration_tests.flight_runs --device cuda coalesced      over NCCL and two GPUs

On GPUs the programs of `stream_programs.py` run, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed, TorchRuntimeError

from integration_tests import stream_programs
from integration_tests.flight_programs import PROGRAMS, RANKS, ROWS, FlightProgram, Groups

DRIVERS: Mapping[str, dict[str, Any]] = {
    "native": {"executor": "native"},
    "python": {"executor": "python"},
    "fx": {"wrapper": "fx"},
    "cpp": {"wrapper": "cpp"},
}
# on a GPU enough that communication takes a while
COLUMNS = {"cpu": ROWS, "cuda": 1024}
# there, after a few calls, stretches of work go to the driver as one
CALLS = {"cpu": 2, "cuda": 12}
# ranks that share two cores with others may wait long for a compile of the other one
PATIENCE = timedelta(seconds=120)


def programs_on(device: str) -> list[FlightProgram]:
    """The programs that run on `device`, `"cpu"` or `"cuda"`, under this torch."""
    there = (*PROGRAMS, *(stream_programs.PROGRAMS if device == "cuda" else ()))
    return [program for program in there if program.is_there()]


def _inputs(rank: int, size: int, program: FlightProgram, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(17 + rank)
    columns = COLUMNS[device]
    made = [torch.randn(rows, columns, generator=generator) for rows in (size, columns)]
    made[1] *= columns**-0.5
    return [one.to(device).requires_grad_(program.differentiates) for one in made]


def _run(function: Any, program: FlightProgram, size: int, groups: Groups, device: str) -> list[Tensor]:
    given = _inputs(groups.rank, size, program, device)
    returned = function(*given, groups)
    if program.differentiates:
        return [returned.detach(), *torch.autograd.grad(returned, given)]
    return [*(torch.ops._c10d_functional.wait_tensor(one).clone() for one in returned), *given]


def _compare(program: FlightProgram, groups: Groups, options: dict[str, Any], device: str) -> str:
    """What is wrong with `program`, compiled; empty if nothing.

    What torch's own tracing refuses is eager's, with a warning, unless users ask for an error by `strict`.
    What Dynamo cannot run with fake tensors, as `pin_memory` in torch 2.11, it refuses for every backend:
    there is nothing to compare.
    """
    sizes = (ROWS, 2 * ROWS, 3 * ROWS) if program.dynamic else (ROWS,) * CALLS[device]
    expected = [_run(program.function, program, size, groups, device) for size in sizes]
    compiled = _compile(program, "coilwork", strict=True, verify=True, **options)
    try:
        _run(compiled, program, sizes[0], groups, device)
    except (BackendCompilerFailed, TorchRuntimeError) as error:
        if _is_traced(program, sizes[0], groups, device):
            raise
        if isinstance(error, TorchRuntimeError):
            return ""
        compiled = _compile(program, "coilwork", **options)
    for size, wanted in zip(sizes, expected, strict=True):
        found = _run(compiled, program, size, groups, device)
        try:
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        except AssertionError as error:
            return str(error)
    return ""


def _is_traced(program: FlightProgram, size: int, groups: Groups, device: str) -> bool:
    try:
        _run(_compile(program, "aot_eager"), program, size, groups, device)
    except (BackendCompilerFailed, TorchRuntimeError):
        return False
    return True


def _compile(program: FlightProgram, backend: str, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(
        program.function,
        backend=backend,
        fullgraph=program.whole,
        dynamic=program.dynamic,
        options=options or None,
    )


def _serve(
    rank: int, names: Sequence[str], drivers: Sequence[str], device: str, store: str, queue: Any
) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        rank=rank,
        world_size=RANKS,
        store=dist.FileStore(store, RANKS),
        timeout=PATIENCE,
    )
    alone = [dist.new_group([one]) for one in range(RANKS)][rank]
    groups = Groups(dist.group.WORLD, dist.new_group(list(range(RANKS))), alone, rank)
    try:
        for program in programs_on(device):
            for driver in drivers:
                if program.name not in names:
                    continue
                try:
                    error = _compare(program, groups, DRIVERS[driver], device)
                except Exception as raised:  # noqa: BLE001 - whatever it is, it is the program's outcome
                    error = f"{type(raised).__name__}: {raised}"
                    traceback.print_exc()
                errors: list[Any] = [None] * RANKS
                dist.all_gather_object(errors, error)
                if rank == 0:
                    queue.put((program.name, driver, "\n".join(filter(None, errors))))
    finally:
        dist.destroy_process_group()


def run(
    names: Sequence[str] = (),
    drivers: Sequence[str] = tuple(DRIVERS),
    *,
    device: str = "cpu",
    limit_s: float = 400.0,
) -> Iterator[tuple[str, str, str]]:
    """Name, driver and error of each program that was through after `limit_s`."""
    wanted = names or [program.name for program in programs_on(device)]
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.NamedTemporaryFile() as store:
        processes = [
            context.Process(
                target=_serve, args=(rank, wanted, drivers, device, store.name, queue), daemon=True
            )
            for rank in range(RANKS)
        ]
        for process in processes:
            process.start()
        end, left = time.monotonic() + limit_s, len(wanted) * len(drivers)
        try:
            while left and time.monotonic() < end:
                if not queue.empty():
                    yield queue.get()
                    left -= 1
                elif any(process.exitcode not in (None, 0) for process in processes):
                    break
                else:
                    time.sleep(0.02)
        finally:
            for process in processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--drivers", nargs="+", default=list(DRIVERS))
    parser.add_argument("--device", choices=COLUMNS, default="cpu")
    arguments = parser.parse_args()
    for name, driver, error in run(arguments.names, arguments.drivers, device=arguments.device):
        print(f"{name} [{driver}] {error or 'ok'}", flush=True)
