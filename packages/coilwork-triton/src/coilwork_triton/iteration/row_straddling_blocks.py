"""Lines of rows whose blocks straddle at most two rows: what is one number per row is loaded twice per block.

Rows of 50,257 that follow each other in memory are walked as one line, since a row that begins anywhere has
no vectors of its own. To find the row of each point by a division, and to load one number per row for each
point, takes longer than to move the rows. A block that is no longer than a row has points of two rows at
most:

    xrow = xoffset // 50257
    xnext = tl.minimum(xrow + 1, 8191)
    xend = xrow * 50257 + 50257
    beyond = xindex >= xend
    in0_1 = tl.where(beyond, tl.load(in0 + xnext), tl.load(in0 + xrow))
    x1 = xindex - tl.where(beyond, xend, xend - 50257)

`choose_straddled_rows` decides, `RowLanes` writes these lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, find_stride, get_extent, multiply_all, substitute, symbol
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import IndexValue, Scalar, iterate_postorder
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement
from coilwork_triton.facts.vectorization import Access, list_accesses
from coilwork_triton.iteration.shape import Shape, StraddledRows, Tile
from coilwork_triton.launch.parameters import round_down_to_power_of_two
from coilwork_triton.text.index_printer import IndexPrinter
from coilwork_triton.text.language import tl

# Analysis


_ONE: Final = as_expr(1)


def choose_straddled_rows(kernel: Kernel, shape: Shape, roots: Iterable[Scalar]) -> StraddledRows | None:
    """Return the line whose blocks are to be no longer than a row, if the points of `kernel`, which stores or
    checks `roots`, and is in `shape`, ask which row they are in.
    """
    found = find_straddled_rows(kernel, shape)
    if found is None or found.length < shape.grids.two_row_points:
        return None
    tile, length = found.tile, found.length
    roots = tuple(roots)
    touched = list_accesses(kernel, roots)
    if not _needs_rows(tile, touched, roots) or any(
        _loses_vectors(tile, access, length) for access in touched
    ):
        return None
    return found


def find_straddled_rows(kernel: Kernel, shape: Shape) -> StraddledRows | None:
    """Return the line of rows of known length that `kernel` walks in `shape`, if it is one."""
    tile = _find_line(shape)
    length = None if tile is None else as_int(get_extent(tile.inner))
    if tile is None or length is None:
        return None
    outer = multiply_all(r.extent for r in kernel.ranges if r.symbol is not tile.inner)
    return StraddledRows(tile=tile, length=length, count=outer)


def _find_line(shape: Shape) -> Tile | None:
    """Return the only tile, if it is a line of rows that follow each other."""
    if shape.step > 1 or shape.has_histogram or shape.topk is not None:
        return None
    if shape.vectors is not None and shape.vectors.shifted:
        return None
    if len(shape.tiles) != 1 or shape.tiles[0].letter != "x":
        return None
    tile = shape.tiles[0]
    return tile if tile.parts and tile.column is None and tile.axis is not None else None


def _needs_rows(tile: Tile, touched: Iterable[Access], roots: Iterable[Scalar]) -> bool:
    """Tell if points have to know their row, or their place in it."""
    parts = {part for part, _ in tile.parts}
    if any(
        isinstance(node, IndexValue) and node.expr.free_symbols & parts
        for node in iterate_postorder(tuple(roots))
    ):
        return True
    return any(a.index.free_symbols & parts and not _follows(tile, a.index) for a in touched)


def _follows(tile: Tile, index: Expr) -> bool:
    """Tell if neighbours in the line are neighbours at `index`, across the ends of rows as well."""
    return find_stride(substitute(index, dict(tile.parts)), tile.index) is _ONE


def _loses_vectors(tile: Tile, access: Access, length: int) -> bool:
    """Tell if `access` is in vectors that end where rows do, which Triton sees of divided positions alone."""
    in_vectors = length % access.lanes == 0 and access.lanes > 1
    along = find_stride(access.index, tile.inner) is _ONE
    return in_vectors and along and not _follows(tile, access.index)


def limit_blocks(configs: tuple[Config, ...], block: str, length: int) -> tuple[Config, ...]:
    """`configs` whose `block` is no longer than `length`; if there is none, the first with one
    that is not.
    """
    fitting = tuple(c for c in configs if dict(c.meta)[block] <= length)
    if fitting:
        return fitting
    first, size = configs[0], round_down_to_power_of_two(length)
    warps = max(1, first.num_warps * size // dict(first.meta)[block])
    meta = tuple((name, size if name == block else value) for name, value in first.meta)
    return (replace(first, meta=meta, num_warps=warps),)


def limit_space(space: SearchSpace, block: str, length: int) -> SearchSpace:
    values = tuple(
        (name, tuple(v for v in found if v <= length) if name == block else found)
        for name, found in space.values
    )
    return replace(space, values=tuple((name, found) for name, found in values if len(found) > 1))


# Text


BEYOND: Final = Name("beyond")
_END: Final = Name("xend")


class RowLanes:
    """Writes what is one number per row as a choice between two, and remembers whether anything was.

    Args:
        rows: the line.
        variable: the text of a size.
        library: names of device functions used so far.
    """

    def __init__(
        self, rows: StraddledRows, variable: Callable[[Expr], Expression], library: set[str]
    ) -> None:
        self.rows = rows
        self._parts: Mapping[Expr, Expr] = dict(rows.tile.parts)
        self._numbers = {name: symbol(name, extent=rows.count) for name in ("xrow", "xnext")}
        self._variable = variable
        self._printer = IndexPrinter({}, self._variable_of, library)
        self._used = False

    def find_in_both_rows(self, expr: Expr) -> tuple[Expression, Expression] | None:
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
        """Return the right-hand side of the definition of `part`, a range of the line, point by point."""
        self._used = True
        if part is self.rows.tile.inner:
            start = Binary("-", _END, Number(self.rows.length))
            return Binary("-", Name(self.rows.tile.index.name), tl("where", BEYOND, _END, start))
        both = self.find_in_both_rows(part)
        if both is None:
            raise AssertionError(f"{part} is no range of the line")
        row, following = both
        return row if row == following else tl("where", BEYOND, following, row)

    def lines(self) -> list[Statement]:
        """Return the two rows, and which points are in the second, if anything asked."""
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

    def _variable_of(self, expr: Expr) -> Expression:
        return Name(expr.name) if expr.name in self._numbers else self._variable(expr)
