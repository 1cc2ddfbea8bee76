"""The names and lines of `coilwork_triton.iteration.shape` in a kernel's text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coilwork_ir.index import Expr, as_int, substitute, symbol
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement
from coilwork_triton.iteration.shape import TwoRows
from coilwork_triton.text.index_printer import IndexPrinter
from coilwork_triton.text.language import tl

BEYOND: Final = Name("beyond")
_END: Final = Name("xend")


class RowLanes:
    """Writes what is one number per row as a choice between two, and remembers whether anything was.

    Args:
        rows: the line.
        variable: the text of a size.
        library: names of device functions used so far.
    """

    def __init__(self, rows: TwoRows, variable: Callable[[Expr], Expression], library: set[str]) -> None:
        self.rows = rows
        self._parts: Mapping[Expr, Expr] = dict(rows.tile.parts)
        self._numbers = {name: symbol(name, extent=rows.count) for name in ("xrow", "xnext")}
        self._variable = variable
        self._printer = IndexPrinter({}, self._name, library)
        self._used = False

    def both(self, expr: Expr) -> tuple[Expression, Expression] | None:
        """`expr` in the row that a block begins in, and in the next; None if it is not one number per row."""
        ranges = expr.free_symbols & self._parts.keys()
        if not ranges or self.rows.tile.inner in ranges or self.rows.tile.index in expr.free_symbols:
            return None
        self._used = True
        flat = substitute(expr, self._parts)
        row, following = (
            self._printer.text(substitute(flat, {self.rows.tile.index: number * self.rows.length}))
            for number in self._numbers.values()
        )
        return row, following

    def definition(self, part: Expr) -> Expression:
        """The right-hand side of the definition of `part`, a range of the line, point by point."""
        self._used = True
        if part is self.rows.tile.inner:
            start = Binary("-", _END, Number(self.rows.length))
            return Binary("-", Name(self.rows.tile.index.name), tl("where", BEYOND, _END, start))
        both = self.both(part)
        if both is None:
            raise AssertionError(f"{part} is no range of the line")
        row, following = both
        return row if row == following else tl("where", BEYOND, following, row)

    def lines(self) -> list[Statement]:
        """The two rows, and which points are in the second, if anything asked."""
        if not self._used:
            return []
        row, following = (Name(name) for name in self._numbers)
        length = Number(self.rows.length)
        last = as_int(self.rows.count - 1)
        least = self._printer.text(self.rows.count - 1) if last is None else Number(last)
        return [
            Assign((row.id,), Binary("//", Name("xoffset"), length)),
            Assign((following.id,), tl("minimum", Binary("+", row, Number(1)), least)),
            Assign((_END.id,), Binary("+", Binary("*", row, length), length)),
            Assign((BEYOND.id,), Binary(">=", Name(self.rows.tile.index.name), _END)),
        ]

    def _name(self, found: Expr) -> Expression:
        return Name(found.name) if found.name in self._numbers else self._variable(found)
