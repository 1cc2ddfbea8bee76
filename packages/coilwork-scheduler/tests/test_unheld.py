"""What is computed without its checks, and what is not."""

from __future__ import annotations

import pytest
from declared import schedule
from gather_graphs import EDGES, NODES, WIDTH, calls, checks, gather, graph, scatter

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.scalar import const, index_value, load, op, where
from coilwork_ir.target import target

I64, F32, F64 = DType.I64, DType.F32, DType.F64


def test_what_the_caller_wants_is_checked_where_it_is_stored(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = compare(build.graph("out", "messages"))
    assert not any("messages_positions" in call.args for call in calls(made))


def test_so_is_what_an_operator_wants(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    build.extern("test.neg", ["messages"], [build.buffer("n", EDGES, WIDTH)])
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out", "n"))
    assert not any("messages_positions" in call.args for call in calls(made))


def test_what_is_updated_in_place_stays(build, compare):
    graph(build, edges=NODES)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "x", "dst", into="messages")
    made = compare(build.graph("out"))
    assert [call.args for call in calls(made)] == [("src", "x", "messages"), ("x", "dst", "out")]
    assert checks(made) == [["out of range"]]


def test_a_table_that_its_scatter_overwrites_is_read_before(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", into="x")
    made = compare(build.graph())
    assert [call.args for call in calls(made)] == [("src", "x", "messages"), ("messages", "dst", "out")]


def test_a_kernel_that_goes_through_all_positions_holds_the_checks(build, compare):
    graph(build)
    gather(build, "rows", "x", "src")
    build.pointwise("out", [EDGES, WIDTH], lambda i, j: op("tanh", build.at("rows", i, j)))
    made = compare(build.graph("out"))
    assert [call.args for call in calls(made)] == [("src", "x", "out")]
    assert checks(made) == [["out of range"]]


@pytest.mark.parametrize(("name", "width", "inside"), [("sm_90", 2, True), ("x86-64-avx2", 7, False)])
def test_short_rows_stay(build, compare, name, width, inside):
    graph(build, width=width)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"), name=name)
    assert any("messages_positions" in call.args for call in calls(made)) == inside


def test_single_elements_stay(build, compare):
    build.input("x", NODES, dtype=F32)
    build.input("src", EDGES, dtype=I64)
    build.input("dst", EDGES, dtype=I64)
    build.input("order", EDGES, dtype=I64)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"))
    (why,) = [d for d in made.decisions if d.subjects == ("messages",) and d.rule == "inline"]
    assert why.reason == "its checked positions would take as much memory as it does"


def test_positions_are_not_stored_for_a_value_that_is(build, compare):
    # three tables are read again by each of the scatters: their sum is stored, in the kernel that looks them
    # up
    graph(build, edges=NODES)
    for table in "yz":
        build.input(table, NODES, WIDTH)
    for table in "xyz":
        gather(build, f"{table}_rows", table, "src")
    build.pointwise(
        "sum",
        [NODES, WIDTH],
        lambda i, j: op(
            "add", op("mul", build.at("x_rows", i, j), build.at("y_rows", i, j)), build.at("z_rows", i, j)
        ),
    )
    build.input("more", NODES, dtype=I64)
    scatter(build, "out", "sum", "dst")
    scatter(build, "other", "sum", "more")
    made = compare(build.graph("out", "other"))
    names = {name for call in calls(made) for name in call.args}
    assert "sum" in names and not any("positions" in name for name in names)


def test_columns_lie_innermost_where_rows_are_looked_up(build):
    graph(build, edges=4096, width=64, dtype=F32)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = schedule(build.graph("out"), target("sm_90"))
    (kernel,) = [k for k in made.kernels if any(store.mode == "add" for store in k.stores)]
    assert [r.symbol.extent for r in kernel.ranges] == [as_expr(4096), as_expr(64)]


def joined(i, j):
    """Rows beside others."""
    first = op("lt", index_value(j), const(WIDTH, I64))
    second = op("ge", index_value(j), const(WIDTH, I64))
    return where(
        first,
        load("rows", (i, j), F64, mask=first),
        load("x", (i, j - WIDTH), F64, mask=second),
    )


ELSEWHERE = {
    "beside others": ([NODES, 2 * WIDTH], joined),
    "beside themselves": (
        [EDGES - 1, WIDTH],
        lambda i, j: op("sub", load("rows", (i + 1, j), F64), load("rows", (i, j), F64)),
    ),
    "backwards": ([EDGES, WIDTH], lambda i, j: load("rows", (EDGES - 1 - i, j), F64)),
    "in part": ([EDGES - 2, WIDTH], lambda i, j: op("tanh", load("rows", (i, j), F64))),
    "one of them": ([WIDTH], lambda j: load("rows", (as_expr(3), j), F64)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_reads_elsewhere_looks_rows_up_itself(build, compare, name):
    graph(build, edges=NODES if name == "beside others" else EDGES)
    shape, body = ELSEWHERE[name]
    gather(build, "rows", "x", "src")
    build.pointwise("out", shape, body)
    made = compare(build.graph("out"))
    assert not any("rows" in call.args for call in calls(made))
    assert checks(made) == [["out of range"]]


def test_other_shapes_of_the_rows_are_no_other_points(build, compare):
    graph(build)
    gather(build, "rows", "x", "src")
    build.pointwise("out", [EDGES * WIDTH], lambda i: op("tanh", load("rows", (i // WIDTH, i % WIDTH), F64)))
    made = compare(build.graph("out"))
    assert [call.args for call in calls(made)] == [("src", "x", "out")]
