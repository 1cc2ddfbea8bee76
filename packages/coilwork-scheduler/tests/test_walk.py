"""Rows and columns of one matrix in one kernel: when, in which space, and that the numbers stay the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from declared import GRIDS, schedule

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, evaluate, floordiv, mod, symbol
from coilwork_ir.kernels import KernelCall
from coilwork_ir.kernels.verify import verify_schedule
from coilwork_ir.loops import Check
from coilwork_ir.scalar import const, op
from coilwork_ir.target import target
from coilwork_scheduler import ScheduleOptions

F32, F64, BF16 = DType.F32, DType.F64, DType.BF16
H200 = target("sm_90")
# a device for which small matrices are large
SMALL = replace(H200, multiprocessors=2, launch_us=1e-6, bandwidth_gb_s=1.0)


def norm_backward(build, rows, columns, *, dtype=F64, kept="both", around=False, results=()):
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

    def normal(*i):
        return op("mul", op("sub", at("x", *i), at("mean", *i[:-1])), at("rstd", *i[:-1]))

    def scaled(*i):
        return op("mul", at("dy", *i), at("w", i[-1]))

    def gradient(*i):
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


def walked(made):
    """The kernels with walked ranges, with the extents of their ranges by kind."""
    found = []
    for kernel in made.kernels:
        extents = {
            kind: [r.symbol.extent for r in kernel.ranges if r.kind == kind]
            for kind in ("parallel", "walked", "reduction")
        }
        if extents["walked"]:
            found.append((kernel, extents))
    return found


def verdicts(made, rule):
    return [d for d in made.decisions if d.rule == rule]


def args_of(made):
    return [set(step.args) for step in made.steps if isinstance(step, KernelCall)]


def traffic(made):
    """Bytes that the kernels read and write, each buffer once per kernel."""
    buffers = {b.name: b for b in (*made.buffers, *(i for i in made.inputs if isinstance(i, Buffer)))}
    return sum(
        evaluate(buffers[name].span, {}) * buffers[name].dtype.itemsize
        for step in made.steps
        if isinstance(step, KernelCall)
        for name in step.args
    )


def test_a_layer_norm_takes_three_passes_backwards(build):
    graph = norm_backward(build, [16384], 4096, dtype=BF16)
    made = schedule(graph, H200)
    verify_schedule(made)
    ((_, extents),) = walked(made)
    assert extents == {"parallel": [as_expr(256)], "walked": [as_expr(64)], "reduction": [as_expr(4096)]}
    assert GRIDS.rows.keeps_beside_sums(4096, sums=2, reads=2)
    assert args_of(made) == [
        {"x", "dy", "w", "mean", "rstd", "dx", "dw_part", "db_part"},
        {"dw_part", "db_part", "dw", "db"},
    ]
    # 8 MB of sums are written and read again: a sixteenth of a pass
    matrix, sums = 16384 * 4096 * 2, 2 * 256 * 4096 * 4
    assert traffic(made) < 3 * matrix + 2.05 * sums
    apart = schedule(graph, H200, ScheduleOptions(horizontal=False))
    assert traffic(apart) > 5 * matrix
    (cut,) = verdicts(made, "split-walked")
    assert cut.accepted and cut.subjects == ("dw", "db") and dict(cut.numbers)["pieces"] == 256
    (joined,) = verdicts(made, "fuse-walked")
    assert joined.accepted


def test_what_does_not_fill_pieces_evenly_is_masked(build):
    made = schedule(norm_backward(build, [16381], 4096, dtype=BF16), H200)
    verify_schedule(made)
    ((kernel, extents),) = walked(made)
    assert extents["walked"] == [as_expr(63)]
    masked = [store for store in kernel.stores if store.mask is not None]
    assert [store.buffer for store in masked] == ["out0"]
    big = {arg.name for arg in kernel.args if arg.role == "in" and arg.span is as_expr(16381 * 4096)}
    assert len(big) == 2 and set(kernel.aliasing) == {("out0", name) for name in big}


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [
        ([16384], 16384, "a row does not stay in registers"),
        ([300], 4096, "a row or two per program"),
        ([64], 64, "small"),
    ],
)
def test_what_is_too_long_or_too_little_stays_apart(build, rows, columns, why):
    made = schedule(norm_backward(build, rows, columns, dtype=BF16), H200)
    assert not walked(made), why


def test_many_sums_do_not_stay_in_registers(build):
    graph = norm_backward(build, [16384], 8192, dtype=BF16)
    nodes = graph.nodes
    # four sums of 8192 columns are 64 registers of 512 threads: there is no room for the row
    for name in ("one", "two", "three"):
        build.reduce(
            name, "max" if name == "two" else "min" if name == "three" else "prod", [8192], [16384],
            lambda c, i: build.at("dy", i, c), dtype=F32,
        )  # fmt: skip
    made = schedule(build.graph("dx", "dw", "db", "one", "two", "three"), H200)
    assert len(build.nodes) == len(nodes) + 3
    assert not walked(made)
    # what was not cut for it needs no excuse
    assert not verdicts(made, "fuse-walked")


def test_cpus_do_as_before(build):
    made = schedule(norm_backward(build, [4096], 512), target("x86-64-avx512"))
    assert not walked(made) and not verdicts(made, "split-walked")


def test_checks_stay_out_of_it(build):
    graph = norm_backward(build, [16384], 4096, dtype=BF16)
    checked = Check(
        condition=op("lt", build.at("rstd", build.ranges(16384)[0]), const(9.0, F32)), message="large"
    )
    nodes = [
        replace(node, checks=(checked,)) if node.outputs[0].name == "total" else node
        for node in graph.nodes
        if hasattr(node, "outputs")
    ]
    others = [node for node in graph.nodes if not hasattr(node, "outputs")]
    made = schedule(replace(graph, nodes=(*nodes[:2], *others, *nodes[2:])), H200)
    verify_schedule(made)
    assert not any(kernel.checks for kernel, _ in walked(made))


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("rows", [(131,), (128,), (4, 33), (5, 3, 11)])
def test_numbers_are_those_of_the_graph(build, compare, rows, around):
    made = compare(norm_backward(build, list(rows), 5, around=around), name=SMALL)
    assert len(walked(made)) == 1


@pytest.mark.parametrize("kept", ["weight", "none"])
def test_without_some_parameters(build, compare, kept):
    made = compare(norm_backward(build, [130], 4, kept=kept), name=SMALL)
    assert len(walked(made)) == (kept == "weight")


@pytest.mark.parametrize("rows", [3, 128, 131, 400])
def test_any_number_of_rows(build, compare, rows):
    many = symbol("s0", lo=2)
    made = compare(replace(norm_backward(build, [many], 4), symbols=(many,)), name=SMALL, sizes={"s0": rows})
    ((_, extents),) = walked(made)
    assert extents["parallel"] == [as_expr(4)]


def test_columns_of_what_follows_from_the_rows(build, compare):
    """The gradient of a bias before the norm: a sum of `dx`, which also goes somewhere else."""
    norm_backward(build, [16, 9], 5, kept="weight")
    build.extern("test.neg", ["dx"], [build.buffer("elsewhere", 16, 9, 5)])
    build.reduce("before", "sum", [5], [16, 9], lambda c, i, k: build.at("dx", i, k, c))
    made = compare(build.graph("dx", "dw", "before", "elsewhere"), name=SMALL)
    assert len(walked(made)) == 1
    assert any({"dx", "dw_part", "before_part"} <= args for args in args_of(made))


def test_a_path_through_a_call_keeps_them_apart(build, compare):
    """The columns read what a call makes of the rows' results."""
    build.input("x", 130, 4)
    build.reduce("total", "sum", [130], [4], lambda i, c: build.at("x", i, c))
    build.extern("test.neg", ["total"], [build.buffer("other", 130)])
    build.reduce(
        "columns", "sum", [4], [130], lambda c, i: op("mul", build.at("x", i, c), build.at("other", i))
    )
    made = compare(build.graph("total", "columns"), name=SMALL)
    assert not walked(made) and not verdicts(made, "split-walked")


