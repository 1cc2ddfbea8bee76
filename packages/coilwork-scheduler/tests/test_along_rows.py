"""Sums over whole matrices of what depends on statistics of rows: when they are done by rows, and what they
come to.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from declared import GRIDS, schedule

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, evaluate, floordiv, mod, symbol
from coilwork_ir.kernels import KernelCall
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.scalar import const, op
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions

F32, F64, BF16 = DType.F32, DType.F64, DType.BF16
H200 = target("sm_90")
# a device for which small matrices are large
SMALL = replace(H200, multiprocessors=2, launch_us=1e-6, bandwidth_gb_s=1.0)


def log_sum(build, name, rows, columns, wide):
    """A function of the sum of exponentials of each row of `name`, in two buffers, as log_softmax
    has them.
    """
    at = build.at
    build.reduce(f"{name}_top", "max", rows, [columns], lambda *i: at(name, *i), dtype=wide)
    build.reduce(
        f"{name}_sum",
        "sum",
        rows,
        [columns],
        lambda *i: op("exp", op("sub", at(name, *i), at(f"{name}_top", *i[:-1]))),
        dtype=wide,
    )
    build.pointwise(f"{name}_log", rows, lambda *i: op("rsqrt", at(f"{name}_sum", *i)), dtype=wide)


def divergence(build, rows, columns, *, dtype=F64, kept=(), count=1):
    """As kl_div of two log softmaxes is lowered: `kept` are the ranges of the result, numbers of those of
    `rows`.
    """
    at, wide = build.at, dtype.compute
    for name in ("x", "y"):
        build.input(name, *rows, columns, dtype=dtype)
        log_sum(build, name, rows, columns, wide)

    def log_softmax(name, i):
        return op("sub", op("sub", at(name, *i), at(f"{name}_top", *i[:-1])), at(f"{name}_log", *i[:-1]))

    along = [k for k in range(len(rows)) if k not in kept]

    def ordered(i):
        place = dict(zip([*kept, *along, len(rows)], i, strict=True))
        return tuple(place[k] for k in range(len(rows) + 1))

    def term(*i):
        x, y = log_softmax("x", ordered(i)), log_softmax("y", ordered(i))
        return op("mul", op("exp", x), op("sub", x, y))

    axes = [*(rows[k] for k in along), columns]
    build.reduce("d", "sum", [rows[k] for k in kept], axes, term, dtype=wide)
    outputs = ["d"]
    for k in range(1, count):
        build.reduce(
            f"d{k}",
            "sum",
            [rows[j] for j in kept],
            axes,
            lambda *i: op("mul", at("x", *ordered(i)), at("y", *ordered(i))),
            dtype=wide,
        )
        outputs.append(f"d{k}")
    return build.graph(*outputs)


def verdicts(made, rule="split-rows"):
    return [d for d in made.decisions if d.rule == rule]


def args_of(made):
    return [set(step.args) for step in made.steps if isinstance(step, KernelCall)]


def read_bytes(made):
    buffers = {b.name: b for b in (*made.buffers, *(i for i in made.inputs if isinstance(i, Buffer)))}
    return sum(
        evaluate(buffers[name].span, {}) * buffers[name].dtype.itemsize
        for args in args_of(made)
        for name in args
    )


def test_a_divergence_reads_each_row_once(build):
    made = schedule(divergence(build, [16384], 8192, dtype=BF16), H200)
    verify_schedule(made)
    assert args_of(made) == [{"x", "y", "d_part"}, {"d_part", "d"}]
    kernel = made.kernels[0]
    extents = {
        kind: [r.symbol.extent for r in kernel.ranges if r.kind == kind] for kind in ("parallel", "reduction")
    }
    assert extents == {"parallel": [as_expr(16384)], "reduction": [as_expr(8192)]}
    assert GRIDS.rows.keeps(8192, values=2)
    (cut,) = verdicts(made)
    assert cut.accepted and dict(cut.numbers)["rows"] == 16384


def test_many_rows_sums_are_summed_in_pieces(build):
    made = schedule(divergence(build, [1 << 20], 512, dtype=BF16), H200)
    verify_schedule(made)
    assert args_of(made)[0] == {"x", "y", "d_part"} and len(args_of(made)) == 3


def test_sums_over_leading_axes(build):
    made = schedule(divergence(build, [64, 512], 4096, dtype=BF16, kept=(1,)), H200)
    verify_schedule(made)
    assert args_of(made) == [{"x", "y", "d_part"}, {"d_part", "d"}]


def test_what_reads_the_same_is_summed_alike(build):
    made = schedule(divergence(build, [16384], 4096, dtype=BF16, count=2), H200)
    verify_schedule(made)
    assert args_of(made)[0] == {"x", "y", "d_part", "d1_part"} and read_bytes(made) < 2.01 * 16384 * 4096 * 2


def test_a_flat_sum_of_stored_values(build):
    """A softmax that is stored, and the sum of its squares over the flattened matrix."""
    at = build.at
    build.input("x", 16384, 4096, dtype=BF16)
    log_sum(build, "x", [16384], 4096, F32)
    build.pointwise(
        "y",
        [16384, 4096],
        lambda i, j: op("exp", op("sub", op("sub", at("x", i, j), at("x_top", i)), at("x_log", i))),
        dtype=F32,
    )
    columns = as_expr(4096)

    def square(k):
        y = at("y", floordiv(k, columns), mod(k, columns))
        return op("mul", y, y)

    build.reduce("d", "sum", [], [16384 * 4096], square, dtype=F32)
    made = schedule(build.graph("y", "d"), H200, ScheduleOptions(inline=False))
    verify_schedule(made)
    assert args_of(made)[0] == {"x", "y", "d_part"}


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [
        ([16384], 32768, "rows do not stay on chip"),
        ([64], 64, "small"),
        ([1 << 20], 4, "rows are hardly longer than their results"),
    ],
)
def test_what_would_save_nothing_stays(build, rows, columns, why):
    made = schedule(divergence(build, rows, columns, dtype=BF16), H200)
    verify_schedule(made)
    assert not any(d.accepted for d in verdicts(made)), why


def test_statistics_of_columns_are_none_of_rows(build):
    at = build.at
    build.input("x", 8192, 8192, dtype=BF16)
    build.reduce("top", "max", [8192], [8192], lambda c, r: at("x", r, c), dtype=F32)
    build.reduce("d", "sum", [], [8192, 8192], lambda r, c: op("sub", at("x", r, c), at("top", c)), dtype=F32)
    assert not verdicts(schedule(build.graph("d"), H200))


def test_a_sum_that_needs_another_whole_sum_waits(build):
    """The scale is that of the whole matrix: no kernel of rows knows it."""
    at, rows, columns = build.at, 16384, 4096
    build.input("x", rows, columns, dtype=BF16)
    build.reduce("top", "max", [rows], [columns], lambda i, j: at("x", i, j), dtype=F32)
    build.reduce("scale", "sum", [], [rows], lambda i: at("top", i), dtype=F32)
    build.reduce(
        "d",
        "sum",
        [],
        [rows, columns],
        lambda i, j: op("tanh", op("mul", op("sub", at("x", i, j), at("top", i)), at("scale"))),
        dtype=F32,
    )
    assert not verdicts(schedule(build.graph("d"), H200))


def test_options_that_want_no_pieces(build):
    graph = divergence(build, [16384], 8192, dtype=BF16)
    for options in (
        ScheduleOptions(split=False),
        ScheduleOptions(fuse=False),
        ScheduleOptions(batch_invariant=True),
    ):
        assert not verdicts(schedule(graph, H200, options))
    assert not verdicts(schedule(graph, target("x86-64-avx2")))


@pytest.mark.parametrize(
    ("rows", "kept", "count"),
    [([6], (), 1), ([6], (), 2), ([3, 4], (), 1), ([3, 4], (0,), 2), ([3, 4], (1,), 2)],
)
def test_sums_stay_the_same(build, compare, rows, kept, count):
    made = compare(divergence(build, rows, 40, kept=kept, count=count), name=SMALL)
    assert len(verdicts(made)) == count and all(d.accepted for d in verdicts(made))


def test_rows_of_unknown_number(build, compare):
    rows = symbol("s0", lo=2)
    at = build.at
    build.input("x", rows, 40)
    log_sum(build, "x", [rows], 40, F64)
    build.reduce(
        "d",
        "sum",
        [],
        [rows, 40],
        lambda i, j: op("mul", op("sub", at("x", i, j), at("x_log", i)), const(2.0, F64)),
        dtype=F64,
    )
    made = compare(build.graph("d", symbols=[rows]), name=SMALL, sizes={"s0": 5})
    assert [d.accepted for d in verdicts(made)] == [True]
