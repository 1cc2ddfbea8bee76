"""The shape of a kernel's text: tiles, block axes, masks, type of offsets, grid.

A `Tile` is one dimension of the iteration space as the kernel walks it. A `Shape` has all tiles and what
follows from them. It also says which rows are accessed in special ways: shared by several programs
(`RowSharing`), straddled by blocks (`StraddledRows`), or accessed in peeled vectors (`PeeledVectors`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, floordiv, mod, multiply_all, provably_le, symbol
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.workspace import find_piece_length, list_scans
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import Load, Scalar, iterate_postorder
from coilwork_ir.syntax.python import Assign, Binary, Expression, Name, Number, Statement, Text, method
from coilwork_ir.target import Target
from coilwork_triton.launch.parameters import BLOCKS, RUN, STAGES, Letter, Walk
from coilwork_triton.text.index_printer import may_leave_32_bits
from coilwork_triton.text.language import tl, tl_name

# Tiles


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


def build_flat_tile(letter: Letter, ranges: list[Range], axis: int | None, masked: bool) -> Tile:
    """Return the tile that walks `ranges`, outermost first, along dimension `axis` of blocks; see `Tile`."""
    index, parts = _flatten_ranges(f"{letter}index", ranges)
    return Tile(
        letter=letter,
        numel=multiply_all(r.extent for r in ranges),
        block=BLOCKS[letter],
        index=index,
        axis=axis,
        masked=masked,
        parts=parts,
    )


def build_padded_tile(
    letter: Letter, ranges: list[Range], axis: int | None, masked: bool, lanes: int
) -> Tile:
    """Do as `build_flat_tile`, with rows padded to `lanes`, of which the innermost range fills the first
    ones.
    """
    *outer, last = ranges
    row, parts = _flatten_ranges(f"{letter}row", outer)
    numel = multiply_all(r.extent for r in outer) * lanes
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


def _flatten_ranges(name: str, ranges: list[Range]) -> tuple[Expr, tuple[tuple[Expr, Expr], ...]]:
    """Return the flat position of `ranges`, a symbol called `name` unless it is a range's own, and the other
    ranges in terms of it.
    """
    extents = [r.extent for r in ranges]
    real = [r for r, extent in zip(ranges, extents) if as_int(extent) != 1]
    if len(real) == 1:
        index = real[0].symbol
        return index, tuple((r.symbol, as_expr(0)) for r in ranges if r.symbol is not index)
    index = symbol(name, extent=multiply_all(extents))
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


def must_use_64_bits(kernel: Kernel, numels: tuple[Expr, ...], values: Iterable[Scalar]) -> bool:
    """True unless offsets into every argument, and positions along tiles of `numels` points, provably fit in
    32 bits, and so does what the offsets of stores and of loads among `values` and below are computed from.
    """
    fits = all(provably_le(a.span, _INT32_MAX) for a in kernel.args)
    if not (fits and all(provably_le(n, MOST_POINTS) for n in numels)):
        return True
    loads = (v.index[0] for v in iterate_postorder(tuple(values)) if isinstance(v, Load))
    return any(map(may_leave_32_bits, (*(store.index for store in kernel.stores), *loads)))


# Straddled rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StraddledRows:
    """A line of `count` rows of `length` points, no candidate's block of which is longer than a row.

    Attributes:
        tile: the line.
        length: points of a row.
        count: rows.
    """

    tile: Tile
    length: int
    count: Expr


# Peeled vectors


# A buffer and an offset within it.
AccessPlace = tuple[str, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorRow:
    """One access along a row: `lanes` of its elements are 16 bytes, and it is `apart` elements from where the
    rows begin.
    """

    lanes: int
    apart: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class PeeledVectors:
    """Accesses to the rows along `tile` in whole vectors.

    Attributes:
        tile: along which they lie.
        start: offset of the row's first element.
        lanes: the multiple that lanes stand on.
        shifted: rows begin anywhere; else at multiples, and it is their ends that do not.
        rows: the accesses that are, by buffer and offset.
    """

    tile: Tile
    start: Expr
    lanes: int
    shifted: bool
    rows: Mapping[AccessPlace, VectorRow]

    @property
    def widest(self) -> int:
        """Elements of the widest access."""
        return max((row.lanes for row in self.rows.values()), default=self.lanes)


# Rows that programs share


# The variables in which a program has its row, and its piece of it in the order of the scan.
ROW = Name("row")
PIECE = Name("piece")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSharing:
    """`count` pieces of `length` points of each of `rows`; programs tell each other of them in the argument
    `workspace`.

    With `reverse` the last piece comes first. No program has more than `most_threads`.
    """

    workspace: str
    rows: int
    count: int
    length: int
    reverse: bool
    most_threads: int

    @property
    def programs(self) -> int:
        """All of them."""
        return self.rows * self.count

    def start(self, offset: str, block: str) -> tuple[Statement, ...]:
        """Takes a number; `offset` is then where the program's piece, of `block` points, begins.

        Programs with neighbouring numbers have pieces of different rows: few wait for each other. Who runs
        the kernel again, to time it, gets the numbers behind the last one.
        """
        number = tl("atomic_add", Name(self.workspace), Number(1), sem=Text("relaxed"))
        ticket = Name("ticket")
        place: Expression = PIECE
        if self.reverse:
            place = Binary("-", Number(self.count - 1), PIECE)
        return (
            Assign((ticket.id,), method(Binary("%", number, Number(self.programs)), "to", tl_name("int32"))),
            Assign((ROW.id,), Binary("%", ticket, Number(self.rows))),
            Assign((PIECE.id,), Binary("//", ticket, Number(self.rows))),
            Assign((offset,), Binary("*", place, Name(block))),
        )

    def word(self, number: int) -> Expression:
        """Return the address, in a look-back scan's workspace, of word `number` of the first piece of the
        program's row.
        """
        row = ROW if number == 0 else Binary("+", Number(number * self.rows), ROW)
        return Binary("+", Binary("+", Name(self.workspace), Number(1)), Binary("*", row, Number(self.count)))


def find_row_sharing(kernel: Kernel, values: tuple[Scalar, ...], target: Target) -> RowSharing | None:
    """Return how the programs of `kernel`, which computes `values`, share rows on `target`; None if they do
    not.
    """
    length = find_piece_length(kernel)
    rows = as_int(multiply_all(r.extent for r in kernel.ranges if r.kind == "parallel"))
    points = as_int(multiply_all(r.extent for r in kernel.ranges if r.kind == "reduction"))
    scans = list_scans(values)
    if length is None or rows is None or points is None or not scans:
        return None
    return RowSharing(
        workspace=kernel.workspace,
        rows=rows,
        count=-(-points // length),
        length=length,
        reverse=scans[0].reverse,
        most_threads=target.max_threads_per_block,
    )


# The shape


@dataclass(frozen=True, kw_only=True)
class Shape:
    """All of a kernel's tiles and what follows from them.

    Attributes:
        grids: what was measured of the device.
        tiles: in block order: z, y, x, w, r, those present; r is first where threads are to lie along x
            whatever is looked up.
        walk: how the r tile is walked.
        parameters: names of the compile-time parameters of a launch, in the order of the kernel's signature.
        index_dtype: type of offsets and sizes, `i32` or `i64`.
        flat_grid: y and z are folded into the first grid axis, whose limit is higher.
        has_histogram: each program counts its points in bins before it updates memory.
        topk: the tile of the top-k elements of sorted rows, which replaces the r tile behind a sort.
        float_keys: f64 is fast enough to compare the keys of sorts in it.
        program: the variable that counts the kernel's programs, where it shares its grid with others.
        zeros: what loads find outside of the tiles is 0.
        streamed: arguments that pass through the second-level cache.
        scalar_access: no access is to be wide, so that neighbouring threads touch neighbouring elements.
        step: points of a step, where the kernel is in steps
            (`coilwork_triton.kernel_passes.thread_coarsening`); else 1.
        sharing: how programs share rows, if they do.
        chunk: neighbours along r that one thread has together in every candidate's block, where r is the only
            axis.
        short_values: positions that are values fit 32 bits, too, where `index_dtype` is `i32`.
        vectors: how rows that begin or end anywhere are accessed in whole vectors, if they are.
        two_rows: the line whose blocks lie in two rows at most, if it is one.
        narrow_width: neighbours along r that threads are to access at once, where wider accesses leave
            more lanes idle; else 0.
    """

    grids: Grids
    tiles: tuple[Tile, ...]
    walk: Walk
    parameters: tuple[str, ...]
    index_dtype: DType
    flat_grid: bool
    scalar_access: bool
    step: int = 1
    chunk: int = 1
    has_histogram: bool = False
    narrow_width: int = 0
    topk: Tile | None = None
    float_keys: bool = False
    program: str = ""
    zeros: bool = False
    streamed: frozenset[str] = frozenset()
    sharing: RowSharing | None = None
    short_values: bool = False
    vectors: PeeledVectors | None = None
    two_rows: StraddledRows | None = None

    @cached_property
    def all_tiles(self) -> tuple[Tile, ...]:
        """The tiles, and that of the first elements of rows if there is one."""
        return self.tiles if self.topk is None else (*self.tiles, self.topk)

    @cached_property
    def parallel(self) -> tuple[Tile, ...]:
        """Tiles of parallel ranges, innermost (x) first: the order of grid axes."""
        return tuple(t for t in reversed(self.tiles) if t.letter not in "wr")

    @cached_property
    def sequential(self) -> Tile | None:
        """The w tile."""
        return next((t for t in self.tiles if t.letter == "w"), None)

    @cached_property
    def reduced(self) -> Tile | None:
        """The r tile."""
        return next((t for t in self.tiles if t.letter == "r"), None)

    @cached_property
    def has_stages(self) -> bool:
        """Tell if the number of a loop's iterations in flight is a parameter of the kernel."""
        return STAGES in self.parameters

    @cached_property
    def has_thread_runs(self) -> bool:
        """A block's positions along r are dealt out in runs of neighbours, each of which one thread scans."""
        return RUN in self.parameters

    @cached_property
    def rank(self) -> int:
        """Dimensions of blocks of values."""
        return sum(t.axis is not None for t in self.tiles)

    @cached_property
    def grid(self) -> tuple[Expr, ...]:
        """Programs per grid axis, over sizes and block names."""
        if self.sharing is not None:
            return (as_expr(self.sharing.programs),)
        counts = tuple(self.programs(t) for t in self.parallel) or (as_expr(1),)
        return (multiply_all(counts),) if self.flat_grid else counts

    def programs(self, tile: Tile) -> Expr:
        """Programs along `tile`."""
        if tile.axis is None:
            return tile.numel
        return ceildiv(tile.numel, symbol(tile.block, lo=1))

    def tile_of(self, ranges: Iterable[Expr]) -> frozenset[str]:
        """Letters of the tiles that the range symbols `ranges` belong to."""
        wanted = frozenset(ranges)
        return frozenset(letter for letter, members in self._members if not members.isdisjoint(wanted))

    @cached_property
    def _members(self) -> tuple[tuple[str, frozenset[Expr]], ...]:
        """The letter of each tile, and the range symbols that belong to it."""
        return tuple(
            (tile.letter, frozenset({tile.index, *(part for part, _ in tile.parts)}))
            for tile in self.all_tiles
        )
