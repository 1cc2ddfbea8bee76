"""Shapes of graph: each function records a graph of about `n` operations, and returns its results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from benchmarks.graph_shapes.recorder import Recorder, aten
from benchmarks.graph_shapes.repeated_reads import READ_APART, rotations, sinkhorn
from benchmarks.graph_shapes.unrolled_loops import UNROLLED_LOOPS

ROWS, COLUMNS = 32, 48


def chain(g: Recorder, n: int) -> list[Node]:
    """Pointwise operations, each of the one before."""
    x = g.input(ROWS, COLUMNS)
    for k in range(n):
        x = g.call(aten.sin.default, x) if k % 2 else g.call(aten.mul.Tensor, x, 1.5)
    return [x]


def chain_of_two(g: Recorder, n: int) -> list[Node]:
    """The same, where each reads the input, too."""
    first = x = g.input(ROWS, COLUMNS)
    for _ in range(n):
        x = g.call(aten.add.Tensor, x, first)
    return [x]


def chain_kept(g: Recorder, n: int) -> list[Node]:
    """A chain of which every tenth value is a result."""
    x, kept = g.input(ROWS, COLUMNS), []
    for k in range(n):
        x = g.call(aten.sin.default, x)
        if k % 10 == 9:
            kept.append(x)
    return [*kept, x]


def chain_of_types(g: Recorder, n: int) -> list[Node]:
    """Casts between types, and a product between them."""
    x = g.input(ROWS, COLUMNS)
    types = (torch.bfloat16, torch.float32, torch.float16, torch.float32)
    for k in range(n // 2):
        x = g.call(aten.mul.Tensor, x, 1.25)
        x = g.call(torch.ops.prims.convert_element_type.default, x, types[k % 4])
    return [x]


def reductions(g: Recorder, n: int) -> list[Node]:
    """A chain with a sum of rows at every tenth step."""
    x = g.input(ROWS, COLUMNS)
    for k in range(n // 2 + 1):
        if k % 5 == 4:
            x = g.call(aten.sub.Tensor, x, g.call(aten.sum.dim_IntList, x, [1], True))
        else:
            x = g.call(aten.sin.default, x)
    return [x]


def reductions_beside(g: Recorder, n: int) -> list[Node]:
    """Sums of one input over its dimensions in turn, each a result."""
    x = g.input(ROWS, COLUMNS)
    found = []
    for k in range(n // 2):
        scaled = g.call(aten.mul.Tensor, x, float(k))
        found.append(g.call(aten.sum.dim_IntList, scaled, [[0], [1], [0, 1]][k % 3]))
    return found


def norms(g: Recorder, n: int) -> list[Node]:
    """Layers of a mean, a variance and what divides by it."""
    x, w = g.input(ROWS, COLUMNS), g.input(COLUMNS, is_open=False)
    while g.count < n:
        mean = g.call(aten.mean.dim, x, [1], True)
        centred = g.call(aten.sub.Tensor, x, mean)
        square = g.call(aten.mean.dim, g.call(aten.mul.Tensor, centred, centred), [1], True)
        scale = g.call(aten.rsqrt.default, g.call(aten.add.Tensor, square, 1e-5))
        x = g.call(aten.mul.Tensor, g.call(aten.mul.Tensor, centred, scale), w)
    return [x]


def softmaxes(g: Recorder, n: int) -> list[Node]:
    """Softmaxes of softmaxes."""
    x = g.input(ROWS, COLUMNS)
    while g.count < n:
        largest = g.call(aten.amax.default, x, [1], True)
        e = g.call(aten.exp.default, g.call(aten.sub.Tensor, x, largest))
        x = g.call(aten.div.Tensor, e, g.call(aten.sum.dim_IntList, e, [1], True))
    return [x]


def tree(g: Recorder, n: int) -> list[Node]:
    """A binary tree of sums over scaled inputs."""
    x = g.input(ROWS, COLUMNS)
    level = [g.call(aten.mul.Tensor, x, float(k)) for k in range((n + 1) // 2)]
    while len(level) > 1:
        level = [
            g.call(aten.add.Tensor, level[k], level[k + 1]) if k + 1 < len(level) else level[k]
            for k in range(0, len(level), 2)
        ]
    return level


def tree_of_inputs(g: Recorder, n: int) -> list[Node]:
    """A binary tree of sums over inputs."""
    level = [g.input(ROWS, COLUMNS) for _ in range(n)]
    while len(level) > 1:
        level = [
            g.call(aten.add.Tensor, level[k], level[k + 1]) if k + 1 < len(level) else level[k]
            for k in range(0, len(level), 2)
        ]
    return level


def grid(g: Recorder, n: int) -> list[Node]:
    """A square in which each value is the mean of its neighbours above and to the left."""
    side = max(2, math.isqrt(n // 2))
    row = [g.input(ROWS, COLUMNS) for _ in range(side)]
    left = g.input(ROWS, COLUMNS)
    for _ in range(side):
        before = left
        made = []
        for above in row:
            before = g.call(aten.mul.Tensor, g.call(aten.add.Tensor, above, before), 0.5)
            made.append(before)
        row = made
    return [row[-1]]


def fan_out(g: Recorder, n: int) -> list[Node]:
    """One computed value with `n` readers, all of them results."""
    x = g.call(aten.sin.default, g.input(ROWS, COLUMNS))
    return [g.call(aten.mul.Tensor, x, float(k)) for k in range(n)]


def fan_in_sum(g: Recorder, n: int) -> list[Node]:
    """A sum of `n` values, one after the other."""
    x = g.input(ROWS, COLUMNS)
    parts = [g.call(aten.pow.Tensor_Scalar, x, float(k % 7 + 2)) for k in range(n // 2)]
    total = parts[0]
    for part in parts[1:]:
        total = g.call(aten.add.Tensor, total, part)
    return [total]


def fan_in_cat(g: Recorder, n: int) -> list[Node]:
    """One concatenation of `n` values."""
    x = g.input(ROWS, COLUMNS)
    return [g.call(aten.cat.default, [g.call(aten.mul.Tensor, x, float(k)) for k in range(n)])]


def fan_in_stack(g: Recorder, n: int) -> list[Node]:
    """One stack of `n` inputs, whose columns are then summed."""
    parts = [g.call(aten.unsqueeze.default, g.input(COLUMNS, is_open=False), 0) for _ in range(n)]
    return [g.call(aten.sum.dim_IntList, g.call(aten.cat.default, parts), [0])]


def cat_read_apart(g: Recorder, n: int) -> list[Node]:
    """A concatenation of `n` values, read slice by slice again."""
    x = g.input(ROWS, COLUMNS)
    count = n // 3
    whole = g.call(aten.cat.default, [g.call(aten.mul.Tensor, x, float(k)) for k in range(count)])
    total = x
    for k in range(count):
        part = g.call(aten.slice.Tensor, whole, 0, k * ROWS, (k + 1) * ROWS)
        total = g.call(aten.add.Tensor, total, part)
    return [total]


def beside(g: Recorder, n: int) -> list[Node]:
    """Operations on inputs of their own: a foreach operator."""
    return [g.call(aten.mul.Tensor, g.input(ROWS, COLUMNS), 2.0) for _ in range(n)]


def sizes_beside(g: Recorder, n: int) -> list[Node]:
    """The same with inputs of different sizes."""
    return [g.call(aten.mul.Tensor, g.input(k + 2, k % 13 + 2), 2.0) for k in range(n)]


def reductions_of_inputs(g: Recorder, n: int) -> list[Node]:
    """A norm of each of many inputs, and of all of them: gradients that are clipped."""
    grads = [g.input(k % 29 + 2, COLUMNS) for k in range(n // 4)]
    squares = [g.call(aten.sum.default, g.call(aten.mul.Tensor, x, x)) for x in grads]
    total = g.call(
        aten.sum.default, g.call(aten.cat.default, [g.call(aten.unsqueeze.default, s, 0) for s in squares])
    )
    scale = g.call(aten.rsqrt.default, total)
    return [g.call(aten.mul.Tensor, x, scale) for x in grads]


def optimizer(g: Recorder, n: int) -> list[Node]:
    """Many inputs, updated in place with momentum."""
    for k in range(max(1, n // 6)):
        shape = (k % 17 + 2, COLUMNS)
        p, grad, m = g.input(*shape), g.input(*shape), g.input(*shape)
        moment = g.call(aten.add.Tensor, g.call(aten.mul.Tensor, m, 0.9), grad)
        new = g.call(aten.sub.Tensor, p, g.call(aten.mul.Tensor, moment, 0.1))
        g.call(aten.copy_.default, m, moment)
        g.call(aten.copy_.default, p, new)
    return []


def ladder(g: Recorder, n: int) -> list[Node]:
    """Transposes with a pointwise operation between them."""
    x = g.input(ROWS, ROWS)
    for _ in range(n // 2):
        x = g.call(aten.sin.default, g.call(aten.permute.default, x, [1, 0]))
    return [x]


def views(g: Recorder, n: int) -> list[Node]:
    """Reshapes, and a pointwise operation between them."""
    x = g.input(24, 36)
    shapes = ([36, 24], [864], [12, 72], [2, 3, 4, 36], [24, 36])
    for k in range(n // 2):
        x = g.call(aten.cos.default, g.call(aten.reshape.default, x, shapes[k % 5]))
    return [x]


def flips(g: Recorder, n: int) -> list[Node]:
    """Rolls and flips with a sum between them."""
    first = x = g.input(ROWS, COLUMNS)
    for k in range(n // 2):
        x = g.call(aten.add.Tensor, g.call(aten.flip.default, x, [k % 2]), first)
    return [x]


def views_only(g: Recorder, n: int) -> list[Node]:
    """Views of views, of which the last one is computed with and written back into the input."""
    x = g.input(24, 24)
    view = x
    for k in range(n):
        view = (
            g.call(aten.permute.default, view, [1, 0]) if k % 2 else g.call(aten.slice.Tensor, view, 0, 0, 24)
        )
    g.call(aten.copy_.default, x, g.call(aten.permute.default, g.call(aten.sin.default, view), [1, 0]))
    return []


def views_of_updates(g: Recorder, n: int) -> list[Node]:
    """An input that is written into at indices from data, of which rows are read between, and overwritten at
    the end.
    """
    given = x = g.input(ROWS, COLUMNS)
    rows, total = g.input(8, dtype=torch.int64), g.input(8, COLUMNS)
    for _ in range(n // 4):
        x = g.call(aten.index_put.default, x, [rows], total)
        part = g.call(aten.slice.Tensor, g.call(aten.permute.default, x, [1, 0]), 1, 4, 12)
        total = g.call(aten.add.Tensor, total, g.call(aten.permute.default, part, [1, 0]))
    g.call(aten.copy_.default, given, x)
    return [total]


def readers_of_a_product(g: Recorder, n: int) -> list[Node]:
    """One matrix product with `n` readers, each a result."""
    x = g.call(aten.mm.default, g.input(ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False))
    return [g.call(aten.mul.Tensor, x, float(k)) for k in range(n)]


def readers_of_a_sum(g: Recorder, n: int) -> list[Node]:
    """One sum of rows with `n` readers, whose results are added up."""
    x = g.input(ROWS, COLUMNS)
    row_sums = g.call(aten.sum.dim_IntList, x, [1], True)
    found = [g.call(aten.div.Tensor, g.call(aten.add.Tensor, x, float(k)), row_sums) for k in range(n // 3)]
    total = found[0]
    for one in found[1:]:
        total = g.call(aten.add.Tensor, total, g.call(aten.sin.default, one))
    return [total, *found]


def views_returned(g: Recorder, n: int) -> list[Node]:
    """Results that are rows of one computed value."""
    x = g.call(aten.sin.default, g.input(n, COLUMNS))
    return [g.call(aten.select.int, x, 0, k) for k in range(n)]


def slices_read(g: Recorder, n: int) -> list[Node]:
    """Slices of one input, scaled, each a result."""
    x = g.input(n, COLUMNS)
    return [
        g.call(aten.mul.Tensor, g.call(aten.slice.Tensor, x, 0, 2 * k, 2 * k + 2), 3.0)
        for k in range(max(1, n // 2))
    ]


def slices_assigned(g: Recorder, n: int) -> list[Node]:
    """`x[k] = y[k] * k` for many k, functional."""
    count = max(2, n // 4)
    x, y = g.input(count, COLUMNS), g.input(count, COLUMNS)
    for k in range(count):
        row = g.call(aten.mul.Tensor, g.call(aten.select.int, y, 0, k), float(k))
        x = g.call(aten.select_scatter.default, x, row, 0, k)
    return [x]


def slices_assigned_wide(g: Recorder, n: int) -> list[Node]:
    """`x[k : k + 8] = x[k : k + 8] * 2`: slices that overlap."""
    count = max(2, n // 3)
    x = g.input(count + 8, COLUMNS)
    for k in range(count):
        part = g.call(aten.mul.Tensor, g.call(aten.slice.Tensor, x, 0, k, k + 8), 2.0)
        x = g.call(aten.slice_scatter.default, x, part, 0, k, k + 8)
    return [x]


def recurrence_assigned(g: Recorder, n: int) -> list[Node]:
    """`x[k] = sin(x[k - 1])` for many k, functional: each step reads what the one before wrote."""
    count = max(2, n // 3)
    x = g.input(count + 1, COLUMNS)
    for k in range(count):
        row = g.call(aten.sin.default, g.call(aten.select.int, x, 0, k))
        x = g.call(aten.select_scatter.default, x, row, 0, k + 1)
    return [x]


def elements(g: Recorder, n: int) -> list[Node]:
    """A double loop over single elements, added up."""
    side = max(2, math.isqrt(n // 4))
    x = g.input(side, side)
    total = g.call(aten.full.default, [], 0.0, dtype=torch.float32)
    for i in range(side):
        for j in range(side):
            one = g.call(aten.select.int, g.call(aten.select.int, x, 0, i), 0, j)
            total = g.call(aten.add.Tensor, total, g.call(aten.mul.Tensor, one, float(i - j)))
    return [total]


def elements_assigned(g: Recorder, n: int) -> list[Node]:
    """A double loop that computes elements and stacks them."""
    side = max(2, math.isqrt(n // 4))
    x = g.input(side, side)
    found = []
    for i in range(side):
        for j in range(side):
            one = g.call(aten.select.int, g.call(aten.select.int, x, 0, i), 0, j)
            found.append(g.call(aten.unsqueeze.default, g.call(aten.mul.Tensor, one, float(i - j)), 0))
    return [g.call(aten.cat.default, found)]


def index_puts(g: Recorder, n: int) -> list[Node]:
    """Writes at indices from data."""
    x, rows, v = g.input(ROWS, COLUMNS), g.input(8, dtype=torch.int64), g.input(8, COLUMNS)
    for k in range(n // 2):
        x = g.call(aten.index_put.default, x, [rows], g.call(aten.mul.Tensor, v, float(k)))
    return [x]


def scatters(g: Recorder, n: int) -> list[Node]:
    """Sums scattered into what sums were scattered into."""
    x, rows, v = g.input(ROWS, COLUMNS), g.input(8, COLUMNS, dtype=torch.int64), g.input(8, COLUMNS)
    for _ in range(n // 2):
        x = g.call(aten.sin.default, g.call(aten.scatter_add.default, x, 0, rows, v))
    return [x]


def gathers(g: Recorder, n: int) -> list[Node]:
    """Rows looked up in what was looked up, with a pointwise operation between."""
    x, rows = g.input(ROWS, COLUMNS), g.input(ROWS, dtype=torch.int64)
    for _ in range(n // 2):
        x = g.call(aten.sin.default, g.call(aten.index.Tensor, x, [rows]))
    return [x]


def embeddings(g: Recorder, n: int) -> list[Node]:
    """Many tables, looked up and added."""
    rows, total = g.input(ROWS, dtype=torch.int64), g.input(ROWS, COLUMNS)
    for _ in range(n // 2):
        looked_up = g.call(aten.embedding.default, g.input(100, COLUMNS, is_open=False), rows)
        total = g.call(aten.add.Tensor, total, looked_up)
    return [total]


def pads(g: Recorder, n: int) -> list[Node]:
    """Pads, pointwise operations, and slices that take the padding off again."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(n // 3):
        padded = g.call(aten.constant_pad_nd.default, x, [1, 1, 1, 1], 0.5)
        x = g.call(aten.slice.Tensor, g.call(aten.cos.default, padded), 0, 0, ROWS)
        x = g.call(aten.slice.Tensor, x, 1, 0, COLUMNS)
    return [x]


