"""Refuse mappings of matrix products that no text is written for, by the directive's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from coilwork_ir.index import multiply_all
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.mapping import (
    Choose,
    Contract,
    Fetch,
    FlatGrid,
    Index,
    Limit,
    Loop,
    Mapping,
    Number,
    Order,
    Resident,
    Specialise,
    Tile,
    Unit,
    Warps,
    find_all,
)
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.mapping.product_blocks import (
    COPY_ENGINE,
    LEAST_SIDE,
    MOST_STAGES,
    RESULTS_PER_THREAD,
    Factors,
    list_names,
)
from coilwork_ir.target import Target
from coilwork_triton.iteration.refusals import list_unfit_directives, refuse
from coilwork_triton.iteration.shape import must_use_64_bits
from coilwork_triton.product_roles import explain_no_roles

# The longest sides of blocks, of results and along the sum.
MOST_RESULTS: Final = 256
MOST_DEPTH: Final = 512
MOST_WARPS: Final = 8
# The longest side of a block that it takes.
MOST_FETCHED: Final = 256
_TAKES: Final = (
    Tile, FlatGrid, Resident, Order, Loop, Unit, Fetch, Specialise, Warps, Index, Contract, Limit, Choose,
)  # fmt: skip
_NEEDS: Final = (FlatGrid, Order, Loop, Unit)


def find_tile(kernel: Kernel, mapping: Mapping, ranges: tuple[Range, ...]) -> Tile | None:
    """Return the tile of `mapping` over just these ranges."""
    names = list_names(kernel, ranges)
    return next((one for one in find_all(mapping.directives, Tile) if one.ranges == names), None)


def check_product(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> None:
    """Refuse what no product is written with.

    Raises:
        EmitError: by the name of the directive.
    """
    for keyword, reason in _reasons(kernel, factors, mapping, target):
        raise refuse(kernel, keyword, reason)


def _reasons(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    yield from list_unfit_directives(mapping, "product", takes=_TAKES, needs=_NEEDS)
    yield from _tiles(kernel, factors, mapping)
    unit, order, loop = mapping.find(Unit), mapping.find(Order), mapping.find(Loop)
    if unit is not None and unit != factors.unit:
        yield "unit", f"these factors are multiplied by `{factors.unit.text}`"
    ordered = list_names(kernel, factors.rows) + list_names(kernel, factors.columns)
    if order is not None and order.ranges != ordered:
        yield "order", f"blocks are grouped by rows: {', '.join(ordered)}"
    if loop is not None:
        yield from _loop(kernel, factors, loop)
    if mapping.find(Fetch) is not None and not target.has(COPY_ENGINE):
        yield "fetch", f"{target.name} has no engine that copies blocks"
    warps = mapping.find(Warps)
    if warps is not None and any(n > MOST_WARPS or n & (n - 1) for n in list_values(warps.count)):
        yield "warps", f"a program has 1, 2, 4 or {MOST_WARPS}"
    yield from explain_no_roles(kernel, factors, mapping, target)
    yield from _memory(kernel, factors, mapping, target)
    if mapping.find(Fetch) is not None and loop is not None and max(list_values(loop.by)) > MOST_FETCHED:
        yield "fetch", f"a block that is copied has at most {MOST_FETCHED} terms"
    index = mapping.find(Index)
    if index is not None and index.dtype == "i32" and not index.promised:
        sides = (factors.rows, factors.columns, factors.axes, factors.others)
        numels = tuple(multiply_all(r.extent for r in side) for side in sides)
        if must_use_64_bits(kernel, numels, [store.value for store in kernel.stores]):
            yield "index", "32 bits may not be enough for what positions are computed from"


def _tiles(kernel: Kernel, factors: Factors, mapping: Mapping) -> Iterator[tuple[str, str]]:
    sides = [factors.rows, factors.columns, *([factors.others] if factors.others else [])]
    wanted = [list_names(kernel, side) for side in sides]
    for tile in find_all(mapping.directives, Tile):
        if tile.ranges not in wanted or tile.padded or tile.to != "program":
            told = ", ".join(" ".join(names) for names in wanted)
            yield "tile", f"programs have blocks of rows and columns, {told}, and `{tile.text}` is none"
    for side, names in zip(sides, wanted, strict=True):
        found = find_tile(kernel, mapping, side)
        if found is None:
            yield "tile", f"nothing says which points of {', '.join(names)} a program has"
        elif side is factors.others:
            if set(list_values(found.by)) != {1}:
                yield "tile", f"a program has one point of the batch, not `{found.text}`"
        else:
            yield from _sizes("tile", found.by, MOST_RESULTS)


def _loop(kernel: Kernel, factors: Factors, loop: Loop) -> Iterator[tuple[str, str]]:
    if loop.ranges != list_names(kernel, factors.axes):
        yield "loop", "all ranges of a sum are walked together"
    yield from _sizes("loop", loop.by, MOST_DEPTH)
    if any(not 1 <= n <= MOST_STAGES for n in list_values(loop.stages)):
        yield "loop", f"1 to {MOST_STAGES} blocks are on their way at a time"


def _sizes(keyword: str, number: Number, most: int) -> Iterator[tuple[str, str]]:
    odd = [n for n in list_values(number) if n & (n - 1) or not LEAST_SIDE <= n <= most]
    if odd:
        yield keyword, f"blocks are powers of two from {LEAST_SIDE} to {most}, and {odd[0]} is none"


def _memory(kernel: Kernel, factors: Factors, mapping: Mapping, target: Target) -> Iterator[tuple[str, str]]:
    """Results fit registers, and all blocks on their way shared memory: of open numbers, for some choice."""
    rows, columns = (find_tile(kernel, mapping, side) for side in (factors.rows, factors.columns))
    loop, warps = mapping.find(Loop), mapping.find(Warps)
    if rows is None or columns is None or loop is None:
        return
    y, x, r, stages = (min(list_values(n)) for n in (rows.by, columns.by, loop.by, loop.stages))
    threads = target.warp_size * (1 if warps is None else max(list_values(warps.count)))
    roles = mapping.find(Specialise)
    if roles is not None and not roles.pingpong:
        threads *= roles.consumers
    if y * x * len(factors.nodes) > threads * RESULTS_PER_THREAD:
        yield "tile", f"{threads} threads have no registers for {y} x {x} results of each sum"
    left, right = factors.memory_bytes
    if stages * r * (y * left + x * right) > target.shared_memory_bytes:
        yield "tile", f"{stages} blocks of each factor do not fit the shared memory"
