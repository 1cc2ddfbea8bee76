"""Reductions of short runs of memory: which are reduced across them first, and that the numbers stay the
same.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from declared import schedule

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import evaluate, symbol
from coilwork_ir.kernels import KernelCall
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops.interpreter import interpret_graph
from coilwork_ir.scalar import cast, op
from coilwork_ir.target import get_target
from coilwork_scheduler import ScheduleOptions

BF16, F32 = DType.BF16, DType.F32
H200 = get_target("sm_90")


def moments(build, n, c, h, w, *, dtype=BF16, symbols=()):
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


def group_sums(build, n, points, groups, each, *, dtype=BF16):
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


def extents(made, step):
    kernel = next(k for k in made.kernels if k.name == made.steps[step].kernel)
    return [
        [evaluate(r.symbol.extent, {}) for r in kernel.ranges if r.kind == kind]
        for kind in ("parallel", "reduction")
    ]


def decisions(made):
    return [d for d in made.decisions if d.rule == "split-runs"]


def test_images_of_49_points_are_reduced_across_images_first(build):
    made = schedule(moments(build, 256, 2048, 7, 7), H200)
    verify_schedule(made)
    assert extents(made, 0) == [[2048 * 49], [256]]
    assert extents(made, 1) == [[2048], [49]]
    (decision,) = decisions(made)
    assert decision.accepted and dict(decision.numbers)["pieces"] == 49


def test_groups_of_10_channels_are_reduced_across_points_first(build):
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
def test_what_wide_loads_fit_or_is_small_stays(build, shape):
    made = schedule(moments(build, *shape), H200)
    assert not any(d.accepted for d in decisions(made))


def test_wide_elements_stay(build):
    assert not decisions(schedule(moments(build, 256, 2048, 7, 7, dtype=F32), H200))


def test_every_batch_is_served(build):
    n = symbol("n", lo=1)
    graph = moments(build, n, 16, 7, 7, symbols=[n])
    slow = replace(H200, bandwidth_gb_s=1.0, launch_us=1e-6)
    made = schedule(graph, slow, ScheduleOptions(size_hints=(("n", 4096),)))
    assert decisions(made)[0].accepted
    for batch in (1, 5, 130):
        agree(graph, made, {"n": batch})


@pytest.mark.parametrize("make", [moments, group_sums])
def test_numbers_stay(build, make):
    graph = make(build, 70, 16, 7, 7) if make is moments else make(build, 4, 200, 16, 10)
    made = schedule(graph, replace(H200, bandwidth_gb_s=1.0, launch_us=1e-6))
    assert decisions(made)[0].accepted
    agree(graph, made, {})


def agree(graph, made, sizes):
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