def cats(g: Recorder, n: int) -> list[Node]:
    """A value put together from halves of the one before."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(n // 4):
        low = g.call(aten.slice.Tensor, x, 0, 0, ROWS // 2)
        high = g.call(aten.sin.default, g.call(aten.slice.Tensor, x, 0, ROWS // 2, ROWS))
        x = g.call(aten.cat.default, [high, low])
    return [x]


def dense(g: Recorder, n: int) -> list[Node]:
    """Columns computed from all columns before, and put beside them."""
    x = g.input(ROWS, 4)
    for _ in range(n // 3):
        new = g.call(aten.sum.dim_IntList, g.call(aten.sin.default, x), [1], True)
        x = g.call(aten.cat.default, [x, new], 1)
    return [x]


def wheres(g: Recorder, n: int) -> list[Node]:
    """Selections by comparisons with a scalar."""
    x, y = g.input(ROWS, COLUMNS), g.input(ROWS, COLUMNS)
    for k in range(n // 3):
        mask = g.call(aten.gt.Scalar, x, float(k))
        x = g.call(aten.where.self, mask, y, g.call(aten.sin.default, x))
    return [x]


def conditions(g: Recorder, n: int) -> list[Node]:
    """`torch.cond` after `torch.cond`."""
    x = g.input(ROWS, COLUMNS)
    predicate = g.input(dtype=torch.bool)
    for _ in range(max(1, n // 5)):
        x = g.condition(
            predicate,
            (
                lambda inner, given: inner.call(aten.sin.default, given),
                lambda inner, given: inner.call(aten.cos.default, given),
            ),
            x,
        )
        x = g.call(aten.add.Tensor, x, 1.0)
    return [x]


def products(g: Recorder, n: int) -> list[Node]:
    """Matrix products, one after the other."""
    x, w = g.input(ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False)
    for _ in range(n):
        x = g.call(aten.mm.default, x, w)
    return [x]


def layers(g: Recorder, n: int) -> list[Node]:
    """Norm, product with weights of its own, activation, residual: layers of a model."""
    x = g.input(ROWS, COLUMNS)
    while g.count < n:
        mean = g.call(aten.mean.dim, x, [1], True)
        scaled = g.call(aten.mul.Tensor, g.call(aten.sub.Tensor, x, mean), g.input(COLUMNS, is_open=False))
        product = g.call(aten.mm.default, scaled, g.input(COLUMNS, COLUMNS, is_open=False))
        gate = g.call(aten.mul.Tensor, product, g.call(aten.sigmoid.default, product))
        x = g.call(aten.add.Tensor, x, gate)
    return [x]


def layers_trained(g: Recorder, n: int) -> list[Node]:
    """Forward and backward of layers in one graph: what was computed early is read late."""
    x, w = g.input(ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False)
    saved: list[tuple[Node, Node]] = []
    for _ in range(max(1, n // 9)):
        product = g.call(aten.mm.default, x, w)
        active = g.call(aten.tanh.default, product)
        saved.append((x, active))
        x = g.call(aten.add.Tensor, x, active)
    grad, grads = x, []
    for given, active in reversed(saved):
        slope = g.call(
            aten.sub.Tensor, grad, g.call(aten.mul.Tensor, grad, g.call(aten.mul.Tensor, active, active))
        )
        grads.append(g.call(aten.mm.default, g.call(aten.permute.default, given, [1, 0]), slope))
        grad = g.call(aten.add.Tensor, grad, slope)
    return [grad, *grads]


def chain_trained(g: Recorder, n: int) -> list[Node]:
    """A chain of pointwise operations and its backward."""
    x = g.input(ROWS, COLUMNS)
    saved = []
    for _ in range(n // 4):
        saved.append(x)
        x = g.call(aten.sin.default, x)
    grad = g.call(aten.full.default, [ROWS, COLUMNS], 1.0, dtype=torch.float32)
    for given in reversed(saved):
        grad = g.call(aten.mul.Tensor, grad, g.call(aten.cos.default, given))
    return [x, grad]


def unrolled(g: Recorder, n: int) -> list[Node]:
    """A recurrent network, step by step."""
    steps = max(1, n // 5)
    x, w, h = g.input(steps, ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False), g.input(ROWS, COLUMNS)
    found = []
    for k in range(steps):
        fed = g.call(aten.add.Tensor, g.call(aten.mm.default, h, w), g.call(aten.select.int, x, 0, k))
        h = g.call(aten.tanh.default, fed)
        found.append(g.call(aten.unsqueeze.default, h, 0))
    return [g.call(aten.cat.default, found)]


def random_near(g: Recorder, n: int) -> list[Node]:
    """Each value is the sum of two among the ten before it."""
    return _random(g, n, 10)


def random_far(g: Recorder, n: int) -> list[Node]:
    """Each value is the sum of any two before it."""
    return _random(g, n, n + 2)


def _random(g: Recorder, n: int, reach: int) -> list[Node]:
    choice = random.Random(n)
    made = [g.input(ROWS, COLUMNS), g.input(ROWS, COLUMNS)]
    for k in range(n):
        a, b = (made[-1 - choice.randrange(min(reach, len(made)))] for _ in range(2))
        made.append(g.call((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor)[k % 3], a, b))
    unread = [node for node in made[2:] if not node.users]
    return unread


def random_mixed(g: Recorder, n: int) -> list[Node]:
    """The same with reductions, transposes and products among them."""
    choice = random.Random(n)
    made = [g.input(ROWS, ROWS), g.input(ROWS, ROWS)]
    for _ in range(n):
        a, b = (made[-1 - choice.randrange(min(50, len(made)))] for _ in range(2))
        kind = choice.randrange(8)
        if kind == 0:
            node = g.call(aten.permute.default, a, [1, 0])
        elif kind == 1:
            node = g.call(aten.mm.default, a, b)
        elif kind == 2:
            node = g.call(aten.expand.default, g.call(aten.sum.dim_IntList, a, [1], True), [ROWS, ROWS])
        elif kind == 3:
            node = g.call(aten.tanh.default, a)
        else:
            node = g.call(aten.add.Tensor, a, b)
        made.append(node)
    return [node for node in made[2:] if not node.users]


def diamonds(g: Recorder, n: int) -> list[Node]:
    """Two functions of one value meet again."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(n // 3):
        x = g.call(aten.add.Tensor, g.call(aten.sin.default, x), g.call(aten.cos.default, x))
    return [x]


