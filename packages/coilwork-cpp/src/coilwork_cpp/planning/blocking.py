"""Where a pass over several reduction ranges folds its partial results.

A rounded sum keeps its error small if no variable takes more than some thousand additions. The loops of a
pass are cut at one level: ranges outside of it are plain loops, the range at it may be walked in blocks, and
everything inside accumulates into partial results that are folded into the total once per block.
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import Expr, as_int, extent_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`outer` loops; then `middle`, if any, in blocks of `size` points; then `inner` loops."""

    outer: tuple[Expr, ...]
    middle: Expr | None
    size: int
    inner: tuple[Expr, ...]

    @property
    def is_whole(self) -> bool:
        """True where everything is one block."""
        return self.middle is None and not self.outer


def cut(ranges: tuple[Expr, ...], limit: int, *, rounded: bool) -> Cut:
    """Blocks of about `limit` points; one block if nothing is rounded."""
    if not rounded:
        return Cut(outer=(), middle=None, size=0, inner=ranges)
    points = 1
    for position in range(len(ranges) - 1, -1, -1):
        extent = as_int(extent_of(ranges[position]))
        if extent is not None and points * extent <= limit:
            points *= max(extent, 1)
            continue
        size = max(1, limit // points)
        return Cut(outer=ranges[:position], middle=ranges[position], size=size, inner=ranges[position + 1 :])
    return Cut(outer=(), middle=None, size=0, inner=ranges)


def fixed_cut(ranges: tuple[Expr, ...], limit: int, *, rounded: bool) -> Cut:
    """Blocks of `limit` points of the innermost range, whatever the extents are, known or not."""
    if not rounded:
        return Cut(outer=(), middle=None, size=0, inner=ranges)
    return Cut(outer=ranges[:-1], middle=ranges[-1], size=limit, inner=())
