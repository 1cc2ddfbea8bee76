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
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, product
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
from coilwork_ir.scalar import Contraction, Load, Scalar, find_contraction, find_parts, postorder
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import roots_of
from coilwork_triton.iteration.refusals import refuse
from coilwork_triton.iteration.tiles import needs_64_bits

# The least side of a block that matrix units take.
LEAST: Final = 16
# The longest sides of blocks, of results and along the sum.
MOST_RESULTS: Final = 256
MOST_DEPTH: Final = 512
MOST_STAGES: Final = 6
MOST_WARPS: Final = 8
# Results per thread, in registers of 4 bytes.
RESULTS_PER_THREAD: Final = 128
_TAKES: Final = (Tile, FlatGrid, Order, Loop, Unit, Warps, Index, Contract, Limit, Choose)
_NEEDS: Final = (FlatGrid, Order, Loop, Unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The contraction `node` of a kernel, and the ranges of its rows, columns, sum, and of all others."""

    node: Contraction
    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    axes: tuple[Range, ...]
    others: tuple[Range, ...]

    @property
    def memory_bytes(self) -> tuple[int, int]:
        """Sizes of an element of each factor in memory."""
        dtype = self.node.left.dtype
        return _memory_bytes(self.node.left, dtype), _memory_bytes(self.node.right, dtype)

    @property
    def unit(self) -> Unit:
        """What multiplies."""
        return Unit(unit="mma" if self.node.left.dtype.itemsize <= 2 else "fma")


def factors_of(kernel: Kernel) -> Factors:
    """The contraction of `kernel`, which has one.

    Raises:
        EmitError: its factors share ranges in no way that products do, or Triton adds in another type.
    """
    node = find_contraction(roots_of(kernel))
    assert node is not None
    parts = find_parts(
        node.left, node.right, [r.symbol for r in kernel.ranges if r.kind == "parallel"], node.axes
    )
    if parts is None:
        raise EmitError("contraction", "the factors do not tell rows, columns and a batch apart")
    if node.dtype is not DType.F32:
        raise EmitError(
            "contraction", f"no products of {node.left.dtype.text} that are added in {node.dtype.text}"
        )
    ranges = {r.symbol: r for r in kernel.ranges}
    known = frozenset((*parts.rows, *parts.columns, *node.axes))
    return Factors(
        node=node,
        rows=tuple(ranges[s] for s in parts.rows),
        columns=tuple(ranges[s] for s in parts.columns),
        axes=tuple(ranges[s] for s in node.axes),
        # ranges of one point belong to no part
        others=tuple(r for r in kernel.ranges if r.symbol not in known),
    )


def names_of(kernel: Kernel, ranges: tuple[Range, ...]) -> tuple[str, ...]:
    """Names of `ranges`, outermost first."""
    wanted = {r.symbol for r in ranges}
    return tuple(r.symbol.name for r in kernel.ranges if r.symbol in wanted)


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
    odd = [n for n in values_of(number) if n & (n - 1) or not LEAST <= n <= most]
    if odd:
        yield keyword, f"blocks are powers of two from {LEAST} to {most}, and {odd[0]} is none"


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


def whole_sides(factors: Factors) -> dict[str, Expr]:
    """The points of each side, by the letter of its tile."""
    sides = {"y": factors.rows, "x": factors.columns, "r": factors.axes, "z": factors.others}
    return {letter: product(r.extent for r in side) for letter, side in sides.items()}


def _memory_bytes(factor: Scalar, dtype: DType) -> int:
    """Size of an element of the largest thing that `factor` reads, by the ranges it varies along, else of `dtype`."""
    found = [node for node in postorder((factor,)) if isinstance(node, Load)]
    most = max((len(node.index[0].free_symbols) for node in found), default=0)
    sizes = [node.dtype.itemsize for node in found if len(node.index[0].free_symbols) == most]
    return max(sizes, default=dtype.itemsize)