def residuals(g: Recorder, n: int) -> list[Node]:
    """Skip connections around functions, and around groups of them."""
    x = g.input(ROWS, COLUMNS)
    outer = x
    for k in range(n // 2):
        x = g.call(aten.add.Tensor, x, g.call(aten.tanh.default, x))
        if k % 8 == 7:
            x = g.call(aten.add.Tensor, x, outer)
            outer = x
    return [x]


def skips(g: Recorder, n: int) -> list[Node]:
    """A U-net: what the way down makes, the way up reads in reverse order."""
    x, w = g.input(ROWS, COLUMNS), g.input(COLUMNS, COLUMNS, is_open=False)
    kept = []
    for _ in range(n // 4):
        x = g.call(aten.tanh.default, g.call(aten.mm.default, x, w))
        kept.append(x)
    for value in reversed(kept):
        x = g.call(aten.sin.default, g.call(aten.add.Tensor, x, value))
    return [x]


def scans(g: Recorder, n: int) -> list[Node]:
    """Running sums of running sums."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(n // 2):
        x = g.call(aten.cumsum.default, g.call(aten.mul.Tensor, x, 0.5), 1)
    return [x]


def filled(g: Recorder, n: int) -> list[Node]:
    """Tensors made from nothing, each added."""
    x = g.input(ROWS, COLUMNS)
    for k in range(n // 2):
        x = g.call(aten.add.Tensor, x, g.call(aten.full.default, [COLUMNS], float(k)))
    return [x]


def constants(g: Recorder, n: int) -> list[Node]:
    """Tensors that are part of the graph, each added."""
    x = g.input(ROWS, COLUMNS)
    for k in range(n):
        x = g.call(aten.add.Tensor, x, g.constant(torch.full((COLUMNS,), float(k))))
    return [x]


def draws(g: Recorder, n: int) -> list[Node]:
    """Dropout after dropout."""
    x = g.input(ROWS, COLUMNS)
    for _ in range(n // 3):
        mask = g.call(aten.gt.Scalar, g.call(aten.rand.default, [ROWS, COLUMNS]), 0.1)
        x = g.call(aten.mul.Tensor, x, mask)
    return [x]


def broadcasts(g: Recorder, n: int) -> list[Node]:
    """Rows and columns in turn, added to a matrix."""
    x = g.input(ROWS, COLUMNS)
    for k in range(n):
        other = g.input(COLUMNS, is_open=False) if k % 2 else g.input(ROWS, 1)
        x = g.call(aten.add.Tensor, x, other)
    return [x]


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape of graph. `dynamic`: with an open size."""

    record: Callable[[Recorder, int], list[Node]]
    dynamic: bool = False

    def graph(self, n: int) -> tuple[GraphModule, list[Any], int]:
        """A graph of about `n` operations, fake inputs, and how many operations it has."""
        recorder = Recorder(dynamic=self.dynamic)
        outputs = self.record(recorder, n)
        module, inputs = recorder.finish(outputs)
        return module, inputs, recorder.count


_STATIC: Final = (
    chain,
    chain_of_two,
    chain_kept,
    chain_of_types,
    chain_trained,
    reductions,
    reductions_beside,
    reductions_of_inputs,
    norms,
    softmaxes,
    scans,
    tree,
    tree_of_inputs,
    grid,
    diamonds,
    residuals,
    random_near,
    random_far,
    random_mixed,
    fan_out,
    readers_of_a_product,
    readers_of_a_sum,
    fan_in_sum,
    fan_in_cat,
    fan_in_stack,
    cat_read_apart,
    beside,
    sizes_beside,
    optimizer,
    ladder,
    views,
    flips,
    views_only,
    views_of_updates,
    views_returned,
    slices_read,
    slices_assigned,
    slices_assigned_wide,
    recurrence_assigned,
    elements,
    elements_assigned,
    index_puts,
    scatters,
    gathers,
    embeddings,
    pads,
    cats,
    dense,
    wheres,
    conditions,
    products,
    layers,
    layers_trained,
    unrolled,
    skips,
    filled,
    constants,
    draws,
    broadcasts,
    *READ_APART,
    *UNROLLED_LOOPS,
)
_DYNAMIC: Final = (
    chain_of_two,
    norms,
    layers,
    diamonds,
    random_near,
    fan_out,
    optimizer,
    rotations,
    sinkhorn,
)
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        **{record.__name__: Shape(record) for record in _STATIC},
        **{f"{record.__name__}_open": Shape(record, dynamic=True) for record in _DYNAMIC},
    }
)
