"""Axes that lie in memory like one, made one: there are more ways to cut them evenly.

256 images of 49 points, channels last, are cut in 49 pieces of 256 points, of which none is idle in a block
of a power of two; by images alone they could be cut in 32 pieces of 392.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index import Expr, extent_of, floordiv, mod, product
from coilwork_scheduler.kernels.tile import joined


def merged_axes(order: Sequence[Expr], offsets: Sequence[Expr]) -> tuple[tuple[Expr, ...], dict[Expr, Expr]]:
    """`order`, outermost first, with neighbours merged that all `offsets` see as one, and what those are over
    the merged ones.
    """
    runs: list[list[Expr]] = []
    wholes: list[Expr] = []
    seen = tuple(offsets)
    for axis in order:
        found = joined(wholes[-1], axis, seen) if runs else None
        if found is None:
            runs.append([axis])
            wholes.append(axis)
        else:
            wholes[-1], seen = found
            runs[-1].append(axis)
    mapping: dict[Expr, Expr] = {}
    for run, whole in zip(runs, wholes, strict=True):
        if len(run) > 1:
            mapping.update(_parts(run, whole))
    return tuple(wholes), mapping


def _parts(run: Sequence[Expr], whole: Expr) -> dict[Expr, Expr]:
    """The axes of `run` over `whole`, of which they are the digits."""
    found: dict[Expr, Expr] = {}
    for place, axis in enumerate(run):
        quotient = floordiv(whole, product(extent_of(inner) for inner in run[place + 1 :]))
        found[axis] = quotient if place == 0 else mod(quotient, extent_of(axis))
    return found
