"""Reductions of short runs of memory: which are reduced across them first, and that the numbers stay the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from declared import schedule
from graph_builder import Builder
from known_values import kernel_calls, number_of

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, evaluate, symbol
from coilwork_ir.kernels import KernelCall, Schedule
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import Decision
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.scalar import cast, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions

BF16, F32 = DType.BF16, DType.F32
H200 = get_target("sm_90")


def moments(
    build: Builder,
    n: Expr | int,
    c: int,
    h: int,
    w: int,
    *,
    dtype: DType = BF16,
    symbols: Sequence[Expr] = (),
) -> Graph:
    """Means and squared differences of each channel of images, channels first."""
    build.input("x", n, c, h, w, dtype=dtype)
    build.reduce(
        ["mean", "m2"],
        "welford",
        [c],
        [n, h, w],
        lambda i, a, b, d: cast(build.at("x", a, i, b, d), F32),
        dtype=F32,
    )
    return build.graph("mean", "m2", symbols=list(symbols))


def group_sums(build: Builder, n: int, points: int, groups: int, each: int, *, dtype: DType = BF16) -> Graph:
    """Sums and sums of products of groups of channels, which lie side by side."""
    for name in ("x", "g"):
        build.input(name, n, points, groups, each, dtype=dtype)
    at = build.at
    build.reduce(
        "sums", "sum", [n, groups], [points, each], lambda a, i, p, c: at("x", a, p, i, c), dtype=F32
    )
    build.reduce(
        "dots",
        "sum",
        [n, groups],
        [points, each],
        lambda a, i, p, c: op("mul", cast(at("x", a, p, i, c), F32), cast(at("g", a, p, i, c), F32)),
        dtype=F32,
    )
    return build.graph("sums", "dots")


def extents(made: Schedule, step: int) -> list[list[int]]:
    (kernel,) = (k for k in made.kernels if k.name == kernel_calls(made)[step].kernel)
    return [
        [number_of(r.symbol.extent) for r in kernel.ranges if r.kind == kind]
        for kind in ("parallel", "reduction")
    ]


def decisions(made: Schedule) -> list[Decision]:
    return [d for d in made.decisions if d.rule == "split-runs"]


def test_images_of_49_points_are_reduced_across_images_first(build: Builder) -> None:
    made = schedule(moments(build, 256, 2048, 7, 7), H200)
    verify_schedule(made)
    assert extents(made, 0) == [[2048 * 49], [256]]
    assert extents(made, 1) == [[2048], [49]]
    (decision,) = decisions(made)
    assert decision.accepted and dict(decision.numbers)["pieces"] == 49


def test_groups_of_10_channels_are_reduced_across_points_first(build: Builder) -> None:
    made = schedule(group_sums(build, 32, 4096, 32, 10), H200)
    verify_schedule(made)
    parallel, reduced = extents(made, 0)
    # enough pieces of the points to fill the device, each of them short
    assert parallel[-1] == 10 and reduced[0] <= 1024
    assert sum(isinstance(step, KernelCall) for step in made.steps) == 2


@pytest.mark.parametrize(
    "shape",
    [
        # 112 bytes are whole loads of 16 bytes
        (256, 2048, 8, 7),
        # 450 bytes waste little at their ends
        (256, 512, 15, 15),
        # little is read
        (8, 256, 7, 7),
    ],
)
def test_what_wide_loads_fit_or_is_small_stays(build: Builder, shape: tuple[int, ...]) -> None:
    made = schedule(moments(build, *shape), H200)
    assert not any(d.accepted for d in decisions(made))


def test_wide_elements_stay(build: Builder) -> None:
    assert not decisions(schedule(moments(build, 256, 2048, 7, 7, dtype=F32), H200))


def test_every_batch_is_served(build: Builder) -> None:
    n = symbol("n", lo=1)
    graph = moments(build, n, 16, 7, 7, symbols=[n])
    slow = replace(H200, bandwidth_gb_s=1.0, launch_us=1e-6)
    made = schedule(graph, slow, ScheduleOptions(size_hints=(("n", 4096),)))
    assert decisions(made)[0].accepted
    for batch in (1, 5, 130):
        agree(graph, made, {"n": batch})


@pytest.mark.parametrize("make", [moments, group_sums])
def test_splitting_changes_no_numbers(build: Builder, make: Callable[..., Graph]) -> None:
    graph = make(build, 70, 16, 7, 7) if make is moments else make(build, 4, 200, 16, 10)
    made = schedule(graph, replace(H200, bandwidth_gb_s=1.0, launch_us=1e-6))
    assert decisions(made)[0].accepted
    agree(graph, made, {})


def agree(graph: Graph, made: Schedule, sizes: Mapping[str, int]) -> None:
    verify_schedule(made)
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn([evaluate(e, sizes) for e in b.shape], generator=generator).to(torch.bfloat16)
        for b in graph.inputs
        if isinstance(b, Buffer)
    ]
    wanted = interpret_graph(graph, list(inputs))
    found = interpret_schedule(made, list(inputs))
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
