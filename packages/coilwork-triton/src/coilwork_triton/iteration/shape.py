"""The shape of the generated kernel: tiles, block axes, masks, offsets' type, grid. Read from its mapping."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    ceildiv,
    product,
    symbol,
)
from coilwork_ir.machine.model import Grids
from coilwork_triton.iteration.sharing import Sharing
from coilwork_triton.iteration.tiles import Tile
from coilwork_triton.iteration.two_rows import TwoRows
from coilwork_triton.iteration.whole_vectors import WholeVectors
from coilwork_triton.launch.parameters import RUN, STAGES, Walk


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
        counted: programs count what is added at few places.
        chosen: the first elements of sorted rows: a tile that stands in the place of r.
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
        together: neighbours along r that threads are to access at once, where wider accesses leave more lanes
            idle; else 0.
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
    counted: bool = False
    together: int = 0
    chosen: Tile | None = None
    float_keys: bool = False
    program: str = ""
    zeros: bool = False
    streamed: frozenset[str] = frozenset()
    sharing: Sharing | None = None
    short_values: bool = False
    vectors: WholeVectors | None = None
    two_rows: TwoRows | None = None

    @cached_property
    def all_tiles(self) -> tuple[Tile, ...]:
        """The tiles, and that of the first elements of rows if there is one."""
        return self.tiles if self.chosen is None else (*self.tiles, self.chosen)

    @cached_property
    def parallel(self) -> tuple[Tile, ...]:
        """Tiles of parallel ranges, innermost (x) first: the order of grid axes."""
        return tuple(t for t in reversed(self.tiles) if t.letter not in "wr")

    @cached_property
    def walked(self) -> Tile | None:
        """The w tile."""
        return next((t for t in self.tiles if t.letter == "w"), None)

    @cached_property
    def reduced(self) -> Tile | None:
        """The r tile."""
        return next((t for t in self.tiles if t.letter == "r"), None)

    @cached_property
    def staged(self) -> bool:
        """How many iterations of a loop are in flight is a parameter."""
        return STAGES in self.parameters

    @cached_property
    def in_runs(self) -> bool:
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
        return (product(counts),) if self.flat_grid else counts

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
