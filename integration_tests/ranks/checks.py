"""What ranks check: curves of losses, random programs, kernels that are compiled once, ranks that die."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from coilwork_runtime.cpp import cpp_builder as cpp_build
from coilwork_runtime.triton_kernels.compilation import WorkerPool
from integration_tests.fuzz.collectives import DRIVERS, EagerRefusal, check
from integration_tests.fuzz.flights import draw
from integration_tests.ranks.cases import CASES, scale_for
from integration_tests.ranks.comparing import compare, compile_with
from integration_tests.ranks.dtensor_programs import draw_program, run_program
from integration_tests.ranks.world import Rank


def compare_curve(me: Rank, *, case: str, steps: int) -> dict[str, Any]:
    """Losses of a case beside eager's and float64's: the fields of `Compared`, and `error` if they differ."""
    found = CASES[case]
    scale = scale_for(found, me.device.type, measured=False)
    slow_s = found.slow_s if me.rank == me.ranks - 1 else 0.0
    compared = compare(me, found.build, scale, steps=steps, half=found.is_half, slow_s=slow_s)
    wrong = (
        ""
        if compared.is_right
        else f"losses are {compared.worst:.1e} from float64's, eager's {compared.eager_worst:.1e}"
    )
    return asdict(compared) | {"error": wrong}


def run_flights(me: Rank, *, seeds: Sequence[int]) -> dict[str, Any]:
    """Programs with collectives in flight beside eager, each driver in turn."""
    if "flights" not in me.kept:
        me.kept["flights"] = dist.new_group(list(range(me.ranks))).group_name
    groups = dist.group.WORLD.group_name, me.kept["flights"]
    has_exchanges = hasattr(torch.ops._c10d_functional, "batch_p2p_ops")
    # a C++ program for a GPU takes ten times as long to build as all else
    drivers = [one for one in DRIVERS if not me.is_cuda or one.get("wrapper") != "cpp"]
    started, refused, errors = 0, 0, list[str]()
    for seed in seeds:
        program = draw(seed, me.ranks, on_streams=me.is_cuda, exchanges=has_exchanges)
        try:
            error = check(program, groups, me.rank, drivers[seed % len(drivers)], device=me.device)
        except EagerRefusal:
            refused += 1
            continue
        started += program.collectives
        errors += [f"seed {seed}: {error}"] if error else []
        # a rank that compiles slower is waited for here, where no collective has begun
        me.meet()
    done = len(seeds) - refused
    return {"programs": done, "refused": refused, "collectives": started, "error": "; ".join(errors)}


def run_dtensors(me: Rank, *, seeds: Sequence[int]) -> dict[str, Any]:
    """Programs of DTensors beside eager, forward and backward."""
    mesh = init_device_mesh(me.device.type, (me.ranks,))
    ours, eager = compile_with("coilwork", strict=True), compile_with("eager")
    errors, done = list[str](), 0
    for seed in seeds:
        text = draw_program(seed)
        try:
            exact = run_program(text, mesh, eager, seed, torch.float64)
            plain = run_program(text, mesh, eager, seed, torch.float32)
        except (RuntimeError, ValueError, NotImplementedError):
            # what DTensor refuses, all ranks are refused
            continue
        torch._dynamo.reset()
        found = run_program(text, mesh, ours, seed, torch.float32)
        done += 1
        for got, close, right in zip(found, plain, exact, strict=True):
            # the numbers that a program starts from are of size 1: less is what rounding has left of them
            size = max(1.0, float(right.abs().max()))
            worst, eager_worst = (float((one - right).abs().max()) / size for one in (got, close))
            if not worst <= 4 * eager_worst + 1e-5:
                errors.append(f"seed {seed}: {worst:.1e} from float64, eager {eager_worst:.1e}\n{text}")
    return {"programs": done, "error": "; ".join(errors)}


# ---- kernels compiled once ----


@contextlib.contextmanager
def _count_compilations() -> Iterator[list[str]]:
    """A list that gets an entry for each kernel that this process has compiled."""
    made: list[str] = []
    library, triton = cpp_build.compile_library, WorkerPool.compile

    def compile_library(*given: Any, **more: Any) -> Any:
        made.append("cpp")
        return library(*given, **more)

    def compile_triton(*given: Any, **more: Any) -> Any:
        made.append("triton")
        return triton(*given, **more)

    with (
        mock.patch.object(cpp_build, "compile_library", compile_library),
        mock.patch.object(WorkerPool, "compile", compile_triton),
    ):
        yield made


def _several_kernels(x: Tensor) -> Any:
    y = (x.sin() * 2).softmax(-1)
    z = (y @ x).cos().cumsum(0)
    return y.sum(0).exp(), z.mean(1), (z - z.amax(1, keepdim=True)).tanh()


def count_compilations(me: Rank) -> dict[str, Any]:
    """How often all ranks together compile the kernels of one function, and how often one rank alone does."""
    x = torch.randn(64, 64, device=me.device)
    counts = []
    for alone in (False, True):
        folders: list[Any] = [tempfile.mkdtemp()]
        if not alone:
            dist.broadcast_object_list(folders, 0)
        me.meet()
        torch._dynamo.reset()
        if not alone or me.rank == 0:
            with _count_compilations() as made:
                compile_with("coilwork", strict=True, cache_dir=folders[0])(_several_kernels)(x)
        else:
            made = []
        each: list[Any] = [None] * me.ranks
        dist.all_gather_object(each, len(made))
        counts.append(sum(each))
    together, one = counts
    wrong = "" if together == one > 0 else f"{together} compilations on {me.ranks} ranks, {one} on one"
    return {"together": together, "alone": one, "error": wrong}


# ---- a rank that dies ----


def die(me: Rank, *, rank: int, after: int) -> dict[str, Any]:
    """Sum over ranks in a compiled function, again and again; `rank` ends its process in call `after`."""
    name = dist.group.WORLD.group_name

    def function(x: Tensor) -> Tensor:
        ops: Any = torch.ops._c10d_functional
        g = ops.all_reduce(x.sin(), "sum", name)
        y = (x @ x).cos()
        result: Tensor = ops.wait_tensor(g) + y
        return result

    compiled = compile_with("coilwork", strict=True)(function)
    x = torch.randn(64, 64, device=me.device)
    for number in range(after + 3):
        if me.rank == rank and number == after:
            # as a crash does: nothing is cleaned up
            os._exit(3)
        compiled(x).sum().item()
    return {}


def meet(me: Rank) -> dict[str, Any]:
    """Wait for all ranks."""
    me.meet()
    return {}
