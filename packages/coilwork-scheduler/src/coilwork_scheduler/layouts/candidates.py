"""Candidates for the strides of free memory: those of capture, row-major ones, and what the loops around it would like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_int, stride_of
from coilwork_ir.loops.layouts import dense_order, nested_strides
from coilwork_scheduler.layouts.traffic import NodeTraffic, Touch

MOST_CANDIDATES: Final = 8


def candidates_for(root: Buffer, around: Iterable[NodeTraffic]) -> tuple[tuple[Expr, ...], ...]:
    """Strides that `root` may have, those of capture first: permutations of its dimensions, at most `MOST_CANDIDATES`.

    Each of the loops `around` that touch it proposes, for each of its ranges along which some other memory lies together, the order
    in which the dimension that moves along this range is the innermost; and the order in which that other memory nests its ranges.
    """
    captured = dense_order(root)
    assert captured is not None, f"%{root.name} has gaps"
    found: dict[tuple[Expr, ...], None] = {root.strides: None}
    plain = tuple(range(len(root.shape)))
    _propose(found, root, plain)
    for traffic in around:
        own = [touch for touch in traffic.touches if touch.root == root.name]
        others = [touch for touch in traffic.touches if touch.root != root.name]
        for touch in own:
            dimension = _dimensions(touch, traffic.ranges)
            for other in others:
                nested = _nested_ranges(other, traffic.ranges)
                order = [dimension[r] for r in nested if r in dimension]
                if not order or not nested or nested[-1] not in dimension:
                    continue
                _propose(found, root, (*(d for d in captured if d not in order), *order))
                _propose(found, root, (*(d for d in captured if d != order[-1]), order[-1]))
    return tuple(found)[:MOST_CANDIDATES]


def _propose(found: dict[tuple[Expr, ...], None], root: Buffer, order: Sequence[int]) -> None:
    several = tuple(d for d in order if as_int(root.shape[d]) != 1)
    ones = tuple(d for d in range(len(root.shape)) if as_int(root.shape[d]) == 1)
    strides = nested_strides(root.shape, (*ones, *several))
    if all(strides[d] is root.strides[d] for d in several):
        return
    found.setdefault(strides)


def _dimensions(touch: Touch, ranges: Sequence[Expr]) -> dict[Expr, int]:
    """The dimension in which each range moves by one element and alone, of those that do."""
    found: dict[Expr, int] = {}
    for symbol in ranges:
        moved = [d for d, place in enumerate(touch.index) if symbol in place.free_symbols]
        if len(moved) == 1:
            step = stride_of(touch.index[moved[0]], symbol)
            number = None if step is None else as_int(step)
            if number in (1, -1) and moved[0] not in found.values():
                found[symbol] = moved[0]
    return found


def _nested_ranges(touch: Touch, ranges: Sequence[Expr]) -> list[Expr]:
    """Ranges in the order in which the memory of `touch` nests them, the innermost last, if one moves by one element."""
    offset = touch.buffer.offset_of(touch.index)
    steps = {symbol: stride_of(offset, symbol) for symbol in ranges}
    numbers = {s: as_int(step) for s, step in steps.items() if step is not None}
    known = {symbol: abs(number) for symbol, number in numbers.items() if number}
    unit = [symbol for symbol in known if known[symbol] == 1]
    if not unit:
        return []
    return sorted(known, key=lambda symbol: -known[symbol])
