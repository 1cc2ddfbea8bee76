"""Mappings of matrix products: what the text of a product is for, each refusal by the directive's name.

tile x1 by 256      columns
tile x0 by 128      rows
tile x2 by 1        each other range: a program has one point of the batch
flat
order x0, x1 grouped 8
loop r0 by 64 stages 3
unit mma
warps 8    index i32    contract
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coilwork_ir.index import product
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.mapping import (
    Choose,
    Contract,
    Directive,
    FlatGrid,
    Index,
    Limit,
    Loop,
    Mapping,
    Number,
    Order,
    Tile,
    Unit,
    Warps,
    find_all,
)
from coilwork_ir.mapping.numbers import values_of
from coilwork_ir.mapping.product_blocks import LEAST_SIDE, Factors, names_of
from coilwork_ir.target import Target
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.iteration.shape import needs_64_bits

# The longest sides of blocks, of results and along the sum.
MOST_RESULTS: Final = 256
MOST_DEPTH: Final = 512
MOST_STAGES: Final = 6
MOST_WARPS: Final = 8
# Results per thread, in registers of 4 bytes.
RESULTS_PER_THREAD: Final = 128
_TAKES: Final = (Tile, FlatGrid, Order, Loop, Unit, Warps, Index, Contract, Limit, Choose)
_NEEDS: Final = (FlatGrid, Order, Loop, Unit)


def find_tile(kernel: Kernel, mapping: Mapping, ranges: tuple[Range, ...]) -> Tile | None:
    """The tile of `mapping` over just these ranges."""
    names = names_of(kernel, ranges)
    return next((one for one in find_all(mapping.directives, Tile) if one.ranges == names), None)


def check_product(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> None:
    """Refuse what no product is written with.

    Raises:
        EmitError: by the name of the directive.
    """
    for keyword, reason in _reasons(kernel, factors, mapping, target):
        raise refuse(kernel, keyword, reason)


def _reasons(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    if mapping.nests:
        yield "nest", "a program runs all stores of a kernel in one nest"
    seen: set[type[Directive]] = set()
    for one in mapping.directives:
        if not isinstance(one, _TAKES):
            yield one.keyword(), f"no product is written with `{one.text}`"
        if type(one) in seen and not isinstance(one, Tile | Limit | Choose):
            yield one.keyword(), "it is said twice"
        seen.add(type(one))
    for wanted in _NEEDS:
        if wanted not in seen:
            yield wanted.keyword(), "every product has one"
    yield from _tiles(kernel, factors, mapping)
    unit, order, loop = mapping.find(Unit), mapping.find(Order), mapping.find(Loop)
    if unit is not None and unit != factors.unit:
        yield "unit", f"these factors are multiplied by `{factors.unit.text}`"
    ordered = names_of(kernel, factors.rows) + names_of(kernel, factors.columns)
    if order is not None and order.ranges != ordered:
        yield "order", f"blocks are grouped by rows: {', '.join(ordered)}"
    if loop is not None:
        yield from _loop(kernel, factors, loop)
    warps = mapping.find(Warps)
    if warps is not None and any(n > MOST_WARPS or n & (n - 1) for n in values_of(warps.count)):
        yield "warps", f"a program has 1, 2, 4 or {MOST_WARPS}"
    yield from _memory(kernel, factors, mapping, target)
    index = mapping.find(Index)
    if index is not None and index.dtype == "i32" and not index.promised:
        sides = (factors.rows, factors.columns, factors.axes, factors.others)
        numels = tuple(product(r.extent for r in side) for side in sides)
        if needs_64_bits(kernel, numels, [store.value for store in kernel.stores]):
            yield "index", "32 bits may not be enough for what positions are computed from"


def _tiles(kernel: Kernel, factors: Factors, mapping: Mapping) -> Iterator[tuple[str, str]]:
    sides = [factors.rows, factors.columns, *([factors.others] if factors.others else [])]
    wanted = [names_of(kernel, side) for side in sides]
    for tile in find_all(mapping.directives, Tile):
        if tile.ranges not in wanted or tile.padded or tile.to != "program":
            told = ", ".join(" ".join(names) for names in wanted)
            yield "tile", f"programs have blocks of rows and columns, {told}, and `{tile.text}` is none"
    for side, names in zip(sides, wanted, strict=True):
        found = find_tile(kernel, mapping, side)
        if found is None:
            yield "tile", f"nothing says which points of {', '.join(names)} a program has"
        elif side is factors.others:
            if set(values_of(found.by)) != {1}:
                yield "tile", f"a program has one point of the batch, not `{found.text}`"
        else:
            yield from _sizes("tile", found.by, MOST_RESULTS)


def _loop(kernel: Kernel, factors: Factors, loop: Loop) -> Iterator[tuple[str, str]]:
    if loop.ranges != names_of(kernel, factors.axes):
        yield "loop", "all ranges of a sum are walked together"
    yield from _sizes("loop", loop.by, MOST_DEPTH)
    if any(not 1 <= n <= MOST_STAGES for n in values_of(loop.stages)):
        yield "loop", f"1 to {MOST_STAGES} blocks are on their way at a time"


def _sizes(keyword: str, number: Number, most: int) -> Iterator[tuple[str, str]]:
    odd = [n for n in values_of(number) if n & (n - 1) or not LEAST_SIDE <= n <= most]
    if odd:
        yield keyword, f"blocks are powers of two from {LEAST_SIDE} to {most}, and {odd[0]} is none"


def _memory(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    """Results fit registers, and all blocks on their way shared memory: of open numbers, for some choice."""
    rows, columns = (find_tile(kernel, mapping, side) for side in (factors.rows, factors.columns))
    loop, warps = mapping.find(Loop), mapping.find(Warps)
    if rows is None or columns is None or loop is None:
        return
    y, x, r, stages = (min(values_of(n)) for n in (rows.by, columns.by, loop.by, loop.stages))
    threads = target.warp_size * (1 if warps is None else max(values_of(warps.count)))
    if y * x > threads * RESULTS_PER_THREAD:
        yield "tile", f"{threads} threads have no registers for {y} x {x} results"
    left, right = factors.memory_bytes
    if stages * r * (y * left + x * right) > target.shared_memory_bytes:
        yield "tile", f"{stages} blocks of each factor do not fit the shared memory"
