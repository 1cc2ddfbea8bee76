"""Graphs that look rows up at checked positions."""

from __future__ import annotations

from dataclasses import replace

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_expr
from coilwork_ir.kernels import KernelCall
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.scalar import const, index_value, load, op, placeholder, where

I64, F64 = DType.I64, DType.F64
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


def scatter(build, name, value, positions, *, order=None, mode="add", into=None):
    """`name`: the rows of `value` added at `positions`, which are not checked, to zeros, or over `into`; in
    the order of the positions `order`.
    """
    buffer = build.buffers[value]
    count, *rest = buffer.shape
    if into is None:
        into = f"{name}_zeros"
        build.pointwise(into, [NODES, *rest], lambda *i: const(0, buffer.dtype), dtype=buffer.dtype)
    i, *j = build.ranges(count, *rest)
    build.nodes.append(
        Scatter(
            output=build.buffer(name, NODES, *rest, dtype=buffer.dtype),
            into=into,
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
