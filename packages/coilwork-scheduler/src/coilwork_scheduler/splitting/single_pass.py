"""Scans in a single pass: programs share a row, and each starts with what those before it say of their
pieces.

Rows are read once, where a reduction of the pieces before their scan reads them twice. A program waits for
the ones before it: it takes its number when it starts, so that these have started, too. It asks all of them
at once, and combines their answers in one order, so that results are the same from run to run. What it asks
for grows with the number of pieces.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import as_int, extent_of, product
from coilwork_ir.kernels.workspace import scan_words
from coilwork_ir.loops import Scan
from coilwork_ir.scalar import Combine
from coilwork_ir.target import Target
from coilwork_scheduler.cost import CostModel, KernelWork

# Bytes of a word, and what one from the second-level cache costs beside one from memory.
_WORD: Final = 8


def pieces_of(node: Scan, target: Target) -> int | None:
    """How many pieces rows of `node` have, which programs take in a single pass; `None` if that cannot be."""
    scans = target.machine.scans
    extents = [as_int(extent_of(r)) for r in node.ranges]
    size = as_int(extent_of(node.axis))
    if size is None or None in extents or node.checks or isinstance(node.kind, Combine):
        return None
    rows = as_int(product(extent_of(r) for r in node.ranges if r is not node.axis))
    assert rows is not None
    # values of two registers each leave room for half as many
    length = (
        scans.longest_shared_piece
        if scan_words(node.kind, node.body.dtype) == 1
        else scans.longest_shared_piece // 2
    )
    while (
        length > scans.shortest_shared_piece
        and rows * -(-size // length) < scans.shared_programs * target.multiprocessors
    ):
        length //= 2
    pieces = -(-size // length)
    return pieces if 1 < pieces <= scans.most_shared_pieces else None


def single_pass_us(
    node: Scan,
    pieces: int,
    target: Target,
    *,
    read_bytes: float,
    write_bytes: float,
    rows: int,
    model: CostModel,
) -> float:
    """Return what the kernel of `node` takes whose rows are shared in `pieces`, and the one that fills its
    workspace.
    """
    size = as_int(extent_of(node.axis))
    assert size is not None and not isinstance(node.kind, Combine)
    told = _WORD * scan_words(node.kind, node.body.dtype) * rows * pieces
    fill = KernelWork(
        read_bytes=0, write_bytes=told, operations=0, rows=rows * pieces, row_length=1, programs=1
    )
    scan = KernelWork(
        # all pieces are asked for at once: in the mean half of them come before
        read_bytes=read_bytes + told * pieces / 2 * target.machine.scans.near_cost,
        write_bytes=write_bytes,
        operations=rows * size,
        rows=rows * pieces,
        row_length=-(-size // pieces),
        programs=rows * pieces,
    )
    return model.kernel_us(fill) + model.kernel_us(scan)
