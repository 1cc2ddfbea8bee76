"""Rows of a reduction that are too short to be walked one by one, and of a length that is no power of two.

The pieces of a channel of images are of this kind: 49 neighbours, and the next 49 elsewhere. Walked by flat positions each element takes a
division to find out where it is, for the same thread has it at another place of its row in each step. Where instead so many whole rows
as fit stand in a power of two of lanes, with what is left over empty, a thread has the same place of a row at every step, and its addresses are
a constant apart. Batch norm's statistics and results of 256 images of 7 by 7 take 19 instructions per element instead of 27.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coilwork_ir.index import as_int, product
from coilwork_ir.kernels import Range
from coilwork_triton.facts.vectors import Access, contiguous
from coilwork_triton.iteration.tiles import extent_of

# Steps may become more by this factor: what the lanes that stay empty cost, against a division for each element.
_MOST_EMPTY: Final = 1.13
# Places of rows that a thread may have in turns; what it takes to find one out is shared by all steps at that place.
_PLACES: Final = 2


def lanes_of_rows(
    ranges: Sequence[Range], touched: Sequence[Access], *, block: int, threads: int
) -> int | None:
    """How many lanes to stand whole rows of `ranges`' last one in, where a program walks `ranges` as one block; None for flat positions.

    Args:
        ranges: what is reduced, outermost first.
        touched: what the kernel reads and writes.
        block: points of the block.
        threads: threads of the program.
    """
    real = [r for r in ranges if as_int(extent_of(r)) != 1]
    inner = as_int(extent_of(real[-1])) if len(real) > 1 else None
    rows = as_int(product(extent_of(r) for r in real[:-1]))
    if inner is None or rows is None or inner & (inner - 1) == 0:
        return None
    symbols = [r.symbol for r in real]
    whole = [a for a in touched if all(s in a.index.free_symbols for s in symbols)]
    if any(contiguous(symbols, a.index) for a in whole):
        # flat positions are where the elements are, and accesses wide
        return None
    found = []
    lanes = 1 << inner.bit_length()
    while lanes <= _PLACES * threads:
        steps = -(-rows // (lanes // inner)) * lanes
        if steps <= min(block, _MOST_EMPTY * rows * inner):
            found.append((steps, lanes))
        lanes *= 2
    return min(found)[1] if found else None
