"""How many programs a reduction kernel has: few rows leave a GPU idle, however long they are."""

from __future__ import annotations

from typing import Final

from coilwork_ir.index import Expr, stride_of

# Longest row, in points, that a program keeps beside sums of its columns while it walks from row to row.
LONGEST_ROW: Final = 8192
# Threads that share such a row, the elements of it that each has at least (of shorter rows, several at a time), and the
# registers that each has for sums of columns, and for these and what is read of a row.
_THREADS: Final = 512
_ELEMENTS: Final = 8
_MOST_SUMS: Final = 64
_MOST_VALUES: Final = 112
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


def row_stays(length: int, *, sums: int, reads: int) -> bool:
    """True if a row of `length` points of `reads` buffers stays in registers beside `sums` sums of every column."""
    each = max((1 << max(0, (length - 1).bit_length())) // _THREADS, _ELEMENTS)
    return length <= LONGEST_ROW and sums * each <= _MOST_SUMS and (sums + reads) * each <= _MOST_VALUES


def programs_of(rows: int, *, across: bool) -> int:
    """Programs of a reduction to `rows` results: one per result, or `across` contiguous ones a block of columns each."""
    return max(1, rows // COLUMNS) if across else rows
