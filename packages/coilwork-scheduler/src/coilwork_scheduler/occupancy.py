"""How many programs a reduction kernel has: few rows leave a GPU idle, however long they are."""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import Expr, stride_of

# Neighbouring results that one program of a column reduction computes: whole sectors of memory.
COLUMNS: Final = 32
# Rows that a column reduction (unit stride along a parallel range) keeps in one tile at most.
LONGEST_COLUMN: Final = 512


def unit_stride(offset: Expr) -> frozenset[Expr]:
    """The range symbols along which the flat `offset` moves by one element."""
    found = []
    for symbol in offset.free_symbols:
        step = stride_of(offset, symbol) if symbol.extent is not None else None
        if step is not None and step.is_const and step.value == 1:
            found.append(symbol)
    return frozenset(found)


def programs_of(rows: int, *, across: bool) -> int:
    """Programs of a reduction to `rows` results: one per result, or `across` contiguous ones a block of columns each."""
    return max(1, rows // COLUMNS) if across else rows
