"""Ranges, their order, and tiles."""

from __future__ import annotations

import pytest
from declared import schedule
from graph_builder import Builder

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Scatter
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import op, placeholder
from coilwork_ir.target import get_target


def tiles(kernel: Kernel) -> list[tuple[str, str]]:
    return [(r.symbol.name, str(r.symbol.extent)) for r in kernel.ranges]


def columns_at_a_time(
    build: Builder,
    groups: int,
    *,
    mode: StoreMode = "max",
    rows: int = 65536,
    width: int = 32,
    device: str = "cuda:0",
    name: str = "sm_90",
) -> list[tuple[str, str]]:
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
    made = schedule(build.graph("out"), get_target(name))
    return next(tiles(k) for k in made.kernels if any(s.indirect for s in k.stores))


def test_columns_of_a_large_table_are_updated_a_few_at_a_time(build: Builder) -> None:
    assert columns_at_a_time(build, 8) == [("x0", "8"), ("x1", "65536"), ("x2", "32")]


@pytest.mark.parametrize(
    ("name", "ranges"),
    [
        ("sm_90", [("x0", "10240"), ("x1", "256")]),
        ("sm_80", [("x0", "8"), ("x1", "10240"), ("x2", "32")]),
    ],
)
def test_a_table_of_20_mib_is_large_for_a_smaller_cache(
    build: Builder, name: str, ranges: list[tuple[str, ...]]
) -> None:
    assert columns_at_a_time(build, 8, rows=10240, name=name) == ranges


def test_those_of_a_small_one_are_not(build: Builder) -> None:
    assert columns_at_a_time(build, 8, rows=4096) == [("x0", "4096"), ("x1", "256")]
