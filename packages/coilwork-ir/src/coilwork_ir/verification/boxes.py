"""Boxes of elements, and what several of them are together: which parts of a buffer have been filled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coilwork_ir.index import Expr, as_expr, provably_eq


@dataclass(frozen=True, slots=True)
class Box:
    """Elements from `starts[k]` to `starts[k] + extents[k] - 1` along each dimension `k`."""

    starts: tuple[Expr, ...]
    extents: tuple[Expr, ...]


def whole_of(shape: Sequence[Expr]) -> Box:
    """All elements of a buffer of `shape`."""
    return Box((as_expr(0),) * len(shape), tuple(shape))


def add_box(boxes: Sequence[Box], added: Box) -> tuple[Box, ...]:
    """`boxes` and `added`, those that are one box together as one.

    Two are one if they lie side by side along one dimension and agree in the others. Boxes that overlap stay
    apart.
    """
    rest = list(boxes)
    position = 0
    while position < len(rest):
        both = _join(rest[position], added)
        if both is None:
            position += 1
        else:
            del rest[position]
            added, position = both, 0
    return (*rest, added)


def is_whole(boxes: Sequence[Box], shape: Sequence[Expr]) -> bool:
    """Tell if one of `boxes` is provably all of a buffer of `shape`."""
    everything = whole_of(shape)
    return any(_equal(box, everything) for box in boxes)


def _join(one: Box, two: Box) -> Box | None:
    apart = [
        k
        for k in range(len(one.starts))
        if not (_same(one.starts[k], two.starts[k]) and _same(one.extents[k], two.extents[k]))
    ]
    if len(apart) != 1:
        return one if not apart else None
    (k,) = apart
    for first, second in ((one, two), (two, one)):
        if _same(first.starts[k] + first.extents[k], second.starts[k]):
            extents = list(first.extents)
            extents[k] = first.extents[k] + second.extents[k]
            return Box(first.starts, tuple(extents))
    return None


def _equal(one: Box, two: Box) -> bool:
    mine, theirs = (*one.starts, *one.extents), (*two.starts, *two.extents)
    return all(_same(a, b) for a, b in zip(mine, theirs, strict=True))


def _same(a: Expr, b: Expr) -> bool:
    return a is b or provably_eq(a, b)
