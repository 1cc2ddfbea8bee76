"""Shapes as tracing a program with loops makes them: every step is there, with numbers of its own."""

from __future__ import annotations

import operator

import torch
from torch.fx import Node

from benchmarks.graph_shapes.recorder import Recorder, aten

ROWS, COLUMNS = 32, 48


def wheres_nested(g: Recorder, n: int) -> list[Node]:
    """A table of cases: where the first condition holds a value, else where the second holds, and so on."""
    x = g.input(ROWS, COLUMNS)
    found = x
    for k in range(max(1, n // 3)):
        mask = g.call(aten.gt.Scalar, x, float(k))
        found = g.call(aten.where.self, mask, g.call(aten.mul.Tensor, x, float(k)), found)
    return [found]


def windows_stacked(g: Recorder, n: int) -> list[Node]:
    """Windows of one signal, each with a weight, beside each other."""
    count = max(2, n // 3)
    x = g.input(count + 8)
    parts = []
    for k in range(count):
        window = g.call(aten.slice.Tensor, x, 0, k, k + 8)
        parts.append(g.call(aten.unsqueeze.default, g.call(aten.mul.Tensor, window, float(k)), 0))
    return [g.call(aten.cat.default, parts)]


def halves(g: Recorder, n: int) -> list[Node]:
    """Halves of halves, each computed with, put together again from the smallest up."""

    def put_together(x: Node, count: int) -> Node:
        length = x.meta["val"].shape[0]
        if count < 4 or length < 2:
            return g.call(aten.sin.default, x)
        low = put_together(g.call(aten.slice.Tensor, x, 0, 0, length // 2), (count - 3) // 2)
        high = put_together(g.call(aten.slice.Tensor, x, 0, length // 2, length), (count - 3) // 2)
        return g.call(aten.cat.default, [high, low])

    return [put_together(g.input(n, 8), n)]


def scalar_loop(g: Recorder, n: int) -> list[Node]:
    """A loop over numbers: each from the one before and an element."""
    count = max(1, n // 3)
    x = g.input(count)
    state = g.call(aten.full.default, [], 0.0, dtype=torch.float32)
    for k in range(count):
        one = g.call(aten.select.int, x, 0, k)
        state = g.call(aten.add.Tensor, g.call(aten.mul.Tensor, state, 0.5), one)
    return [state]


def rows_apart(g: Recorder, n: int) -> list[Node]:
    """Each row of a matrix divided by its own sum, then all of them together."""
    count = max(2, n // 5)
    x = g.input(count, COLUMNS)
    parts = []
    for k in range(count):
        row = g.call(aten.select.int, x, 0, k)
        whole = g.call(aten.sum.dim_IntList, g.call(aten.exp.default, row), [0], True)
        parts.append(g.call(aten.unsqueeze.default, g.call(aten.div.Tensor, row, whole), 0))
    return [g.call(aten.cat.default, parts)]


def pads_growing(g: Recorder, n: int) -> list[Node]:
    """A row of zeros more at each step: every size is there once."""
    x = g.input(4, COLUMNS)
    found = []
    for _ in range(max(1, n // 3)):
        x = g.call(aten.sin.default, g.call(aten.constant_pad_nd.default, x, [0, 0, 0, 1], 0.0))
        found.append(g.call(aten.sum.dim_IntList, x, [0]))
    return found


def powers_beside(g: Recorder, n: int) -> list[Node]:
    """Powers of one input, whose sums are results: kernels that differ in a constant."""
    x = g.input(ROWS, COLUMNS)
    found = []
    for k in range(max(1, n // 2)):
        power = g.call(aten.pow.Tensor_Scalar, x, 0.5 + k)
        found.append(g.call(aten.sum.dim_IntList, power, [k % 2]))
    return found


def index_puts_shifted(g: Recorder, n: int) -> list[Node]:
    """Sums at positions that move by one at each step."""
    x, rows, v = g.input(ROWS, COLUMNS), g.input(8, dtype=torch.int64), g.input(8, COLUMNS)
    for k in range(max(1, n // 3)):
        at = g.call(aten.remainder.Scalar, g.call(aten.add.Tensor, rows, k), ROWS)
        x = g.call(aten.index_put.default, x, [at], v, True)
    return [x]


def scans_turned(g: Recorder, n: int) -> list[Node]:
    """Running sums along rows and columns in turn, and backwards."""
    x = g.input(ROWS, COLUMNS)
    for k in range(max(1, n // 3)):
        x = g.call(aten.cumsum.default, g.call(aten.flip.default, x, [k % 2]), k % 2)
        x = g.call(aten.mul.Tensor, x, 0.25)
    return [x]


def gates(g: Recorder, n: int) -> list[Node]:
    """An LSTM, step by step: four gates are slices of one product."""
    x, h, c = g.input(ROWS, 4 * COLUMNS), g.input(ROWS, COLUMNS), g.input(ROWS, COLUMNS)
    w = g.input(COLUMNS, 4 * COLUMNS, is_open=False)
    while g.count < n:
        fed = g.call(aten.add.Tensor, g.call(aten.mm.default, h, w), x)
        parts = [g.call(aten.slice.Tensor, fed, 1, k * COLUMNS, (k + 1) * COLUMNS) for k in range(4)]
        i, f, o = (g.call(aten.sigmoid.default, part) for part in parts[:3])
        fresh = g.call(aten.mul.Tensor, i, g.call(aten.tanh.default, parts[3]))
        c = g.call(aten.add.Tensor, g.call(aten.mul.Tensor, f, c), fresh)
        h = g.call(aten.mul.Tensor, o, g.call(aten.tanh.default, c))
    return [h, c]


def heads(g: Recorder, n: int) -> list[Node]:
    """Attention written out: heads apart, products, a softmax under a mask, heads together, residual."""
    x, w = g.input(ROWS, COLUMNS, is_open=False), g.input(COLUMNS, COLUMNS, is_open=False)
    mask = g.input(ROWS, ROWS, dtype=torch.bool, is_open=False)
    while g.count < n:
        mixed = g.call(aten.mm.default, x, w)
        apart = g.call(aten.permute.default, g.call(aten.reshape.default, mixed, [ROWS, 4, 12]), [1, 0, 2])
        scores = g.call(aten.bmm.default, apart, g.call(aten.permute.default, apart, [0, 2, 1]))
        scores = g.call(aten.where.ScalarOther, mask, scores, -1e9)
        e = g.call(
            aten.exp.default, g.call(aten.sub.Tensor, scores, g.call(aten.amax.default, scores, [2], True))
        )
        weights = g.call(aten.div.Tensor, e, g.call(aten.sum.dim_IntList, e, [2], True))
        found = g.call(aten.permute.default, g.call(aten.bmm.default, weights, apart), [1, 0, 2])
        x = g.call(aten.add.Tensor, x, g.call(aten.reshape.default, found, [ROWS, COLUMNS]))
    return [x]


def products_beside(g: Recorder, n: int) -> list[Node]:
    """Small products of different sizes, each followed by an activation and a sum."""
    found = []
    for k in range(max(1, n // 3)):
        inner = k % 23 + 3
        product = g.call(aten.mm.default, g.input(8, inner), g.input(inner, 16, is_open=False))
        found.append(g.call(aten.sum.default, g.call(aten.relu.default, product)))
    return found


def integers(g: Recorder, n: int) -> list[Node]:
    """Integer arithmetic with shifts and masks, its comparisons, and casts between widths: a hash."""
    x = g.input(ROWS, COLUMNS, dtype=torch.int64)
    types = (torch.int32, torch.int64, torch.uint8, torch.int64)
    for k in range(max(1, n // 4)):
        mixed = g.call(aten.bitwise_xor.Tensor, x, g.call(aten.__rshift__.Scalar, x, 3))
        mixed = g.call(aten.mul.Tensor, mixed, 2 * k + 1)
        x = g.call(torch.ops.prims.convert_element_type.default, mixed, types[k % 4])
    return [x]


def dropouts_trained(g: Recorder, n: int) -> list[Node]:
    """Residual layers with dropout, forward and backward."""
    x, w = g.input(ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False)
    saved = []
    for _ in range(max(1, n // 13)):
        product = g.call(aten.mm.default, x, w)
        active = g.call(aten.relu.default, product)
        kept = g.call(aten.gt.Scalar, g.call(aten.rand.default, [ROWS, COLUMNS]), 0.1)
        saved.append((x, active, kept))
        x = g.call(aten.add.Tensor, x, g.call(aten.mul.Tensor, g.call(aten.mul.Tensor, active, kept), 1.25))
    grad, grads = x, []
    for given, active, kept in reversed(saved):
        slope = g.call(aten.mul.Tensor, g.call(aten.mul.Tensor, grad, kept), 1.25)
        slope = g.call(aten.where.ScalarOther, g.call(aten.gt.Scalar, active, 0.0), slope, 0.0)
        grads.append(g.call(aten.mm.default, g.call(aten.permute.default, given, [1, 0]), slope))
        grad = g.call(aten.add.Tensor, grad, g.call(aten.mm.default, slope, w))
    return [grad, *grads]


def sorts(g: Recorder, n: int) -> list[Node]:
    """Rows sorted, computed with, and sorted again."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(max(1, n // 3)):
        pair = g.call(aten.sort.default, x, 1)
        x = g.call(aten.cos.default, g.call(operator.getitem, pair, 0))
    return [x]


def stages_of_images(g: Recorder, n: int) -> list[Node]:
    """Convolution, batch norm written out, activation, a mean of neighbours: channels of an image."""
    x, w = g.input(2, 8, 12, 12, is_open=False), g.input(8, 8, 3, 3, is_open=False)
    while g.count < n:
        y = g.call(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        mean = g.call(aten.mean.dim, y, [0, 2, 3], True)
        centred = g.call(aten.sub.Tensor, y, mean)
        spread = g.call(aten.mean.dim, g.call(aten.mul.Tensor, centred, centred), [0, 2, 3], True)
        y = g.call(aten.mul.Tensor, centred, g.call(aten.rsqrt.default, spread))
        y = g.call(aten.avg_pool2d.default, g.call(aten.relu.default, y), [3, 3], [1, 1], [1, 1])
        x = g.call(aten.add.Tensor, x, y)
    return [x]


UNROLLED_LOOPS = (
    wheres_nested,
    windows_stacked,
    halves,
    scalar_loop,
    rows_apart,
    pads_growing,
    powers_beside,
    index_puts_shifted,
    scans_turned,
    gates,
    heads,
    products_beside,
    integers,
    dropouts_trained,
    sorts,
    stages_of_images,
)
