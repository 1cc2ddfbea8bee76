"""Tiles: the dimensions of a kernel's iteration space as its text walks them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, product, provably_le, symbol
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.scalar import Load, Scalar, postorder
from coilwork_triton.launch.parameters import BLOCKS, Letter
from coilwork_triton.text.index_printer import leaves_32_bits

_INT32_MAX: Final = 2**31 - 1
# Offsets of masked-off lanes run past the end by up to a block.
_BLOCK_SLACK: Final = 1 << 20
# Points, or elements of an argument, up to which positions are of 32 bits.
MOST_POINTS: Final = _INT32_MAX - _BLOCK_SLACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One dimension of the iteration space as the kernel walks it: its ranges flattened, first outermost.

    Attributes:
        letter: `x`, `y`, `z`, `w` or `r`, or `c` for the first elements of sorted rows.
        numel: product of its ranges' extents, or of that of `column` the lanes that its rows stand in.
        block: name of its block size, a `constexpr` parameter; of `c` the size itself.
        index: the variable that holds the flat position, as a symbol.
        axis: its dimension in blocks of values; None where every candidate's block is one point, so that the
            position is a scalar.
        masked: some candidate's block does not divide the extent.
        parts: range symbols other than `index` and what they are in terms of it, or of parts before them.
        column: the innermost range, where its rows stand in more lanes than they have points; a mask is false
            behind their ends.
    """

    letter: Letter
    numel: Expr
    block: str
    index: Expr
    axis: int | None
    masked: bool
    parts: tuple[tuple[Expr, Expr], ...]
    column: Expr | None = None

    @property
    def inner(self) -> Expr:
        """The range whose neighbouring points are neighbours along the tile."""
        if self.column is not None:
            return self.column
        return self.parts[-1][0] if self.parts else self.index

    @property
    def has_mask(self) -> bool:
        """Some of its positions are behind an end."""
        return self.masked or self.column is not None

    @property
    def mask(self) -> str:
        """Name of its mask variable."""
        return f"{self.letter}mask"


def flat_tile(letter: Letter, ranges: list[Range], axis: int | None, masked: bool) -> Tile:
    """The tile that walks `ranges`, outermost first, along dimension `axis` of blocks; see `Tile`."""
    index, parts = _flattened(f"{letter}index", ranges)
    return Tile(
        letter=letter,
        numel=product(r.extent for r in ranges),
        block=BLOCKS[letter],
        index=index,
        axis=axis,
        masked=masked,
        parts=parts,
    )


def padded_tile(letter: Letter, ranges: list[Range], axis: int | None, masked: bool, lanes: int) -> Tile:
    """As `flat_tile`, but in rows of so many `lanes`, of which the innermost range fills the first ones."""
    *outer, last = ranges
    row, parts = _flattened(f"{letter}row", outer)
    numel = product(r.extent for r in outer) * lanes
    index = symbol(f"{letter}index", extent=numel)
    return Tile(
        letter=letter,
        numel=numel,
        block=BLOCKS[letter],
        index=index,
        axis=axis,
        masked=masked,
        # columns first: LLVM finds out more of what they share with rows
        parts=((last.symbol, mod(index, as_expr(lanes))), (row, floordiv(index, as_expr(lanes))), *parts),
        column=last.symbol,
    )


def _flattened(name: str, ranges: list[Range]) -> tuple[Expr, tuple[tuple[Expr, Expr], ...]]:
    """The flat position of `ranges`, a symbol called `name` unless it is a range's own, and the other ranges
    in terms of it.
    """
    extents = [r.extent for r in ranges]
    real = [r for r, extent in zip(ranges, extents) if as_int(extent) != 1]
    if len(real) == 1:
        index = real[0].symbol
        return index, tuple((r.symbol, as_expr(0)) for r in ranges if r.symbol is not index)
    index = symbol(name, extent=product(extents))
    inner = as_expr(1)
    found: list[tuple[Expr, Expr]] = []
    for number in reversed(range(len(ranges))):
        r, extent = ranges[number], extents[number]
        outermost = all(as_int(e) == 1 for e in extents[:number])
        quotient = floordiv(index, inner)
        if as_int(extent) == 1:
            found.append((r.symbol, as_expr(0)))
        else:
            found.append((r.symbol, quotient if outermost else mod(quotient, extent)))
        inner = inner * extent
    return index, tuple(reversed(found))


def needs_64_bits(kernel: Kernel, numels: tuple[Expr, ...], values: Iterable[Scalar]) -> bool:
    """True unless offsets into every argument, and positions along tiles of `numels` points, provably fit in
    32 bits, and so does what the offsets of stores and of loads among `values` and below are computed from.
    """
    fits = all(provably_le(a.span, _INT32_MAX) for a in kernel.args)
    if not (fits and all(provably_le(n, MOST_POINTS) for n in numels)):
        return True
    loads = (v.index[0] for v in postorder(tuple(values)) if isinstance(v, Load))
    return any(map(leaves_32_bits, (*(store.index for store in kernel.stores), *loads)))