def test_a_gradient_over_what_flows_back(build, compare):
    """`dx` overwrites `dy`, of which every row is read before."""
    norm_backward(build, [131], 4)
    build.pointwise("done", [131, 4], lambda i, c: build.at("dx", i, c), into="dy")
    made = compare(build.graph("done", "dw", "db"), name=SMALL)
    assert walked(made)
    assert any(("done", "dy") in step.into for step in made.steps if isinstance(step, KernelCall))


@pytest.mark.parametrize("seed", range(40))
def test_random_rows_and_columns(build, compare, seed):
    """Chains of reductions along rows and columns of a few matrices, in any order."""
    rng = Random(seed)
    rows, columns = rng.choice([(128,), (137,), (2, 70), (3, 45)]), rng.randint(1, 5)
    shape = [*rows, columns]
    for name in ("a", "b"):
        build.input(name, *shape)
    build.input("v", columns)
    matrices, vectors, lines = ["a", "b"], [], ["v"]
    outputs = []

    def body(*i):
        value = build.at(rng.choice(matrices), *i)
        for _ in range(rng.randint(0, 2)):
            other = [build.at(rng.choice(matrices), *i), build.at(rng.choice(lines), i[-1])]
            other += [build.at(vector, *i[:-1]) for vector in vectors[-2:]]
            value = op(rng.choice(("add", "sub", "mul")), value, rng.choice(other))
        return op("tanh", value)

    for number in range(rng.randint(3, 8)):
        name = f"t{number}"
        what = rng.choice(("row", "row", "column", "column", "matrix"))
        kind = rng.choice(("sum", "sum", "max", "min"))
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


