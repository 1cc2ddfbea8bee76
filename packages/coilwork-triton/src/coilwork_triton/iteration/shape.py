"""The shape of the generated kernel: tiles, block axes, masks, offsets' type, grid. Decided before any text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    bounds,
    ceildiv,
    product,
    provably_divisible,
    provably_le,
    symbol,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.target import Target
from coilwork_triton.facts.streamed import streamed
from coilwork_triton.iteration.sharing import ROW, Sharing
from coilwork_triton.iteration.tiles import Tile, flat_tile, padded_tile
from coilwork_triton.iteration.two_rows import TwoRows
from coilwork_triton.iteration.whole_vectors import WholeVectors
from coilwork_triton.launch.counted import LEAST_BLOCK
from coilwork_triton.launch.parameters import BLOCKS, RUN, STAGES, Walk
from coilwork_triton.launch.search_space import Side, search_space
from coilwork_triton.launch.sorting import MOST_WARPS
from coilwork_triton.proposals.access_width import WHOLE_VECTOR
from coilwork_triton.proposals.proposal import Proposal, Setting, first_elements
from coilwork_triton.proposals.table import PROPOSALS

_GRID_AXIS_MAX: Final = 65535
# Architectures of NVIDIA GPUs with half as many units for f64 as for f32; others have few.
_FAST_F64: Final = frozenset({"80", "90", "100"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """All of a kernel's tiles and what follows from them.

    Attributes:
        tiles: in block order: z, y, x, w, r, those present; r is first where threads are to lie along x whatever is looked up.
        walk: how the r tile is walked.
        configs: launch candidates, best guess first.
        space: what else a search may try.
        index_dtype: type of offsets and sizes, `i32` or `i64`.
        flat_grid: y and z are folded into the first grid axis, whose limit is higher.
        counted: programs count what is added at few places.
        chosen: the first elements of sorted rows: a tile that stands in the place of r.
        float_keys: f64 is fast enough to compare the keys of sorts in it.
        program: the variable that counts the kernel's programs, where it shares its grid with others.
        zeros: what loads find outside of the tiles is 0.
        streamed: arguments that pass through the second-level cache.
        neighbourly: no access is to be wide, so that neighbouring threads touch neighbouring elements.
        step: points of a step, where the kernel is in steps (`coilwork_triton.kernel_passes.thread_coarsening`); else 1.
        sharing: how programs share rows, if they do.
        chunk: neighbours along r that one thread has together in every candidate's block, where r is the only axis.
        short_values: positions that are values fit 32 bits, too, where `index_dtype` is `i32`.
        vectors: how rows that begin or end anywhere are accessed in whole vectors, if they are.
        two_rows: the line whose blocks lie in two rows at most, if it is one.
        together: neighbours along r that threads are to access at once, where wider accesses leave more lanes idle; else 0.
    """

    tiles: tuple[Tile, ...]
    walk: Walk
    configs: tuple[Config, ...]
    space: SearchSpace
    index_dtype: DType
    flat_grid: bool
    neighbourly: bool
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

    @property
    def all_tiles(self) -> tuple[Tile, ...]:
        """The tiles, and that of the first elements of rows if there is one."""
        return self.tiles if self.chosen is None else (*self.tiles, self.chosen)

    @property
    def parallel(self) -> tuple[Tile, ...]:
        """Tiles of parallel ranges, innermost (x) first: the order of grid axes."""
        return tuple(t for t in reversed(self.tiles) if t.letter not in "wr")

    @property
    def walked(self) -> Tile | None:
        """The w tile."""
        return next((t for t in self.tiles if t.letter == "w"), None)

    @property
    def reduced(self) -> Tile | None:
        """The r tile."""
        return next((t for t in self.tiles if t.letter == "r"), None)

    @property
    def staged(self) -> bool:
        """How many iterations of a loop are in flight is a parameter."""
        return any(name == STAGES for name, _ in self.configs[0].meta)

    @property
    def in_runs(self) -> bool:
        """A block's positions along r are dealt out in runs of neighbours, each of which one thread scans."""
        return any(name == RUN for name, _ in self.configs[0].meta)

    @property
    def rank(self) -> int:
        """Dimensions of blocks of values."""
        return sum(t.axis is not None for t in self.tiles)

    @property
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
        found = set()
        for tile in self.all_tiles:
            members = {tile.index, *(part for part, _ in tile.parts)}
            if members & wanted:
                found.add(tile.letter)
        return frozenset(found)


def plan(setting: Setting) -> Shape:
    """The shape of the kernel of `setting`, as `coilwork_triton.proposals.table` has it.

    Raises:
        EmitError: a tensor has a type that Triton lacks, or tiles are inconsistent.
    """
    return shape_of(setting, PROPOSALS.run(Proposal(), setting))


