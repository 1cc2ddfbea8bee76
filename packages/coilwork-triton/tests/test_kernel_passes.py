"""Tables of passes: orders have reasons, and rewrites of drawn kernels compute the same by the
interpreter.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from kernel_bench import along, arg, declare_topk_range
from torch import Tensor

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, maximum, minimum, mod, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.interpreter import interpret_kernel
from coilwork_ir.kernels.verify import verify_kernel
from coilwork_ir.loops import Check
from coilwork_ir.passes import PassTable
from coilwork_ir.scalar import (
    Scalar,
    cast,
    const,
    index_value,
    list_loads,
    load,
    op,
    placeholder,
    reduce,
    sort,
    where,
)
from coilwork_ir.target import get_target
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, LEGALIZATION, MEMBER_PASSES, begin_draft

BF16, F32, I64 = DType.BF16, DType.F32, DType.I64
TYPES = {BF16: torch.bfloat16, F32: torch.float32, I64: torch.int64, DType.I32: torch.int32}
# Of one multiprocessor, so that drawn kernels are large enough for it.
H200 = replace(get_target("sm_90"), multiprocessors=1)
COMBINATIONS = ("add", "mul", "sub", "maximum")


def draw_stencil(draw: random.Random) -> Kernel:
    """A kernel that reads elements at rows and columns that are quotients, multiples, clamped or wrapped."""
    rows, columns = draw.choice([2, 15, 32]), draw.choice([64, 72, 100])
    x0, x1, x2 = along("x0", 3), along("x1", rows), along("x2", columns)
    height, width = draw.choice([8, 40]), draw.choice([16, 80, 96])

    def place(at: Expr, extent: int, size: int) -> Expr:
        scaled = draw.choice(
            [at, floordiv(at, 2), floordiv(at + 1, 2) - 1, at * 2 - 1, floordiv(at * 2 + 1, 4), at - 2]
        )
        return draw.choice(
            [
                minimum(maximum(scaled, as_expr(draw.choice([0, 1]))), as_expr(size - 1)),
                mod(scaled + size, size),
                minimum(maximum(scaled + draw.randint(-1, 2), as_expr(0)), as_expr(size - 1)),
            ]
        )

    value: Scalar = const(0.0, F32)
    for _ in range(draw.randint(1, 4)):
        row, column = place(x1.symbol, rows, height), place(x2.symbol, columns, width)
        inside = op(
            draw.choice(["lt", "ge"]), index_value(x2.symbol), const(draw.choice([-1, 1, 30, 200]), I64)
        )
        one = load(
            "in0", [(x0.symbol * height + row) * width + column], F32, mask=draw.choice([None, None, inside])
        )
        weight = op("mul", cast(index_value(mod(x2.symbol, 4)), F32), const(0.25, F32))
        value = op("add", value, op("mul", one, draw.choice([weight, const(1.0, F32)])))
    if draw.random() < 0.5:
        value = op("sub", value, load("in1", [(x0.symbol * rows + x1.symbol) * columns + x2.symbol], F32))
    size = 3 * rows * columns
    dtype = draw.choice([F32, BF16])
    return Kernel(
        name="stencil",
        ranges=(x0, x1, x2),
        args=(arg("in0", F32, 3 * height * width), arg("in1", F32, size), arg("out0", dtype, size)),
        stores=(
            Store(
                buffer="out0",
                index=(x0.symbol * rows + x1.symbol) * columns + x2.symbol,
                value=cast(value, dtype),
            ),
        ),
    )


def draw_windows(draw: random.Random) -> Kernel:
    """A kernel of windows over rows and columns, in steps or dilated, or of the windows that meet a point;
    channels lie side by side, or apart.
    """
    rows, columns, channels = draw.choice([4, 6, 7]), draw.choice([8, 12]), draw.choice([16, 40, 40])
    x0, x1, x2, x3 = (along(f"x{k}", size) for k, size in enumerate((4, rows, columns, channels)))
    step, apart, meets = draw.choice([1, 1, 2]), draw.choice([1, 1, 2]), draw.random() < 0.4
    height, width = (rows, columns) if meets else (rows * step, columns * step)
    last = draw.random() < 0.7
    value: Scalar = const(0.0, F32)
    for row, column in itertools.product((-1, 0, 1), repeat=2):
        places, inside = [], []
        for at, tap, size in ((x1.symbol, row, height), (x2.symbol, column, width)):
            place = at * (1 if meets else step) + tap * apart
            if meets and step > 1:
                inside.append(op("eq", index_value(mod(place + 4, step)), const(0, I64)))
                place = floordiv(place + 4, step) - 4 // step
            inside.append(op("ge", index_value(place), const(0, I64)))
            inside.append(op("lt", index_value(place), const(size, I64)))
            places.append(place)
        mask = functools.reduce(lambda one, other: op("bitwise_and", one, other), inside)
        at = (x0.symbol * height + places[0]) * width + places[1]
        at = at * channels + x3.symbol if last else at + x3.symbol * (4 * height * width)
        factor = cast(load("in1", [x3.symbol + (3 * row + column + 4) * channels], BF16), F32)
        value = op(
            "add", value, op("mul", where(mask, load("in0", [at], F32, mask=mask), const(0.0, F32)), factor)
        )
    place = ((x0.symbol * rows + x1.symbol) * columns + x2.symbol) * channels + x3.symbol
    size = 4 * rows * columns * channels
    return Kernel(
        name="windows",
        ranges=(x0, x1, x2, x3) if last else (x0, x1, x3, x2),
        args=(
            arg("in0", F32, 4 * height * width * channels),
            arg("in1", BF16, 9 * channels),
            arg("out0", BF16, size),
        ),
        stores=(Store(buffer="out0", index=place, value=cast(value, BF16)),),
    )


def draw_joined(draw: random.Random) -> Kernel:
    """A kernel that joins two or three parts, of rows or columns, each of the same elements of both
    arguments.
    """
    parts, length, others = draw.choice([2, 3]), draw.choice([32, 48, 64]), draw.randint(1, 5)
    whole = along("x1", parts * length)
    outer = along("x0", others)
    row_wise = draw.random() < 0.5
    ranges = (outer, whole) if row_wise else (whole, replace(outer, symbol=symbol("x2", extent=others)))
    other = outer.symbol if row_wise else ranges[1].symbol

    def at(column: Expr, size: int) -> Expr:
        return other * size + column if row_wise else column * others + other

    def part(number: int) -> Scalar:
        start = number * length
        ends = [op("lt", index_value(whole.symbol), const(start + length, I64))]
        if number:
            ends.append(op("ge", index_value(whole.symbol), const(start, I64)))
        mask = ends[0] if len(ends) == 1 else op("bitwise_and", *ends)
        place = at(whole.symbol - start, length)
        read = [load(name, [place], F32, mask=mask) for name in ("in0", "in1")]
        return op(draw.choice(COMBINATIONS), op(draw.choice(["neg", "abs"]), read[0]), read[1])

    value = part(parts - 1)
    for number in reversed(range(parts - 1)):
        below = op("lt", index_value(whole.symbol), const((number + 1) * length, I64))
        value = where(below, part(number), value)
    size = others * length
    return Kernel(
        name="joined",
        ranges=ranges,
        args=(arg("in0", F32, size), arg("in1", F32, size), arg("out0", F32, parts * size)),
        stores=(Store(buffer="out0", index=at(whole.symbol, parts * length), value=value),),
    )


def draw_dealt(draw: random.Random) -> Kernel:
    """A kernel that deals neighbours out to rows of their own, now and then with a weight for each row."""
    count, rows, length = draw.choice([2, 2, 3, 4]), draw.randint(2, 4), draw.choice([512, 520, 520, 513])
    row, way, column = along("y0", rows), along("y1", count), along("x0", length)
    place = (row.symbol * length + column.symbol) * count + way.symbol
    value = op(draw.choice(["neg", "abs"]), load("in0", [place], F32))
    if draw.random() < 0.2:
        value = op(draw.choice(COMBINATIONS), value, load("in1", [way.symbol], F32))
    if draw.random() < 0.5:
        value = op("mul", value, cast(index_value(way.symbol + column.symbol), F32))
    size = rows * length * count
    at = (row.symbol * count + way.symbol) * length + column.symbol
    return Kernel(
        name="dealt",
        ranges=(row, way, column),
        args=(arg("in0", F32, size), arg("in1", F32, count), arg("out0", F32, size)),
        stores=(Store(buffer="out0", index=at, value=value),),
    )


def draw_counting(draw: random.Random) -> Kernel:
    """A kernel that counts numbers, of each row or of all, some of them under a mask."""
    bins, rows = draw.choice([2, 100, 1000]), draw.choice([1, 3])
    length = draw.choice([1 << 13, 1 << 14])
    row, point = along("x0", rows), along("x1", length)
    own = draw.random() < 0.5
    number = load("in0", [row.symbol * length + point.symbol], I64)
    inside = [op("ge", number, const(0, I64)), op("lt", number, const(bins, I64))]
    store = Store(
        buffer="io0",
        index=placeholder(0) + (row.symbol * bins if own else 0),
        indirect=(number,),
        value=const(draw.choice([1, 3]), DType.I32),
        mode="add",
        mask=op("lt", index_value(point.symbol), const(5000, I64)) if draw.random() < 0.5 else None,
    )
    return Kernel(
        name="counting",
        ranges=(row, point),
        args=(
            arg("in0", I64, rows * length),
            arg("io0", DType.I32, bins * (rows if own else 1)),
        ),
        stores=(store,),
        checks=(Check(condition=op("bitwise_and", *inside), message="IndexError: out of range"),),
    )


def draw_topk(draw: random.Random) -> Kernel:
    """A kernel that keeps the first of sorted rows, with what is computed of them and of the row."""
    rows, length, first = draw.randint(1, 4), draw.choice([24, 100]), draw.choice([1, 3, 8, 20])
    x0, r0 = along("x0", rows), along("r0", length, "reduction")
    element = load("in0", [x0.symbol * length + r0.symbol], F32)
    value: Scalar = sort(element, r0.symbol, descending=draw.random() < 0.5)
    if draw.random() < 0.5:
        value = op("sub", value, reduce(draw.choice(["sum", "max"]), [element], [r0.symbol]))
    if draw.random() < 0.5:
        value = op("mul", value, cast(index_value(r0.symbol), F32))
    if draw.random() < 0.5:
        value = op("add", value, load("in1", [r0.symbol + x0.symbol], F32))
    return Kernel(
        name="topk",
        ranges=(x0, r0),
        args=(arg("in0", F32, rows * length), arg("in1", F32, rows + length), arg("out0", F32, rows * first)),
        stores=(
            Store(
                buffer="out0",
                index=x0.symbol * first + r0.symbol,
                value=value,
                mask=op("lt", index_value(r0.symbol), index_value(as_expr(first))),
            ),
        ),
    )


def without_idle_arguments(kernel: Kernel) -> Kernel:
    """`kernel` with the arguments that it touches."""
    touched = {one.buffer for one in kernel.stores}
    touched |= {one.buffer for one in list_loads([store.value for store in kernel.stores])}
    touched |= {one.buffer for store in kernel.stores for one in list_loads(store.indirect)}
    return replace(kernel, args=tuple(a for a in kernel.args if a.name in touched))


def arguments(kernel: Kernel, seed: int) -> dict[str, Tensor]:
    """Random memory for `kernel`: numbers around 0, or numbers of bins, and NaN where it is to write."""
    make = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    spans = {a.name: as_int(a.span) or 0 for a in kernel.args}
    for a in kernel.args:
        dtype = TYPES[a.dtype]
        if a.role == "out":
            found[a.name] = torch.full((spans[a.name],), float("nan"), dtype=dtype)
        elif dtype.is_floating_point:
            found[a.name] = torch.randn(spans[a.name], generator=make).to(dtype)
        else:
            found[a.name] = torch.randint(2, (spans[a.name],), generator=make).to(dtype)
    return found


def computed(kernel: Kernel, seed: int) -> dict[str, Tensor]:
    """Memory as `kernel` leaves it. The interpreter refuses to read outside of an argument."""
    memory = arguments(kernel, seed)
    interpret_kernel(kernel, memory, ())
    return memory


DRAWN: dict[str, Callable[[random.Random], Kernel]] = {
    "split-topk-range": draw_topk,
    "split-concat": draw_joined,
    "coarsen-deinterleaved": draw_dealt,
    "coarsen": draw_stencil,
    "share-windows": draw_windows,
    "privatize-histogram": draw_counting,
}


@pytest.mark.parametrize("name", KERNEL_PASSES.names)
def test_a_pass_computes_the_same_and_reads_nothing_else(name: str) -> None:
    draw, changed, paired = random.Random(7), 0, 0
    for seed in range({"coarsen": 250, "share-windows": 24}.get(name, 40)):
        kernel = without_idle_arguments(DRAWN[name](draw))
        before = begin_draft(kernel)
        after = KERNEL_PASSES.select(name).run(before, H200)
        if after is before:
            continue
        changed += 1
        paired += name == "coarsen" and after.kernel.ranges[-2].symbol is not kernel.ranges[-2].symbol
        again = declare_topk_range(after.kernel, after.topk)
        verify_kernel(without_idle_arguments(again))
        wanted, got = computed(kernel, seed), computed(again, seed)
        for buffer in wanted:
            assert torch.equal(got[buffer].nan_to_num(), wanted[buffer].nan_to_num()), (name, seed, buffer)
    assert changed >= (30 if name == "coarsen" else 8)
    # rows are taken in pairs by the same pass
    assert name != "coarsen" or paired >= 10


def test_all_passes_in_turn_compute_the_same() -> None:
    draw, seen = random.Random(5), set()
    for seed, make in enumerate([*DRAWN.values()] * 8):
        kernel = without_idle_arguments(make(draw))
        draft = KERNEL_PASSES.run(
            begin_draft(kernel), H200, observe=lambda name, a, b: seen.add(name) if b is not a else None
        )
        wanted, got = computed(kernel, seed), computed(declare_topk_range(draft.kernel, draft.topk), seed)
        for buffer in wanted:
            assert torch.equal(got[buffer].nan_to_num(), wanted[buffer].nan_to_num())
    assert seen == set(KERNEL_PASSES.names)


@pytest.mark.parametrize("table", [LEGALIZATION, KERNEL_PASSES, MEMBER_PASSES])
def test_the_order_of_passes_has_reasons(table: PassTable[Any, Any]) -> None:
    assert table.violations() == ()
