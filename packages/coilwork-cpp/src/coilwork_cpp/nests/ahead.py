"""Lines of memory that a pass asks for ahead of their use.

A pass that walks what an earlier one has read leaves memory idle, and a row is about as long as what processors fetch ahead by
themselves. So such a pass asks for what the last pass writes, and for what the first one reads of the next row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.planning.facts import work
from coilwork_cpp.planning.passes import Pass
from coilwork_cpp.planning.plan import Plan
from coilwork_cpp.planning.regions import Region
from coilwork_cpp.text.tree import ZERO, Binary, Call, Do, For, Literal, Name
from coilwork_cpp.values.values import Block
from coilwork_ir.index import Expr, as_int, extent_of, stride_of, substitute
from coilwork_ir.scalar import Load, postorder

_LINE_BYTES: Final = 64
# Rows that repay it, and that stay in the first cache with what is written.
_SHORTEST_BYTES: Final = 1024
_LONGEST_BYTES: Final = 8192
# Instructions per point from which on a pass takes longer than memory does.
_COSTLY: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """A row of `buffer`: elements of `itemsize` bytes at `index`, to read or to write."""

    buffer: str
    index: Expr
    itemsize: int
    write: bool


def ahead_of(region: Region, plan: Plan, passes: Sequence[Pass], number: int) -> tuple[Ahead, ...]:
    """What pass `number` asks for: something if it is the last but one, not the first, and computes little."""
    step, loops = passes[number], (*(axis.symbol for axis in plan.threaded), *plan.serial)
    if number == 0 or number != len(passes) - 2 or len(region.reduction) != 1 or not loops:
        return ()
    inner = region.reduction[0]
    count = as_int(extent_of(inner))
    if count is None or step.scans or step.keeps or step.recalls or work(step.roots) >= _COSTLY:
        return ()
    found: dict[Ahead, None] = {}
    for value in postorder(step.roots):
        if isinstance(value, Load) and not value.operands and loops[-1] in value.index[0].free_symbols:
            after = substitute(value.index[0], {loops[-1]: loops[-1] + 1})
            found[Ahead(buffer=value.buffer, index=after, itemsize=value.dtype.itemsize, write=False)] = None
    for store in passes[-1].stores:
        if store.mode == "store" and not store.indirect:
            size = store.value.dtype.itemsize
            found[Ahead(buffer=store.buffer, index=store.index, itemsize=size, write=True)] = None
    return tuple(row for row in found if _is_worth_it(row, inner, count))


def _is_worth_it(row: Ahead, inner: Expr, count: int) -> bool:
    step = stride_of(row.index, inner)
    dense = step is not None and as_int(step) == 1
    return dense and _SHORTEST_BYTES <= count * row.itemsize <= _LONGEST_BYTES


def ask(block: Block, rows: Sequence[Ahead], inner: Expr, first: Name, points: int) -> tuple[For, ...]:
    """Ask for the lines of `rows` at `points` points of `inner`, from number `first` on."""
    found: list[For] = []
    for row in rows:
        place = block.inside()
        place.symbols[inner] = Binary("+", first, Name("p"))
        address = Binary("+", Name(row.buffer), place.index(row.index))
        arguments = (address, Literal("1")) if row.write else (address,)
        fetch = Do(Call("__builtin_prefetch", arguments))
        found.append(For("p", ZERO, Literal(str(points)), (fetch,), step=_LINE_BYTES // row.itemsize))
    return tuple(found)
