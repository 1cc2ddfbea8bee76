"""Rows and columns of one matrix in one kernel: when, in which space, and that the numbers stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from declared import schedule
from graph_builder import Builder, Compare

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, floordiv, mod, symbol
from coilwork_ir.kernels import Kernel, KernelCall, Schedule
from coilwork_ir.kernels.nodes import Decision
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Graph
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, const, op
from coilwork_ir.target import get_target

F32, F64, BF16 = DType.F32, DType.F64, DType.BF16
H200 = get_target("sm_90")
# a device for which small matrices are large
SMALL = replace(H200, multiprocessors=2, launch_us=1e-6, bandwidth_gb_s=1.0)


def norm_backward(
    build: Builder,
    rows: Sequence[Expr | int],
    columns: int,
    *,
    dtype: DType = F64,
    kept: str = "both",
    around: bool = False,
    results: Sequence[str] = (),
) -> Graph:
    """Gradients of layer_norm(x) * w + b over `columns`, from what flows back in `dy`; with `around`, beside
    that of `x` itself.

    `kept` says of which parameters: "both", "weight" or "none".
    """
    at, shape = build.at, [*rows, columns]
    for name in ("x", "dy", *(("dz",) if around else ())):
        build.input(name, *shape, dtype=dtype)
    build.input("w", columns, dtype=dtype)
    wide = dtype.compute
    for name in ("mean", "rstd"):
        build.input(name, *rows, dtype=wide)

    def normal(*i: Expr) -> Scalar:
        return op("mul", op("sub", at("x", *i), at("mean", *i[:-1])), at("rstd", *i[:-1]))

    def scaled(*i: Expr) -> Scalar:
        return op("mul", at("dy", *i), at("w", i[-1]))

    def gradient(*i: Expr) -> Scalar:
        share = const(1.0 / columns, wide)
        level = op("mul", at("total", *i[:-1]), share)
        slope = op("mul", normal(*i), op("mul", at("slope", *i[:-1]), share))
        own = op("mul", at("rstd", *i[:-1]), op("sub", op("sub", scaled(*i), level), slope))
        return op("add", own, at("dz", *i)) if around else own

    build.reduce("total", "sum", rows, [columns], scaled, dtype=wide)
    build.reduce("slope", "sum", rows, [columns], lambda *i: op("mul", scaled(*i), normal(*i)), dtype=wide)
    build.pointwise("dx", shape, gradient, dtype=dtype)
    names = ["dx"]
    if kept != "none":
        names.append("dw")
        build.reduce(
            "dw", "sum", [columns], rows, lambda c, *i: op("mul", at("dy", *i, c), normal(*i, c)), dtype=wide
        )
    if kept == "both":
        names.append("db")
        build.reduce("db", "sum", [columns], rows, lambda c, *i: at("dy", *i, c), dtype=wide)
    return build.graph(*names, *results)


def sequential(made: Schedule) -> list[tuple[Kernel, dict[str, list[Expr | None]]]]:
    """The kernels with sequential ranges, with the extents of their ranges by kind."""
    found = []
    for kernel in made.kernels:
        extents = {
            kind: [r.symbol.extent for r in kernel.ranges if r.kind == kind]
            for kind in ("parallel", "sequential", "reduction")
        }
        if extents["sequential"]:
            found.append((kernel, extents))
    return found


def verdicts(made: Schedule, rule: str) -> list[Decision]:
    return [d for d in made.decisions if d.rule == rule]


def args_of(made: Schedule) -> list[set[str]]:
    return [set(step.args) for step in made.steps if isinstance(step, KernelCall)]


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("rows", [(131,), (128,), (4, 33), (5, 3, 11)])
def test_numbers_are_those_of_the_graph(
    build: Builder, compare: Compare, rows: tuple[int, ...], around: bool
) -> None:
    made = compare(norm_backward(build, list(rows), 5, around=around), name=SMALL)
    assert len(sequential(made)) == 1


@pytest.mark.parametrize("rows", [3, 128, 131, 400])
def test_any_number_of_rows(build: Builder, compare: Compare, rows: int) -> None:
    many = symbol("s0", lo=2)
    made = compare(replace(norm_backward(build, [many], 4), symbols=(many,)), name=SMALL, sizes={"s0": rows})
    ((_, extents),) = sequential(made)
    assert extents["parallel"] == [as_expr(4)]


@pytest.mark.parametrize("seed", range(40))
def test_random_rows_and_columns(build: Builder, compare: Compare, seed: int) -> None:
    """Chains of reductions along rows and columns of a few matrices, in any order."""
    rng = Random(seed)
    rows, columns = rng.choice([(128,), (137,), (2, 70), (3, 45)]), rng.randint(1, 5)
    shape = [*rows, columns]
    for name in ("a", "b"):
        build.input(name, *shape)
    build.input("v", columns)
    matrices, lines = ["a", "b"], ["v"]
    vectors: list[str] = []
    outputs = []

    def body(*i: Expr) -> Scalar:
        value = build.at(rng.choice(matrices), *i)
        for _ in range(rng.randint(0, 2)):
            other = [build.at(rng.choice(matrices), *i), build.at(rng.choice(lines), i[-1])]
            other += [build.at(vector, *i[:-1]) for vector in vectors[-2:]]
            value = op(rng.choice(("add", "sub", "mul")), value, rng.choice(other))
        return op("tanh", value)

    for number in range(rng.randint(3, 8)):
        name = f"t{number}"
        what = rng.choice(("row", "row", "column", "column", "matrix"))
        kind: ReduceKind = rng.choice(("sum", "sum", "max", "min"))
        if what == "row":
            build.reduce(name, kind, rows, [columns], body)
            vectors.append(name)
        elif what == "column":
            build.reduce(name, kind, [columns], rows, lambda c, *i: body(*i, c))
            if rng.random() < 0.3:
                lines.append(name)
        else:
            build.pointwise(name, shape, body)
            matrices.append(name)
        if rng.random() < 0.6:
            outputs.append(name)
    compare(build.graph(*(outputs or [f"t{number}"])), name=SMALL)


def test_rows_are_not_cut_for_their_columns(build: Builder) -> None:
    """Which of two crossing reductions is the columns is what memory says."""
    made = schedule(norm_backward(build, [8192], 2048, dtype=BF16, kept="weight"), H200)
    assert [d.subjects for d in verdicts(made, "split-row-column")] == [("dw",)]
    assert len(sequential(made)) == 1 and len(args_of(made)) == 2


def test_rows_of_batches_and_rows_in_one_line_are_cut_alike(build: Builder, compare: Compare) -> None:
    """As where a linear layer before the norm sees `[batch * tokens]`: its bias's gradient joins the same
    kernel.
    """
    norm_backward(build, [7, 19], 5)
    build.pointwise(
        "flat", [133, 5], lambda i, c: build.at("dx", floordiv(i, as_expr(19)), mod(i, as_expr(19)), c)
    )
    build.extern("test.neg", ["flat"], [build.buffer("elsewhere", 133, 5)])
    build.reduce("before", "sum", [5], [133], lambda c, i: build.at("flat", i, c))
    made = compare(build.graph("dw", "db", "before", "elsewhere"), name=SMALL)
    ((_, extents),) = sequential(made)
    # four pieces of two batches, the last one with a batch that is none
    assert extents["parallel"] == [as_expr(4)] and extents["sequential"] == [as_expr(2), as_expr(19)]
    assert any({"flat", "dw_part", "db_part", "before_part"} <= args for args in args_of(made))


def test_rows_and_columns_of_a_square_matrix_are_told_apart(build: Builder) -> None:
    made = schedule(norm_backward(build, [8192], 8192, dtype=BF16, kept="weight"), H200)
    (one,) = sequential(made)
    assert len(one[0].stores) == 2
    # its own pieces of the columns' sums are added by another
    assert len(made.kernels) == 2


@pytest.mark.parametrize("shape", [(4, 40, 40), (3, 3, 3), (2, 12, 12, 12), (131, 131)])
@pytest.mark.parametrize("columns_first", [False, True])
def test_rows_and_columns_of_equal_sizes_are_told_apart(
    build: Builder, compare: Compare, shape: tuple[int, ...], columns_first: bool
) -> None:
    """What the one goes through and what the other reduces are ranges of one name and size."""
    *batch, n, m = shape
    build.input("x", *shape)
    build.pointwise("y", shape, lambda *i: op("exp", build.at("x", *i)))

    def rows() -> None:
        build.reduce("rows", "sum", [*batch, n], [m], lambda *i: build.at("y", *i))

    def columns() -> None:
        build.reduce("columns", "sum", [*batch, m], [n], lambda *i: build.at("y", *i[:-2], i[-1], i[-2]))

    for add in (columns, rows) if columns_first else (rows, columns):
        add()
    made = compare(build.graph("y", "rows", "columns"), name=SMALL)
    verify_schedule(made)
