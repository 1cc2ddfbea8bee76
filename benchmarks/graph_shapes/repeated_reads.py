"""Shapes whose values are each read at several places: parts that are put together again, blocks that are
written into.

Were every reader to compute what it reads, the work would double at each step.
"""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from benchmarks.graph_shapes.recorder import Recorder, aten

ROWS, COLUMNS = 32, 48


def rolls(g: Recorder, n: int) -> list[Node]:
    """A value, and the same rolled by one column, added."""
    x = g.input(ROWS, COLUMNS)
    while g.count < n:
        low = g.call(aten.slice.Tensor, x, 1, 1, COLUMNS)
        high = g.call(aten.slice.Tensor, x, 1, 0, 1)
        x = g.call(aten.add.Tensor, x, g.call(aten.cat.default, [low, high], 1))
    return [x]


def rotations(g: Recorder, n: int) -> list[Node]:
    """Rotary embeddings: halves that change places, and one its sign."""
    x, cosine, sine = g.input(ROWS, COLUMNS), g.input(COLUMNS, is_open=False), g.input(COLUMNS, is_open=False)
    while g.count < n:
        low = g.call(aten.slice.Tensor, x, 1, 0, COLUMNS // 2)
        high = g.call(aten.slice.Tensor, x, 1, COLUMNS // 2, COLUMNS)
        turned = g.call(aten.cat.default, [g.call(aten.neg.default, high), low], 1)
        x = g.call(aten.add.Tensor, g.call(aten.mul.Tensor, x, cosine), g.call(aten.mul.Tensor, turned, sine))
    return [x]


def lifting(g: Recorder, n: int) -> list[Node]:
    """Sums and differences of neighbours: wavelets."""
    x = g.input(64, COLUMNS)
    while g.count < n:
        even = g.call(aten.slice.Tensor, x, 0, 0, 64, 2)
        odd = g.call(aten.slice.Tensor, x, 0, 1, 64, 2)
        x = g.call(aten.cat.default, [g.call(aten.add.Tensor, even, odd), g.call(aten.sub.Tensor, even, odd)])
    return [x]


def stencils(g: Recorder, n: int) -> list[Node]:
    """Sums of three neighbours, without the ends."""
    x = g.input(4 * n + 8)
    while g.count < n:
        length = x.meta["val"].shape[0]
        left, middle, right = (g.call(aten.slice.Tensor, x, 0, k, length - 2 + k) for k in range(3))
        x = g.call(aten.sub.Tensor, g.call(aten.add.Tensor, left, right), middle)
    return [x]


def stencils_padded(g: Recorder, n: int) -> list[Node]:
    """Means of two neighbours, with zeros behind the ends."""
    x = g.input(ROWS, COLUMNS)
    while g.count < n:
        padded = g.call(aten.constant_pad_nd.default, x, [1, 1], 0.0)
        left = g.call(aten.slice.Tensor, padded, 1, 0, COLUMNS)
        right = g.call(aten.slice.Tensor, padded, 1, 2, COLUMNS + 2)
        x = g.call(aten.mul.Tensor, g.call(aten.add.Tensor, left, right), 0.5)
    return [x]


def lookups_of_lookups(g: Recorder, n: int) -> list[Node]:
    """Indices that are looked up at themselves."""
    x, rows = g.input(ROWS, COLUMNS), g.input(ROWS, COLUMNS, dtype=torch.int64)
    while g.count < n:
        found = g.call(aten.gather.default, rows, 0, rows)
        rows = g.call(aten.remainder.Scalar, g.call(aten.add.Tensor, found, 1), ROWS)
    return [g.call(aten.gather.default, x, 0, rows)]


def cache_of_steps(g: Recorder, n: int) -> list[Node]:
    """Rows put behind all rows before, and computed from them: keys of a decoder."""
    x, row = g.input(4, COLUMNS), g.input(1, COLUMNS, is_open=False)
    for _ in range(max(1, n // 4)):
        x = g.call(aten.cat.default, [x, row])
        weighed = g.call(aten.mul.Tensor, x, row)
        row = g.call(aten.tanh.default, g.call(aten.sum.dim_IntList, weighed, [0], True))
    return [row]


def block_assigned(g: Recorder, n: int) -> list[Node]:
    """`x[4:12] = sin(x[4:12])`, functional, again and again."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(max(1, n // 3)):
        part = g.call(aten.sin.default, g.call(aten.slice.Tensor, x, 0, 4, 12))
        x = g.call(aten.slice_scatter.default, x, part, 0, 4, 12)
    return [x]


def states_assigned(g: Recorder, n: int) -> list[Node]:
    """An input that gets every state of a recurrence, written back."""
    count = max(2, n // 3)
    x = given = g.input(count, COLUMNS)
    state = g.input(COLUMNS, is_open=False)
    for k in range(count):
        state = g.call(aten.sin.default, state)
        x = g.call(aten.select_scatter.default, x, state, 0, k)
    g.call(aten.copy_.default, given, x)
    return [state]


def table_filled(g: Recorder, n: int) -> list[Node]:
    """Dynamic programming: `x[i, j] = x[i - 1, j] + x[i, j - 1]`, functional."""
    side = max(2, math.isqrt(n // 7))
    x = g.input(side + 1, side + 1)
    for i in range(1, side + 1):
        for j in range(1, side + 1):
            above = g.call(aten.select.int, g.call(aten.select.int, x, 0, i - 1), 0, j)
            row = g.call(aten.select.int, x, 0, i)
            left = g.call(aten.select.int, row, 0, j - 1)
            row = g.call(aten.select_scatter.default, row, g.call(aten.add.Tensor, above, left), 0, j)
            x = g.call(aten.select_scatter.default, x, row, 0, i)
    return [x]


def sinkhorn(g: Recorder, n: int) -> list[Node]:
    """Divided by sums of rows, then of columns, in turn."""
    x = g.input(ROWS, COLUMNS)
    for k in range(max(1, n // 2)):
        x = g.call(aten.div.Tensor, x, g.call(aten.sum.dim_IntList, x, [k % 2], True))
    return [x]


READ_APART = (
    rolls,
    rotations,
    lifting,
    stencils,
    stencils_padded,
    lookups_of_lookups,
    cache_of_steps,
    block_assigned,
    states_assigned,
    table_filled,
    sinkhorn,
)
