"""Reads at checked positions inside consumers whose kernels cannot hold the checks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr, symbol
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.scalar import const, index_value, load, op, placeholder, where
from coilwork_ir.target import target
from coilwork_scheduler import schedule

I32, I64, F32, F64 = DType.I32, DType.I64, DType.F32, DType.F64
EDGES, NODES, WIDTH = 12, 4, 8


def calls(made):
    return [step for step in made.steps if isinstance(step, KernelCall)]


def checks(made):
    """The checks of each kernel that has some."""
    kernels = {kernel.name: kernel for kernel in made.kernels}
    found = [[check.message for check in kernels[call.kernel].checks] for call in calls(made)]
    return [messages for messages in found if messages]


def gather(build, name, table, positions, *, wraps=False, message="out of range"):
    """`name`: rows of `table` at `positions`, which are checked."""
    (count,), (rows, *rest) = build.buffers[positions].shape, build.buffers[table].shape

    def found(i):
        raw = build.at(positions, i)
        return (
            where(op("lt", raw, const(0, I64)), op("add", raw, index_value(as_expr(rows))), raw)
            if wraps
            else raw
        )

    dtype = build.buffers[table].dtype
    build.pointwise(
        name,
        [count, *rest],
        lambda i, *j: load(table, (placeholder(0), *j), dtype, indirect=(found(i),)),
        dtype=dtype,
    )
    node = build.nodes[-1]
    position = found(node.ranges[0])
    inside = op(
        "bitwise_and", op("ge", position, const(0, I64)), op("lt", position, index_value(as_expr(rows)))
    )
    build.nodes[-1] = replace(node, checks=(Check(condition=inside, message=message, error="IndexError"),))


def scatter(build, name, value, positions, *, order=None, mode="add"):
    """`name`: zeros with the rows of `value` added at `positions`, which are not checked; in the order of the positions `order`."""
    buffer = build.buffers[value]
    count, *rest = buffer.shape
    build.pointwise(f"{name}_zeros", [NODES, *rest], lambda *i: const(0, buffer.dtype), dtype=buffer.dtype)
    i, *j = build.ranges(count, *rest)
    build.nodes.append(
        Scatter(
            output=build.buffer(name, NODES, *rest, dtype=buffer.dtype),
            into=f"{name}_zeros",
            ranges=(i, *j),
            index=(placeholder(0), *j),
            indirect=(build.at(positions, i),),
            value=build.at(value, i, *j)
            if order is None
            else load(value, (placeholder(0), *j), buffer.dtype, indirect=(build.at(order, i),)),
            mode=mode,
        )
    )


def graph(build, *, edges=EDGES, width=WIDTH, dtype=F64):
    build.input("x", NODES, width, dtype=dtype)
    build.input("src", edges, dtype=I64)
    build.input("dst", edges, dtype=I64)
    build.input("order", edges, dtype=I64)


@pytest.mark.parametrize("wraps", [False, True])
def test_messages_are_gathered_where_they_are_added_in_order(build, compare, wraps):
    graph(build)
    gather(build, "messages", "x", "src", wraps=wraps)
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {
        ("out_zeros",),
        ("src", "messages_positions"),
        ("order", "messages_positions", "x", "dst", "out"),
    }
    assert checks(made) == [["out of range"]]


def test_so_they_are_with_pointwise_work_between(build, compare):
    graph(build)
    build.input("w", EDGES)
    gather(build, "messages", "x", "src")
    build.pointwise(
        "weighted", [EDGES, WIDTH], lambda i, j: op("mul", build.at("messages", i, j), build.at("w", i))
    )
    scatter(build, "out", "weighted", "dst", order="order")
    made = compare(build.graph("out"))
    assert not any({"messages", "weighted"} & set(call.args) for call in calls(made))
    assert checks(made) == [["out of range"]]


def test_rows_are_read_at_yet_other_positions(build, compare):
    graph(build)
    gather(build, "rows", "x", "src", message="first")
    gather(build, "out", "rows", "order", message="second")
    made = compare(build.graph("out"))
    assert not any("rows" in call.args for call in calls(made))
    assert sorted(checks(made)) == [["first"], ["second"]]


def test_equal_positions_are_stored_once(build, compare):
    graph(build)
    build.input("y", NODES, WIDTH)
    gather(build, "a", "x", "src")
    gather(build, "b", "y", "src")
    build.pointwise("sum", [EDGES, WIDTH], lambda i, j: op("add", build.at("a", i, j), build.at("b", i, j)))
    scatter(build, "out", "sum", "dst", order="order")
    made = compare(build.graph("out"))
    assert checks(made) == [["out of range"]]
    assert sorted(name for call in calls(made) for name in call.args if "positions" in name) == [
        "a_positions",
        "a_positions",
    ]


def test_positions_take_as_few_bytes_as_they_need(build):
    graph(build)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = schedule(build.graph("out"), target("sm_90"))
    (stored,) = [b for b in made.buffers if b.name == "messages_positions"]
    assert stored.dtype is I32 and stored.shape == (as_expr(EDGES),)


def test_the_number_of_edges_may_be_open(build, compare):
    edges = symbol("s0", lo=2)
    graph(build, edges=edges)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out", symbols=(edges,)), sizes={"s0": 5})
    assert not any("messages" in call.args for call in calls(made))


@pytest.mark.parametrize("least", [0, 1])
def test_nothing_is_checked_that_was_not(build, compare, least):
    # without columns nothing is looked up
    width = symbol("s0", lo=least)
    graph(build, width=width)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out", symbols=(width,)), sizes={"s0": 3})
    assert any("messages" in call.args for call in calls(made)) == (least == 0)


def test_what_the_caller_wants_is_checked_where_it_is_stored(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = compare(build.graph("out", "messages"))
    assert not any("messages_positions" in call.args for call in calls(made))


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
    # three tables are read again by each of the scatters: their sum is stored, in the kernel that looks them up
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


def test_a_check_of_something_else_stays(build, compare):
    graph(build)
    gather(build, "messages", "x", "src")
    node = build.nodes[-1]
    positive = Check(condition=op("ge", build.at("x", 0, 0), const(-1.0, F64)), message="negative")
    build.nodes[-1] = replace(node, checks=(*node.checks, positive))
    scatter(build, "out", "messages", "dst", order="order")
    made = compare(build.graph("out"))
    assert sorted(checks(made)) == [["out of range", "negative"]]
    assert any("messages" in call.args for call in calls(made))


def test_columns_lie_innermost_where_rows_are_looked_up(build):
    graph(build, edges=4096, width=64, dtype=F32)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = schedule(build.graph("out"), target("sm_90"))
    (kernel,) = [k for k in made.kernels if any(store.mode == "add" for store in k.stores)]
    assert [r.symbol.extent for r in kernel.ranges] == [as_expr(4096), as_expr(64)]


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("mode", ["add", "store"])
def test_a_scatter_takes_checks_over(build, compare, wraps, mode):
    graph(build)
    build.input("w", EDGES)
    gather(build, "messages", "x", "src", wraps=wraps)
    build.pointwise(
        "weighted", [EDGES, WIDTH], lambda i, j: op("mul", build.at("messages", i, j), build.at("w", i))
    )
    scatter(build, "out", "weighted", "dst", mode=mode)
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {("out_zeros",), ("src", "x", "w", "dst", "out")}
    assert checks(made) == [["out of range"]]


def test_so_it_does_of_single_elements(build, compare):
    build.input("x", NODES, dtype=F32)
    build.input("src", EDGES, dtype=I64)
    build.input("dst", EDGES, dtype=I64)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    made = compare(build.graph("out"))
    assert {call.args for call in calls(made)} == {("out_zeros",), ("src", "x", "dst", "out")}


def test_positions_are_checked_before_what_is_looked_up_by_their_means(build, compare):
    graph(build)
    build.input("more", NODES, dtype=I64)
    gather(build, "messages", "x", "src", message="of rows")
    gather(build, "targets", "more", "dst", message="of targets")
    scatter(build, "out", "messages", "targets")
    node = build.nodes[-1]
    target_inside = op("lt", build.at("targets", node.ranges[0]), const(NODES, I64))
    build.nodes[-1] = replace(node, checks=(Check(condition=target_inside, message="its own"),))
    made = compare(build.graph("out"))
    (found,) = checks(made)
    assert set(found) == {"of rows", "of targets", "its own"} and found[-1] == "its own"


def test_each_of_several_scatters_takes_checks_over(build, compare):
    graph(build)
    build.input("more", EDGES, dtype=I64)
    gather(build, "messages", "x", "src")
    scatter(build, "out", "messages", "dst")
    scatter(build, "other", "messages", "more")
    made = compare(build.graph("out", "other"))
    assert not any("messages" in call.args for call in calls(made))
    assert checks(made) == [["out of range"], ["out of range"]]


@pytest.mark.parametrize("start", [0, 1])
def test_all_points_are_checked(build, compare, start):
    # a part of the rows is scattered, all of them are checked
    graph(build)
    gather(build, "messages", "x", "src")
    build.pointwise("part", [EDGES - 1, WIDTH], lambda i, j: op("neg", build.at("messages", i + start, j)))
    build.input("fewer", EDGES - 1, dtype=I64)
    scatter(build, "out", "part", "fewer")
    made = compare(build.graph("out"))
    assert not any("messages" in call.args for call in calls(made))
    kernels = {kernel.name: kernel for kernel in made.kernels}
    (checking,) = [kernels[call.kernel] for call in calls(made) if kernels[call.kernel].checks]
    assert [r.symbol.extent for r in checking.ranges] == [as_expr(EDGES)]
