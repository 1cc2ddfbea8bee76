"""Ranges, their order, and tiles."""

from __future__ import annotations

import pytest
from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.loops import Scatter
from coilwork_ir.scalar import op, placeholder
from coilwork_ir.target import target


def tiles(kernel):
    return [(r.symbol.name, str(r.symbol.extent)) for r in kernel.ranges]


@pytest.mark.parametrize("name", ["sm_90", "x86-64-avx512"])
def test_a_transposed_operand_makes_two_tiles(build, compare, name):
    build.input("x", 8, 6)
    build.input("y", 6, 8)
    build.pointwise("z", [8, 6], lambda i, j: op("add", build.at("x", i, j), build.at("y", j, i)))
    (kernel,) = compare(build.graph("z"), name=name).kernels
    assert tiles(kernel) == [("y0", "8"), ("x0", "6")]


def test_contiguous_symbolic_ranges_become_one(build, compare):
    rows, columns = symbol("s0", lo=2), symbol("s1", lo=2)
    build.input("x", rows, columns)
    build.pointwise("y", [rows, columns], lambda i, j: op("tanh", build.at("x", i, j)))
    (kernel,) = compare(build.graph("y", symbols=(rows, columns)), sizes={"s0": 3, "s1": 4}).kernels
    assert tiles(kernel) == [("x0", "n0*n1")]


def test_channels_last_is_as_contiguous_as_any_layout(build, compare):
    strides = (60, 1, 15, 3)
    build.input("x", 2, 3, 4, 5, strides=strides)
    build.pointwise(
        "y", [2, 3, 4, 5], lambda n, k, h, w: op("tanh", build.at("x", n, k, h, w)), strides=strides
    )
    (kernel,) = compare(build.graph("y")).kernels
    assert tiles(kernel) == [("x0", "120")]


def test_a_permuted_copy_has_a_tile_per_unit_stride(build, compare):
    build.input("x", 2, 3, 4, 5)
    build.pointwise("y", [2, 4, 5, 3], lambda n, h, w, k: op("tanh", build.at("x", n, k, h, w)))
    (kernel,) = compare(build.graph("y")).kernels
    assert [name for name, _ in tiles(kernel)] == ["y0", "y1", "x0"]
    assert [extent for _, extent in tiles(kernel)] == ["2", "20", "3"]


def test_a_window_that_slides_along_rows_has_no_tile_of_its_own(build, compare):
    build.input("x", 8, 10)
    build.pointwise("y", [8, 3, 8], lambda i, k, j: op("tanh", build.at("x", i, j + k)))
    (kernel,) = compare(build.graph("y")).kernels
    assert tiles(kernel) == [("x0", "8"), ("x1", "3"), ("x2", "8")]


def test_a_column_reduction_has_a_range_for_columns_and_one_for_the_sum(build, compare):
    build.input("x", 8, 6)
    build.reduce("s", "sum", [6], [8], lambda i, r: build.at("x", r, i))
    (kernel,) = compare(build.graph("s")).kernels
    assert tiles(kernel) == [("x0", "6"), ("r0", "8")]


def test_argmax_keeps_the_order_of_its_axes(build, compare):
    from coilwork_ir.dtypes import DType

    build.input("x", 2, 3, 4, strides=(1, 2, 6))
    build.reduce("p", "argmax", [], [2, 3, 4], lambda a, b, k: build.at("x", a, b, k), dtype=DType.I64)
    (kernel,) = compare(build.graph("p")).kernels
    assert [extent for _, extent in tiles(kernel)] == ["2", "3", "4"]


def test_a_reduction_in_several_memory_orders_is_walked_in_the_cheapest(build, compare):
    build.input("x", 2, 3, 4, strides=(1, 2, 6))
    build.reduce("p", "sum", [], [2, 3, 4], lambda a, b, k: build.at("x", a, b, k))
    (kernel,) = compare(build.graph("p")).kernels
    assert [extent for _, extent in tiles(kernel)] == ["24"]


def test_empty_domains(build, compare):
    build.input("x", 0, 5)
    build.pointwise("y", [0, 5], lambda i, j: op("tanh", build.at("x", i, j)))
    build.reduce("s", "sum", [5], [0], lambda j, r: build.at("x", r, j))
    made = compare(build.graph("y", "s"))
    assert sorted(extent for kernel in made.kernels for _, extent in tiles(kernel)) == ["0", "0", "5"]


def test_ranges_of_one_vanish(build, compare):
    build.input("x", 1, 1)
    build.pointwise("y", [1, 1], lambda i, j: op("tanh", build.at("x", i, j)))
    (kernel,) = compare(build.graph("y")).kernels
    assert kernel.ranges == ()


def test_scatters_stay_in_one_part_of_memory_at_a_time(build, compare):
    # rows of two parts of four columns each; the parts lie apart in what is added to
    rows, parts, width = 6, 2, 4
    build.input("x", rows, parts, width)
    build.input("ids", rows, parts, width, dtype=DType.I64)
    build.input("base", parts, 5, width)
    build.pointwise("copy", [parts, 5, width], lambda p, i, w: build.at("base", p, i, w))
    r, p, w = build.ranges(rows, parts, width)
    build.nodes.append(
        Scatter(
            output=build.buffer("out", parts, 5, width),
            into="copy",
            ranges=(r, p, w),
            index=(p, placeholder(0), w),
            indirect=(build.at("ids", r, p, w),),
            value=build.at("x", r, p, w),
            mode="add",
        )
    )
    made = compare(build.graph("out"))
    kernel = next(k for k in made.kernels if any(store.mode != "store" for store in k.stores))
    assert tiles(kernel) == [("x0", "2"), ("x1", "6"), ("x2", "4")]


def columns_at_a_time(build, groups, *, mode="max", rows=65536, width=32, device="cuda:0", name="sm_90"):
    """The ranges of the kernel, for the target `name`, of a scatter that takes `width` columns of a table at
    a time.
    """
    build.input("x", rows, groups * width, device=device)
    build.input("ids", rows, groups * width, dtype=DType.I64, device=device)
    build.input("base", rows, groups * width, device=device)
    build.pointwise(
        "copy", [rows, groups * width], lambda i, c: op("tanh", build.at("base", i, c)), device=device
    )
    g, r, w = build.ranges(groups, rows, width)
    build.nodes.append(
        Scatter(
            output=build.buffer("out", rows, groups * width, device=device),
            into="copy",
            ranges=(g, r, w),
            index=(placeholder(0), g * width + w),
            indirect=(build.at("ids", r, g * width + w),),
            value=build.at("x", r, g * width + w),
            mode=mode,
        )
    )
    made = schedule(build.graph("out"), target(name))
    return next(tiles(k) for k in made.kernels if any(s.indirect for s in k.stores))


def test_columns_of_a_large_table_are_updated_a_few_at_a_time(build):
    assert columns_at_a_time(build, 8) == [("x0", "8"), ("x1", "65536"), ("x2", "32")]


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("sm_90", [("x0", "10240"), ("x1", "256")]),
        ("sm_80", [("x0", "8"), ("x1", "10240"), ("x2", "32")]),
    ],
)
def test_a_table_of_20_mib_is_large_for_a_smaller_cache(build, name, ranges):
    assert columns_at_a_time(build, 8, rows=10240, name=name) == ranges


def test_those_of_a_small_one_are_not(build):
    assert columns_at_a_time(build, 8, rows=4096) == [("x0", "4096"), ("x1", "256")]