def test_rows_are_not_cut_for_their_columns(build):
    """Which of two crossing reductions is the columns is what memory says."""
    made = schedule(norm_backward(build, [8192], 2048, dtype=BF16, kept="weight"), H200)
    assert [d.subjects for d in verdicts(made, "split-walked")] == [("dw",)]
    assert len(walked(made)) == 1 and len(args_of(made)) == 2


def test_rows_of_batches_and_rows_in_one_line_are_cut_alike(build, compare):
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
    ((_, extents),) = walked(made)
    # four pieces of two batches, the last one with a batch that is none
    assert extents["parallel"] == [as_expr(4)] and extents["walked"] == [as_expr(2), as_expr(19)]
    assert any({"flat", "dw_part", "db_part", "before_part"} <= args for args in args_of(made))


def test_rows_and_columns_of_a_square_matrix_are_told_apart(build):
    made = schedule(norm_backward(build, [8192], 8192, dtype=BF16, kept="weight"), H200)
    (one,) = walked(made)
    assert len(one[0].stores) == 2
    # its own pieces of the columns' sums are added by another
    assert len(made.kernels) == 2


@pytest.mark.parametrize("shape", [(4, 40, 40), (3, 3, 3), (2, 40, 40, 40), (131, 131)])
@pytest.mark.parametrize("columns_first", [False, True])
def test_rows_and_columns_of_equal_sizes_are_told_apart(build, compare, shape, columns_first):
    """What the one goes through and what the other reduces are ranges of one name and size."""
    *batch, n, m = shape
    build.input("x", *shape)
    build.pointwise("y", shape, lambda *i: op("exp", build.at("x", *i)))

    def rows():
        build.reduce("rows", "sum", [*batch, n], [m], lambda *i: build.at("y", *i))

    def columns():
        build.reduce("columns", "sum", [*batch, m], [n], lambda *i: build.at("y", *i[:-2], i[-1], i[-2]))

    for add in (columns, rows) if columns_first else (rows, columns):
        add()
    made = compare(build.graph("y", "rows", "columns"), name=SMALL)
    verify_schedule(made)
