"""Rows that begin or end within 16 bytes, and are accessed 16 bytes at a time all the same.

A row of 50,257 elements begins anywhere, and no vector of Triton's may: an access that is not aligned, or
whose mask may change within 16 bytes, goes element by element. So lanes stand on the multiples of a vector:
the first one on the last multiple that is not behind the row's beginning, and positions are lanes less that
`shift`.

    row = x0 * n // 8 * 8
    shift = x0 * n & 7
    lane = offset + tl.arange(0, R0_BLOCK)
    r0 = lane - shift
    tl.load(in0 + (row + lane), lane // 8 < (n + shift + 7) // 8)

Loads take whole vectors, as far as one has an element of the row. What else is in it lies in the same aligned
16 bytes as that element, so that it is memory that may be read, and counts nowhere: what combines lanes masks
those that are no points. Stores write whole vectors in one instruction, and what is left at both ends in
another.

Lines of points that begin at a multiple, and end anywhere, have a shift of 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coilwork_ir.index import Expr
from coilwork_triton.iteration.tiles import Tile

# A buffer and an offset within it.
Place = tuple[str, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One access along a row: `lanes` of its elements are 16 bytes, and it is `apart` elements from where the
    rows begin.
    """

    lanes: int
    apart: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeVectors:
    """How the rows along `tile` are accessed in whole vectors.

    Attributes:
        tile: along which they lie.
        start: offset of the row's first element.
        lanes: the multiple that lanes stand on.
        shifted: rows begin anywhere; else at multiples, and it is their ends that do not.
        rows: the accesses that are, by buffer and offset.
    """

    tile: Tile
    start: Expr
    lanes: int
    shifted: bool
    rows: Mapping[Place, Row]

    @property
    def widest(self) -> int:
        """Elements of the widest access."""
        return max((row.lanes for row in self.rows.values()), default=self.lanes)
