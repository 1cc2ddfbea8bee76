"""Lines of points whose blocks lie in one row or in two.

Rows of 50,257 that follow each other in memory are walked as one line, since a row that begins anywhere has
no vectors of its own. To find the row of each point by a division, and to load for each what is one number
per row, takes longer than to move the rows. A block that is no longer than a row has points of two rows at
most:

    xrow = xoffset // 50257
    xnext = tl.minimum(xrow + 1, 8191)
    xend = xrow * 50257 + 50257
    beyond = xindex >= xend
    in0_1 = tl.where(beyond, tl.load(in0 + xnext), tl.load(in0 + xrow))
    x1 = xindex - tl.where(beyond, xend, xend - 50257)
"""

from __future__ import annotations

from dataclasses import dataclass

from coilwork_ir.index import Expr
from coilwork_triton.iteration.tiles import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoRows:
    """A line of `count` rows of `length` points, no candidate's block of which is longer than a row.

    Attributes:
        tile: the line.
        length: points of a row.
        count: rows.
    """

    tile: Tile
    length: int
    count: Expr
