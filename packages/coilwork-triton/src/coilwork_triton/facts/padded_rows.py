"""Rows that nearly fill a power of two of lanes, and are walked with the lanes left over empty.

Where elements are read in an order of their own, at reflected or clamped places, say, or from the end, every
point has to know its row and its column, and over flat positions that takes it a division or two. Rows of 118
that stand in 128 lanes each have their columns in the last seven bits of a position. A thread has the same
columns in all of its rows, so that it finds out once what they read, and a warp's rows are the same for all
of its threads.

Blocks stay lines: neighbouring threads have neighbouring columns, whatever a compiler makes of blocks with
two axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_ir.index import Expr, as_int, stride_of
from coilwork_ir.kernels import Kernel
from coilwork_ir.machine.model import Grids
from coilwork_triton.facts.vectors import Access, row_width

# A warp has as many threads.
_FEWEST_LANES: Final = 32


def lanes_of_rows(kernel: Kernel, touched: Sequence[Access], grids: Grids) -> int:
    """How many lanes each row along the innermost range of `kernel` is to stand in, where that is worth
    while; else 0.

    `touched` are its accesses.
    """
    if any(r.kind != "parallel" for r in kernel.ranges) or kernel.checks:
        return 0
    extents = [None if r.symbol.extent is None else as_int(r.symbol.extent) for r in kernel.ranges]
    real = [r.symbol for r, extent in zip(kernel.ranges, extents, strict=True) if extent != 1]
    if len(real) < 2 or real[-1] is not kernel.ranges[-1].symbol or None in extents:
        return 0
    length = extents[-1] or 0
    lanes = 1 << max(0, length - 1).bit_length()
    fills = grids.padded_row_share * lanes <= length < lanes
    if not (_FEWEST_LANES <= lanes <= grids.padded_row_lanes and fills):
        return 0
    whole = [a for a in touched if all(s in a.index.free_symbols for s in real)]
    # windows are read again by their neighbours, which flat blocks keep near each other
    once = len(whole) <= len(kernel.args)
    astray = any(_astray(access, real[-1]) for access in whole)
    return lanes if once and astray and row_width(real[-1], touched) else 0


def _astray(access: Access, inner: Expr) -> bool:
    """Return where a load is along `inner` is no constant apart from where it starts, or it is in reverse."""
    if access.store:
        return False
    step = stride_of(access.index, inner)
    distance = None if step is None else as_int(step)
    return step is None or (distance is not None and distance < 0)
