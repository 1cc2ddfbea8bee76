"""Rows that end where data says: the loop over the reduction may end at the longest row of a program.

Sums of sorted segments are of this kind; their lengths differ a great deal, and most are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coilwork_ir.index import as_expr, as_int, stride_of
from coilwork_ir.kernels import Range
from coilwork_ir.scalar import Reduce, Scalar, count_leading_points, loads, postorder


def points_of(node: Reduce) -> Scalar | None:
    """How many points along its only long axis `node` combines at most; None if perhaps all of them."""
    return count_leading_points(node.kind, node.operands[0], node.axes) if len(node.operands) == 1 else None


def is_ragged(roots: Iterable[Scalar]) -> bool:
    """True if there are reductions below `roots`, and all of them end where data says."""
    found = [points_of(node) for node in postorder(tuple(roots)) if isinstance(node, Reduce)]
    return bool(found) and all(count is not None for count in found)


def along_rows(ranges: Sequence[Range], roots: Iterable[Scalar]) -> Range:
    """The one of the parallel `ranges` along which what data looks up is contiguous; the last long one if
    none is.

    These are most of what such a kernel reads, and the scheduler, which chose the order of the ranges, did
    not count them.
    """
    long = [r for r in ranges if r.symbol.extent is None or as_int(r.symbol.extent) != 1] or list(ranges)
    looked_up = [access.index[0] for access in loads(roots) if access.indirect]
    unit = as_expr(1)
    return max(long, key=lambda r: (sum(stride_of(e, r.symbol) is unit for e in looked_up), long.index(r)))