def shape_of(setting: Setting, proposal: Proposal) -> Shape:
    """The shape of the kernel of `setting` under `proposal`."""
    draft, target, sharing = setting.draft, setting.target, proposal.sharing
    tiles = _tiles(proposal)
    configs = proposal.configs
    crowded = any(
        t.letter in "yz" and not provably_le(_programs_bound(t, configs), _GRID_AXIS_MAX) for t in tiles
    )
    chunk = min(proposal.width, _chunk(configs, target))
    sides = [_side(t, proposal.walk, crowded) for t in tiles]
    rank = sum(t.axis is not None for t in tiles)
    return Shape(
        tiles=tuple(tiles),
        walk=proposal.walk,
        configs=configs,
        space=SearchSpace() if proposal.is_invariant else _space(sides, setting, proposal, chunk),
        index_dtype=proposal.index_dtype,
        flat_grid=crowded if sharing is None else len(tiles) > 2,
        program="" if sharing is None else ROW.id,
        sharing=sharing,
        neighbourly=proposal.width == 1,
        step=draft.coarsening,
        chunk=chunk,
        counted=draft.bins > 0,
        together=proposal.together,
        chosen=None if draft.topk is None else _topk_tile(draft.topk, rank - 1),
        float_keys=target.kind == "cuda" and target.arch in _FAST_F64,
        streamed=streamed(setting.kernel, setting.analysis.roots, target),
    )


def _tiles(proposal: Proposal) -> list[Tile]:
    """In the order of block axes. A tile whose every block is a point has no axis."""
    tiles: list[Tile] = []
    rank = 0
    for letter in proposal.axes:
        if letter not in proposal.groups:
            continue
        sizes = [dict(c.meta)[BLOCKS[letter]] for c in proposal.configs]
        scalar = letter != "r" and all(size == 1 for size in sizes)
        numel, ranges = proposal.numels[letter], list(proposal.groups[letter])
        masked = not all(size == 1 or provably_divisible(numel, size) for size in sizes)
        if letter == "r" and proposal.walk == "persistent":
            # The block is there even if there is nothing to reduce; programs and turns of a loop are not.
            masked = masked or (bounds(numel).lo or 0) < 1
        axis = None if scalar else rank
        if proposal.lanes:
            tiles.append(padded_tile(letter, ranges, axis, masked, proposal.lanes))
        else:
            tiles.append(flat_tile(letter, ranges, axis, masked))
        rank += not scalar
    return tiles


def _topk_tile(topk: Expr, axis: int) -> Tile:
    """The tile of the first elements of sorted rows, along dimension `axis` of blocks."""
    assert topk.extent is not None
    block = first_elements(topk)
    return Tile(
        letter="c",
        numel=topk.extent,
        block=str(block),
        index=topk,
        axis=axis,
        masked=as_int(topk.extent) != block,
        parts=(),
    )


def _space(sides: Sequence[Side], setting: Setting, proposal: Proposal, chunk: int) -> SearchSpace:
    """What a search may try beside the proposed launches; `chunk` neighbours along r belong to one thread."""
    work = setting.analysis.work
    return search_space(
        sides,
        proposal.configs,
        target=setting.target,
        chunk=chunk if proposal.walk == "looped" else 1,
        scans=work.scan_words > 0,
        staged=proposal.loads_ahead,
        most_warps=MOST_WARPS if work.sort_key_bytes else None,
        least_block=LEAST_BLOCK if setting.draft.bins else 1,
    )


def _side(tile: Tile, walk: Walk, flat_grid: bool) -> Side:
    return Side(
        block=tile.block,
        numel=tile.numel,
        fixed=tile.axis is None or (tile.letter == "r" and walk in ("persistent", "shared")),
        whole=not tile.masked,
        programs=_GRID_AXIS_MAX if tile.letter in "yz" and not flat_grid else None,
        reduced=tile.letter == "r",
    )


def _chunk(configs: tuple[Config, ...], target: Target) -> int:
    """Elements of 4 bytes in 16, which a thread loads at once, if all threads of every candidate then have some."""
    blocks = [(dict(c.meta).get("R0_BLOCK", 1), c.num_warps * target.warp_size) for c in configs]
    return WHOLE_VECTOR if all(block >= WHOLE_VECTOR * threads for block, threads in blocks) else 1


def _programs_bound(tile: Tile, configs: tuple[Config, ...]) -> Expr:
    return ceildiv(tile.numel, min(dict(c.meta)[tile.block] for c in configs))
