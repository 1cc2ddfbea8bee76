"""Reductions whose lengths are data end where the longest row of a program does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from kernel_bench import TritonProcess, along, run_source
from launch_facts import launch_facts
from triton_sample_kernels import ragged_sums

from coilwork_ir.dtypes import DType
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Reduce, Scalar, const, index_value, load, op, reduce, where
from coilwork_ir.target import get_target
from coilwork_triton import TritonCodegen
from coilwork_triton.facts.kernel_analysis import (
    find_gather_range,
    find_segment_length,
    is_segmented_reduction,
)
from coilwork_triton.launch.configs import propose_launches

X, R = along("x0", 8).symbol, along("r0", 100, "reduction").symbol
COUNT = load("in0", [X], DType.I64)
VALUE = load("in1", [R], DType.F32)
ZERO = const(0.0, DType.F32)


def found(kind: ReduceKind, operand: Scalar) -> Scalar | None:
    node = reduce(kind, [operand], [R])
    assert isinstance(node, Reduce)
    return find_segment_length(node)


def test_rows_end_where_a_count_says() -> None:
    inside = op("lt", index_value(R), COUNT)
    assert found("sum", where(inside, VALUE, ZERO)) is COUNT
    assert found("prod", where(inside, VALUE, const(1.0, DType.F32))) is COUNT
    assert is_segmented_reduction([reduce("sum", [where(inside, VALUE, ZERO)], [R])])


@pytest.mark.parametrize(
    ("kind", "operand"),
    [
        ("sum", VALUE),
        ("sum", where(op("lt", index_value(R), COUNT), VALUE, const(1.0, DType.F32))),
        ("prod", where(op("lt", index_value(R), COUNT), VALUE, ZERO)),
        ("max", where(op("lt", index_value(R), COUNT), VALUE, ZERO)),
        ("sum", where(op("gt", index_value(R), COUNT), VALUE, ZERO)),
        ("sum", where(op("lt", index_value(R + 1), COUNT), VALUE, ZERO)),
        ("sum", where(op("lt", index_value(R), load("in0", [R], DType.I64)), VALUE, ZERO)),
    ],
)
def test_other_rows_go_to_the_end(kind: ReduceKind, operand: Scalar) -> None:
    assert found(kind, operand) is None
    assert not is_segmented_reduction([reduce(kind, [operand], [R])])


def test_one_reduction_to_the_end_keeps_all_going() -> None:
    short = reduce("sum", [where(op("lt", index_value(R), COUNT), VALUE, ZERO)], [R])
    assert not is_segmented_reduction([short, reduce("sum", [VALUE], [R])])


def test_blocks_lie_along_the_rows_that_are_looked_up() -> None:
    kernel = ragged_sums()
    rows, columns, reduced = kernel.ranges
    roots = [store.value for store in kernel.stores]
    assert find_gather_range((rows, columns), roots) is columns
    assert find_gather_range((columns, rows), roots) is columns
    assert find_gather_range((columns, rows), [COUNT]) is rows
    turned = replace(kernel, ranges=(columns, rows, reduced))
    for each in (kernel, turned):
        blocks = dict(TritonCodegen().emit(each, get_target("sm_90"), {}).configs[0].meta)
        assert blocks["XBLOCK"] == 64


def test_what_is_added_to_sums_is_loaded_before_their_loop() -> None:
    kernel = ragged_sums()
    (store,) = kernel.stores
    old = replace(kernel.args[-1], role="inout")
    total = op("add", load(old.name, [store.index], DType.F32), store.value)
    kernel = replace(kernel, args=(*kernel.args[:-1], old), stores=(replace(store, value=total),))
    text = TritonCodegen().emit(kernel, get_target("sm_90"), {}).text
    assert text.index(f"tl.load({old.name}") < text.index("for r0_offset") < text.index("tl.store(")


@pytest.mark.parametrize(
    ("columns", "block"),
    [(64, (8, 64)), (300, (2, 256)), (512, (1, 512)), (768, (1, 1024)), (4096, (1, 1024))],
)
def test_programs_take_what_a_row_fills(columns: int, block: tuple[int, int]) -> None:
    facts = launch_facts(
        walk="looped",
        extents={"y": 50000, "x": columns, "r": 574},
        coalescing={},
        element_bytes=4,
        tensors=4,
        is_segmented=True,
    )
    for config in propose_launches(facts, get_target("sm_90"), 2):
        blocks = dict(config.meta)
        assert (blocks["YBLOCK"], blocks["XBLOCK"]) == block
        # all points along r of a result belong to one thread, which has 8 of them
        assert 32 * config.num_warps * 8 == block[0] * block[1]


@pytest.mark.parametrize("lengths", ["none", "uneven", "one"])
def test_sums_of_rows_of_any_length(engine: TritonProcess, lengths: str) -> None:
    counts = torch.zeros(1000, dtype=torch.int64)
    if lengths == "uneven":
        counts[::7] = 4
        counts[5] = 100
    elif lengths == "one":
        counts[999] = 700
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    assert starts[-1] <= 700
    rows = torch.randn(700, 64, generator=torch.Generator().manual_seed(0))
    wanted = torch.stack([rows[a:b].double().sum(0) for a, b in pairwise(starts.tolist())]).float()
    source = TritonCodegen().emit(ragged_sums(), get_target("sm_90"), {})
    for config in range(len(source.configs)):
        out = torch.full((64000,), 7.0)
        given = [starts.int(), rows.reshape(-1), out]
        result = run_source(engine, source, given, config=config)[2]
        torch.testing.assert_close(result.cpu().view(1000, 64), wanted, rtol=1e-5, atol=1e-4)
