"""The iteration space inside the kernel: positions, masks, and the lines that define them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import Kernel
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Call,
    Do,
    Expression,
    Name,
    Number,
    Statement,
    method,
)
from coilwork_triton.iteration.row_straddling_blocks import RowLanes
from coilwork_triton.iteration.shape import AccessPlace, Shape, Tile
from coilwork_triton.iteration.vector_peeling import RowAccess, VectorLanes
from coilwork_triton.launch.parameters import RUN
from coilwork_triton.text.index_printer import IndexPrinter
from coilwork_triton.text.language import conjunction, insert_axes, tl, tl_name

LOOP_OFFSET: Final = Name("r0_offset")
WALK_OFFSET: Final = Name("w0_offset")


class Space:
    """Hands out positions and masks, and remembers which ones were used, so that only those get defined."""

    def __init__(self, kernel: Kernel, shape: Shape, library: set[str], given: Iterable[Expr] = ()) -> None:
        self.shape = shape
        # variables that are defined elsewhere
        self._given = frozenset(given)
        self._kernel = kernel
        self._sizes = frozenset(kernel.sizes)
        self._library = library
        self._tiles: dict[Expr, Tile] = {t.index: t for t in shape.all_tiles}
        self._parts: dict[Expr, Tile] = {part: t for t in shape.tiles for part, _ in t.parts}
        definitions = {part: value for t in shape.tiles for part, value in t.parts}
        self._printer = IndexPrinter(definitions, self._variable, library)
        self._used: set[Expr] = set()
        self._masks_used: set[str] = set()
        self._placeholders: Mapping[str, Expression] = {}
        self._widen = False
        found = shape.vectors
        self.vectors = None if found is None else VectorLanes(found, self.index, self.numel(found.tile))
        rows = shape.two_rows
        self.rows = None if rows is None else RowLanes(rows, self._variable, library)

    def letters(self, symbols: Iterable[Expr]) -> frozenset[str]:
        """Return the tiles that `symbols` belong to."""
        return self.shape.tile_of(symbols)

    def block(self, letters: frozenset[str]) -> tuple[str, ...]:
        """Extents of the block of a value that varies along the tiles `letters`; empty for a scalar."""
        axes = [t for t in self.shape.tiles if t.axis is not None]
        if not any(t.letter in letters for t in (*axes, *self.shape.all_tiles[len(self.shape.tiles) :])):
            return ()
        chosen = self.shape.topk
        if chosen is not None and chosen.letter in letters:
            # in the place of the row that its points are chosen from
            return tuple(
                chosen.block if t.letter == "r" else t.block if t.letter in letters else "1" for t in axes
            )
        return tuple(t.block if t.letter in letters else "1" for t in axes)

    def mask(self, letters: frozenset[str]) -> Expression | None:
        """True where the tiles `letters` are within their extents; None where that is certain."""
        found = []
        for tile in self.shape.all_tiles:
            if tile.letter in letters and tile.has_mask and tile.axis is not None:
                self._used.add(tile.index)
                self._masks_used.add(tile.letter)
                found.append(Name(tile.mask))
        return conjunction(tuple(found))

    def mask_of_vectors(self, tile: Tile, end: Expression, lanes: int) -> Expression:
        """Do as `position < end` along `tile`, but true for all or for none of each `lanes` positions."""
        self._used.add(tile.index)
        first = Binary("*", Binary("//", Name(tile.index.name), Number(lanes)), Number(lanes))
        return Binary("<", first, end)

    def index(self, expr: Expr, indirect: Sequence[Expression] = (), *, widen: bool = False) -> Expression:
        """`expr` as an expression; `widen` computes in 64 bits."""
        self._placeholders = {f"@{k}": value for k, value in enumerate(indirect)}
        self._widen = widen and self.shape.index_dtype is DType.I32
        found = self._printer.text(expr)
        self._widen = False
        return found

    def simplify(self, expr: Expr) -> Expr:
        """`expr` over flat tile positions."""
        return self._printer.simplify(expr)

    def numel(self, tile: Tile) -> Expression:
        """Number of points of `tile`: a literal, or the variable that the prologue defines."""
        exact = as_int(tile.numel)
        return Name(f"{tile.letter}numel") if exact is None else Number(exact)

    def end(self, tile: Tile) -> Expression:
        """Behind the last lane of `tile`."""
        shifted = self._find_shifted_vectors(tile)
        return self.numel(tile) if shifted is None else shifted.end

    def lane(self, tile: Tile) -> Expression:
        """Positions within the first block of `tile`, along the tile's axis."""
        shifted = self._find_shifted_vectors(tile)
        lanes = self._lanes(tile)
        if shifted is not None:
            lanes = shifted.first_lane(lanes, Name(tile.block))
        return self._expand_axes(lanes, tile)

    def row(self, place: AccessPlace) -> RowAccess | None:
        """Return the access at `place`, if it is one of whole vectors that begin or end anywhere."""
        return None if self.vectors is None else self.vectors.access(place)

    def _find_shifted_vectors(self, tile: Tile) -> VectorLanes | None:
        vectors = self.vectors
        if vectors is None or not vectors.vectors.shifted or vectors.vectors.tile is not tile:
            return None
        return vectors

    def prologue(self) -> tuple[Statement, ...]:
        """Definitions of the parallel tiles' positions and masks, and of symbolic extents."""
        lines = self.extents()
        programs = self._program_ids(lines)
        rows = [] if self.vectors is None else self.vectors.prologue()
        return (*lines, *self.positions(programs), *rows)

    def extents(self) -> list[Statement]:
        """Definitions of the extents that are not known."""
        return [
            Assign((f"{tile.letter}numel",), self._printer.text(tile.numel))
            for tile in self.shape.tiles
            if as_int(tile.numel) is None
        ]

    def positions(self, programs: Callable[[Tile], Expression]) -> list[Statement]:
        """Definitions of the parallel tiles' positions and masks; `programs` gives a program's number along a
        tile.
        """
        lines: list[Statement] = []
        for tile in self.shape.parallel:
            if tile.index not in self._used and not self._parts_used(tile):
                continue
            program = programs(tile)
            if tile.axis is None:
                lines.append(Assign((tile.index.name,), program))
            elif program == Number(0):
                # one block is all
                lanes = tl("arange", Number(0), Name(tile.block))
                lines.append(Assign((tile.index.name,), self._expand_axes(lanes, tile)))
            else:
                offset = f"{tile.letter}offset"
                lines.append(Assign((offset,), Binary("*", program, Name(tile.block))))
                divided = (self.shape.scalar_access and tile.parts) or len(tile.parts) > 2
                if divided and self.rows is None:
                    # positions of every element are divided, which takes less where they have no sign
                    lines.append(Do(tl("assume", Binary(">=", Name(offset), Number(0)))))
                position = Binary("+", Name(offset), tl("arange", Number(0), Name(tile.block)))
                lines.append(Assign((tile.index.name,), self._expand_axes(position, tile)))
            lines += self._define_parts(tile)
        return lines

    def reduction_lines(self, *, looped: bool) -> tuple[Statement, ...]:
        """Definitions of the r tile's positions and mask, for one loop body or for the whole row."""
        tile = self.shape.reduced
        if tile is None or (tile.index not in self._used and not self._parts_used(tile)):
            return self._topk_lines()
        lanes = self._lanes(tile)
        if self.shape.index_dtype is DType.I64:
            lanes = method(lanes, "to", tl_name("int64"))
        position = Binary("+", LOOP_OFFSET, lanes) if looped else lanes
        shifted = self._find_shifted_vectors(tile)
        lines: list[Statement] = [Assign((tile.index.name,), self._expand_axes(position, tile))]
        if shifted is not None:
            lines = shifted.positions(position)
        lines += self._define_parts(tile)
        self._used -= {tile.index, *(part for part, _ in tile.parts)}
        self._masks_used.discard("r")
        return (*lines, *self._topk_lines())

    def _lanes(self, tile: Tile) -> Expression:
        block = Name(tile.block)
        if tile.letter != "r" or not self.shape.has_thread_runs:
            lanes = tl("arange", Number(0), block)
            if tile.letter != "r" or not self.shape.narrow_width:
                return lanes
            return tl("max_contiguous", lanes, Number(self.shape.narrow_width))
        self._library.add("dealt_in_runs")
        return Call(Name("dealt_in_runs"), (block, Name(RUN)))

    def _topk_lines(self) -> tuple[Statement, ...]:
        tile = self.shape.topk
        if tile is None or tile.index not in self._used:
            return ()
        lanes: Expression = tl("arange", Number(0), Number(int(tile.block)))
        if self.shape.index_dtype is DType.I64:
            lanes = method(lanes, "to", tl_name("int64"))
        return (Assign((tile.index.name,), self._expand_axes(lanes, tile)), *self._define_parts(tile))

    def walk_lines(self) -> tuple[Statement, ...]:
        """Definitions of the sequential tile's positions and mask, for the body of the loop over it."""
        tile = self.shape.sequential
        if tile is None or (tile.index not in self._used and not self._parts_used(tile)):
            return ()
        position: Expression = WALK_OFFSET
        if tile.axis is not None:
            position = Binary("+", position, tl("arange", Number(0), Name(tile.block)))
        if self.shape.index_dtype is DType.I64:
            position = tl("cast", position, tl_name("int64"))
        if tile.axis is not None:
            position = self._expand_axes(position, tile)
        lines: list[Statement] = [Assign((tile.index.name,), position)]
        lines += self._define_parts(tile)
        self._used -= {tile.index, *(part for part, _ in tile.parts)}
        self._masks_used.discard("w")
        return tuple(lines)

    def _define_parts(self, tile: Tile) -> list[Statement]:
        masks: list[Statement] = []
        if tile.letter in self._masks_used:
            masks.append(Assign((tile.mask,), self._is_inside_tile(tile)))
        lines: list[Statement] = []
        # a part may be defined through one before it
        for part, _ in reversed(tile.parts):
            if part in self._used:
                printer = self._printer if self.rows is None else self.rows
                lines.append(Assign((part.name,), printer.definition(part)))
        if self.rows is not None:
            lines += reversed(self.rows.lines())
        vectors = self.vectors
        if vectors is not None and vectors.vectors.tile is tile:
            masks += vectors.masks()
        return [*reversed(lines), *masks]

    def _is_inside_tile(self, tile: Tile) -> Expression:
        shifted = self._find_shifted_vectors(tile)
        if shifted is not None:
            return shifted.is_inside()
        end = Binary("<", Name(tile.index.name), self.numel(tile))
        if tile.column is None:
            return end
        extent = tile.column.extent
        assert extent is not None
        self._used.add(tile.column)
        column = Binary("<", Name(tile.column.name), self._printer.text(extent))
        return Binary("&", column, end) if tile.masked else column

    def _parts_used(self, tile: Tile) -> bool:
        return any(part in self._used for part, _ in tile.parts)

    def _program_ids(self, lines: list[Statement]) -> Callable[[Tile], Expression]:
        wide = self.shape.index_dtype is DType.I64

        def program_id(axis: int) -> Expression:
            program = self.shape.program
            found: Expression = Name(program) if program else tl("program_id", Number(axis))
            return method(found, "to", tl_name("int64")) if wide else found

        parallel = self.shape.parallel
        if not self.shape.flat_grid:
            axes = {t.letter: program_id(axis) for axis, t in enumerate(parallel)}
            return lambda tile: axes[tile.letter]
        lines.append(Assign(("program",), program_id(0)))
        for tile in parallel[:-1]:
            count = self.numel(tile)
            if tile.axis is not None:
                count = tl("cdiv", count, Name(tile.block))
            lines.append(Assign((f"{tile.letter}programs",), count))
        found: dict[str, Expression] = {}
        rest: Expression = Name("program")
        for tile in parallel[:-1]:
            count = Name(f"{tile.letter}programs")
            found[tile.letter] = Binary("%", rest, count)
            rest = Binary("//", rest, count)
        found[parallel[-1].letter] = rest
        return lambda tile: found[tile.letter]

    def _expand_axes(self, line: Expression, tile: Tile) -> Expression:
        axes = [t for t in self.shape.tiles if t.axis is not None]
        if len(axes) == 1:
            return line
        place = self.shape.reduced if tile is self.shape.topk else tile
        return insert_axes(line, [t is place for t in axes])

    def _variable(self, symbol: Expr) -> Expression:
        name = symbol.name
        if name.startswith("@"):
            found = self._placeholders.get(name)
            if found is None:
                raise EmitError(
                    "placeholder", f"index uses {name}, which has no value", origins=self._kernel.origins
                )
            return found
        if symbol in self._sizes or symbol in self._given:
            return tl("cast", Name(name), tl_name("int64")) if self._widen else Name(name)
        if symbol not in self._tiles and symbol not in self._parts:
            raise EmitError(
                "unknown-symbol",
                f"index uses {name}, which is neither a range nor a size of kernel {self._kernel.name}",
                origins=self._kernel.origins,
                remedy="add it to Kernel.sizes; symbols with other bounds are other symbols",
            )
        self._used.add(symbol)
        if not self._widen:
            return Name(name)
        return tl("cast", Name(name), tl_name("int64"))
