"""The shape of the generated kernel: tiles, block axes, masks, offsets' type, grid. Decided before any text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    ceildiv,
    product,
    provably_le,
    symbol,
)
from coilwork_ir.kernel_source import Config, SearchSpace
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.overwriting import loads_ahead
from coilwork_ir.scalar import Scalar, Sort, postorder
from coilwork_ir.target import Target
from coilwork_triton.facts.ragged import is_ragged
from coilwork_triton.facts.streamed import streamed
from coilwork_triton.facts.vectors import (
    Access,
    accesses_of,
    even_width,
    neighbourly,
    row_width,
)
from coilwork_triton.iteration.grouping import chosen_tile, grouped_of, numels_of, tiles_of
from coilwork_triton.iteration.sharing import ROW, Sharing, sharing_of
from coilwork_triton.iteration.tiles import Letter, Tile, needs_64_bits
from coilwork_triton.iteration.two_rows import TwoRows
from coilwork_triton.iteration.walking import (
    check_sorts,
    facts_of,
    looks_up_across,
    walk_of,
)
from coilwork_triton.iteration.whole_vectors import WholeVectors
from coilwork_triton.launch.configs import fixed, propose
from coilwork_triton.launch.counted import LEAST_BLOCK
from coilwork_triton.launch.idle_lanes import narrower
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.launch.parameters import RUN, STAGES, Facts, Walk
from coilwork_triton.launch.pointwise import TRANSPOSED
from coilwork_triton.launch.search_space import Side, search_space
from coilwork_triton.launch.sorting import MOST_WARPS

_GRID_AXIS_MAX: Final = 65535
_CHUNK: Final = 4
# Bytes of elements of one thread beside which those of the next are near.
_PAIR: Final = 8
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


def plan(
    kernel: Kernel,
    values: tuple[Scalar, ...],
    target: Target,
    options: TritonOptions,
    *,
    points: int | None = None,
    chosen: Expr | None = None,
    step: int = 1,
    least: int = 1,
    bins: int = 0,
) -> Shape:
    """The shape of `kernel`, whose roots are `values`, on `target`.

    `points` are those of a whole launch of which the kernel does a part; they stand for an extent that is not known.
    `chosen` is the range of the first elements of sorted rows. `step` is how many points a step has, if `kernel` is in steps; `bins`, how many
    its programs count in, if they count.
    Of open sizes, those that say how many rows there are count as at least `least`, whatever is likely.

    Raises:
        EmitError: a tensor has a type that Triton lacks, or tiles are inconsistent.
    """
    touched, ragged = accesses_of(kernel, values), is_ragged(values)
    flat = step > 1 or bins > 0
    grouped = grouped_of(kernel, values, touched, ragged=ragged, flat=flat)
    numels, lanes = numels_of(kernel, grouped, touched, target, flat=flat)
    sorts = any(isinstance(v, Sort) for v in postorder(values))
    if sorts:
        check_sorts(kernel, grouped)
    invariant = options.batch_invariant and "r" in grouped and not sorts
    sharing = None if invariant or sorts or ragged else sharing_of(kernel, values, target)
    walk = walk_of(
        kernel, numels.get("r"), options, sorts=sorts, looped=ragged or (invariant and "w" not in grouped)
    )
    if sharing is not None:
        walk = "shared"
    facts = facts_of(
        kernel,
        values,
        grouped,
        touched,
        walk=walk,
        points=points,
        ragged=ragged,
        chosen=chosen,
        least=least,
    )
    piece = 0 if sharing is None else sharing.length
    facts = replace(facts, step=step, padded=lanes > 0, piece=piece, bins=bins)
    proposed = fixed(grouped, target) if invariant else propose(facts, target, options.max_configs)
    ahead = walk in ("persistent", "shared") or loads_ahead(kernel, values)
    configs = tuple(_launched(c, kernel, ahead=ahead) for c in proposed)
    # where a row begins decides how wide it may be accessed, and that which elements a thread adds first
    width = 1 if invariant else _width(kernel, grouped, touched, facts)
    order: tuple[Letter, ...] = ("z", "y", "x", "w", "r")
    if walk == "persistent" and not (sorts or facts.scans) and looks_up_across(grouped, touched, facts):
        order = ("r", "z", "y", "x")
    tiles = tiles_of(grouped, numels, walk, configs, order, lanes)
    wide = options.index_dtype == "i64" or (
        options.index_dtype == "auto" and needs_64_bits(kernel, tuple(numels.values()), values)
    )
    crowded = any(
        t.letter in "yz" and not provably_le(_programs_bound(t, configs), _GRID_AXIS_MAX) for t in tiles
    )
    chunk = min(width, _chunk(configs, target))
    sides = [_side(t, walk, crowded) for t in tiles]
    space = SearchSpace() if invariant else _space(sides, configs, facts, target, chunk=chunk, ahead=ahead)
    return Shape(
        tiles=tuple(tiles),
        walk=walk,
        configs=configs,
        space=space,
        index_dtype=DType.I64 if wide else DType.I32,
        flat_grid=crowded if sharing is None else len(tiles) > 2,
        program="" if sharing is None else ROW.id,
        sharing=sharing,
        neighbourly=width == 1,
        step=step,
        chunk=chunk,
        counted=bins > 0,
        together=0 if invariant or sorts else _together(grouped, facts, configs[0], target),
        chosen=None if chosen is None else chosen_tile(chosen, sum(t.axis is not None for t in tiles) - 1),
        float_keys=target.kind == "cuda" and target.arch in _FAST_F64,
        streamed=streamed(kernel, values, target),
    )


def _launched(config: Config, kernel: Kernel, *, ahead: bool) -> Config:
    """`config` with the arithmetic of `kernel`; one block of a loop at a time, unless loads may go `ahead`."""
    meta = config.meta if ahead else tuple((name, 1 if name == STAGES else v) for name, v in config.meta)
    return replace(config, meta=meta, fp_fusion=kernel.numerics == "fast")


def _space(
    sides: Sequence[Side],
    configs: tuple[Config, ...],
    facts: Facts,
    target: Target,
    *,
    chunk: int,
    ahead: bool,
) -> SearchSpace:
    """What a search may try beside `configs`; `chunk` neighbours along r belong to one thread, and `ahead` is as in `_launched`."""
    return search_space(
        sides,
        configs,
        target=target,
        chunk=chunk if facts.walk == "looped" else 1,
        scans=facts.scans > 0,
        staged=ahead,
        most_warps=MOST_WARPS if facts.sort_bytes else None,
        least_block=LEAST_BLOCK if facts.bins else 1,
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
    return _CHUNK if all(block >= _CHUNK * threads for block, threads in blocks) else 1


def _width(
    kernel: Kernel, grouped: Mapping[Letter, list[Range]], touched: tuple[Access, ...], facts: Facts
) -> int:
    """Neighbours that a thread has together, at least; 1 where neighbouring threads touch neighbouring elements."""
    if facts.padded and row_width(kernel.ranges[-1].symbol, touched) * facts.element_bytes <= _PAIR:
        # what a thread has is little, so that neighbouring threads are near each other
        return _CHUNK
    if facts.step > 1 or not _neighbourly(kernel, grouped, touched, facts):
        return _CHUNK
    if facts.ragged or "r" not in grouped or not _along(facts):
        return 1
    return even_width(kernel.ranges, touched, flat=len(grouped["r"]) > 1)


def _together(grouped: Mapping[Letter, list[Range]], facts: Facts, first: Config, target: Target) -> int:
    alone = "r" in grouped and _along(facts) and facts.coalescing.get("x", 0.0) <= TRANSPOSED
    return narrower(facts, first, target) if alone else 0


def _along(facts: Facts) -> bool:
    """Neighbouring addresses lie along the reduction."""
    return facts.coalescing["r"] >= facts.coalescing.get("x", 0.0)


def _neighbourly(
    kernel: Kernel, grouped: Mapping[Letter, list[Range]], touched: tuple[Access, ...], facts: Facts
) -> bool:
    share = facts.coalescing
    if facts.ragged and "y" not in grouped:
        # what single elements look up lies anywhere, and lanes in another order would have to be brought into it at each step
        return True
    if "r" in grouped and _along(facts):
        return neighbourly(kernel.ranges, touched, flat=len(grouped["r"]) > 1)
    if "x" not in grouped or share.get("y", 0.0) > TRANSPOSED or share.get("z", 0.0) > TRANSPOSED:
        return False
    others = [r for r in kernel.ranges if r not in grouped["x"]]
    return neighbourly([*others, *grouped["x"]], touched, flat=len(grouped["x"]) > 1 and not facts.padded)


def _programs_bound(tile: Tile, configs: tuple[Config, ...]) -> Expr:
    return ceildiv(tile.numel, min(dict(c.meta)[tile.block] for c in configs))
