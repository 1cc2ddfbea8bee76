"""Reductions of a few terms as one expression, and those that stay."""

from __future__ import annotations

import pytest
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import KernelCall
from coilwork_ir.scalar import Reduce, op, postorder
from coilwork_ir.target import target

F32 = DType.F32


def reductions(made):
    """How many reductions are left in each kernel, in the order of the calls."""
    kernels = {kernel.name: kernel for kernel in made.kernels}
    called = [kernels[step.kernel] for step in made.steps if isinstance(step, KernelCall)]
    return [
        sum(isinstance(node, Reduce) for node in postorder(store.value for store in kernel.stores))
        for kernel in called
    ]


def distances(build, count, dimensions):
    """`out`: of every point `a` from every point `b`, what follows from their distance."""
    at = build.at
    build.input("a", count, dimensions, dtype=F32)
    build.input("b", count, dimensions, dtype=F32)

    def squared(i, j, r):
        difference = op("sub", at("a", i, r), at("b", j, r))
        return op("mul", difference, difference)

    build.reduce("squares", "sum", [count, count], [dimensions], squared, dtype=F32)
    build.pointwise("out", [count, count], lambda i, j: op("exp", op("neg", at("squares", i, j))), dtype=F32)
    return build.graph("out")


@pytest.mark.parametrize(("dimensions", "left"), [(2, 0), (3, 0), (4, 0), (16, 1)])
def test_distances_of_points_are_written_out(build, dimensions, left):
    assert reductions(schedule(distances(build, 4096, dimensions), target("sm_90"))) == [left]


def test_the_values_are_the_same(build, compare):
    compare(distances(build, 4, 3))


def test_cpus_keep_their_loops(build):
    assert reductions(schedule(distances(build, 64, 3), target("x86-64-avx512"))) == [1]


def test_what_lies_side_by_side_is_read_at_once(build):
    build.input("x", 1 << 20, 4, dtype=F32)
    build.reduce("s", "sum", [1 << 20], [4], lambda i, r: build.at("x", i, r), dtype=F32)
    assert reductions(schedule(build.graph("s"), target("sm_90"))) == [1]


def test_channels_apart_are_added_point_by_point(build):
    build.input("x", 64, 3, 65536, dtype=F32)
    build.reduce("s", "sum", [64, 65536], [3], lambda i, j, r: build.at("x", i, r, j), dtype=F32)
    assert reductions(schedule(build.graph("s"), target("sm_90"))) == [0]


def test_a_row_that_is_needed_again_stays_in_the_tile(build):
    at = build.at
    build.input("x", 64, 3, 65536, dtype=F32)
    build.reduce("m", "max", [64, 65536], [3], lambda i, j, r: at("x", i, r, j), dtype=F32)
    build.pointwise(
        "y", [64, 3, 65536], lambda i, r, j: op("exp", op("sub", at("x", i, r, j), at("m", i, j))), dtype=F32
    )
    assert reductions(schedule(build.graph("y"), target("sm_90"))) == [1]
