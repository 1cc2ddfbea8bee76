"""What splitting decides of a reduction: the pieces that it is cut into."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coilwork_ir.index import Expr
from coilwork_ir.loops import Reduce
from coilwork_ir.scalar import substitute_ranges
from coilwork_scheduler.splitting.pieces import Pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Pieces of a family.

    Its axes are `refined` first, into the axes of the pieces, where that says something. Pieces are `apart`
    in memory, each with all of its results, where a program has all of these, or where storing them is much
    of its time.
    """

    pieces: Pieces
    refined: tuple[tuple[Expr, Expr], ...] = ()
    apart: bool = False

    def along(self, node: Reduce) -> Reduce:
        """`node`, of the family, along the axes of the pieces."""
        if not self.refined:
            return node
        (body,) = substitute_ranges((node.body,), dict(self.refined))
        return replace(node, axes=self.pieces.axes, body=body)
