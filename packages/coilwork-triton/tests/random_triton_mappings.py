"""Random mappings for Triton: what else could be done with a kernel, legal most often, and how much of it is
refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from typing import Literal

from coilwork_ir.errors import EmitError, VerifyError
from coilwork_ir.index import evaluate, find_bounds, get_extent, multiply_all
from coilwork_ir.kernel_source import KernelSource
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Coarsen,
    Contract,
    Directive,
    Evict,
    FlatGrid,
    Index,
    Invariant,
    Keep,
    Lanes,
    Loop,
    Mapping,
    Privatise,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Straddle,
    Threads,
    Tile,
    Values,
    Vector,
    Warps,
    format_mapping,
)
from coilwork_ir.scalar import Load, Scan, find_contraction, iterate_postorder
from coilwork_ir.target import Capabilities, Target
from coilwork_triton import TritonCodegen
from coilwork_triton.codegen import find_mapping
from coilwork_triton.facts.kernel_analysis import list_roots
from coilwork_triton.iteration.refusals import check_mapping
from coilwork_triton.iteration.shape_builder import build_shape
from coilwork_triton.iteration.vector_peeling import find_peeled_vectors
from coilwork_triton.kernel_passes.table import KERNEL_PASSES, LEGALIZATION, begin_draft
from coilwork_triton.launch.parameters import round_up_to_power_of_two
from coilwork_triton.options import TritonOptions
from coilwork_triton.planning import close_mapping
from coilwork_triton.proposals.mapping_proposal import REFINEMENTS, propose
from coilwork_triton.proposals.proposal import Setting

TRIES = 80
# An interpreter takes a while for each program, and for each turn of a loop.
MOST_PROGRAMS = 24
MOST_TURNS = 6
LARGEST = {"n0": 40, "n1": 40}


@dataclass(slots=True)
class RandomlyMapped:
    """The Triton generator with mappings drawn at random; implements `coilwork_ir.backend.Codegen`.

    Attributes:
        seed: equal seeds draw equal mappings.
        drawn: texts of the mappings that were written.
        refused: codes of the errors by which others were refused.
    """

    seed: int
    drawn: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "triton"

    def supports(self, target: Target) -> bool:
        return TritonCodegen().supports(target)

    def capabilities(self, target: Target) -> Capabilities:
        return TritonCodegen().capabilities(target)

    def emit(self, kernel: Kernel, target: Target, options: MappingOf[str, object]) -> KernelSource:
        rng = random.Random(f"{self.seed} {kernel.name} {len(kernel.args)}")
        found = LEGALIZATION.run(kernel, target)
        if find_contraction(list_roots(found)) is not None:
            # products have blocks of their own, whose numbers are drawn
            proposed = find_mapping(kernel, target, TritonOptions(max_configs=1)).versions.general
            return self._emit(found, target, proposed, lambda: _resize_all(rng, proposed))
        draft = begin_draft(found)
        if rng.random() < 0.8:
            draft = KERNEL_PASSES.run(draft, target)
        setting = Setting(draft=draft, target=target, options=TritonOptions())
        planned = REFINEMENTS.run(propose(setting), TritonOptions())
        proposed = close_mapping(planned, planned.configs[0])
        return self._emit(draft.kernel, target, proposed, lambda: draw(rng, draft.kernel, proposed, target))

    def _emit(
        self,
        kernel: Kernel,
        target: Target,
        proposed: Mapping,
        draw_one: Callable[[], Mapping],
    ) -> KernelSource:
        """The text of the first mapping drawn that has one; that of what is `proposed` if none has."""
        for _ in range(TRIES):
            mapping = draw_one()
            try:
                source = TritonCodegen().emit_mapping(kernel, mapping, target)
            except (VerifyError, EmitError) as error:
                if not error.code.startswith("mapping"):
                    raise
                self.refused.append(error.code)
                continue
            self.drawn[kernel.name] = format_mapping(mapping)
            return source
        return TritonCodegen().emit_mapping(kernel, proposed, target)


def _resize_all(rng: random.Random, mapping: Mapping) -> Mapping:
    return Mapping(directives=tuple(_resized(rng, one) for one in mapping.directives))


def draw(rng: random.Random, kernel: Kernel, proposed: Mapping, target: Target) -> Mapping:
    """Another way to run `kernel` than what is `proposed`, most often a legal one."""
    if rng.random() < 0.3:
        return _resize_all(rng, proposed)
    tiles = _tiles(rng, kernel)
    if proposed.find(Share) is not None and rng.random() < 0.5:
        tiles = [replace(tile, by=1, padded=0) for tile in tiles]
    rows = _rows(rng, kernel, proposed)
    directives: list[Directive] = [*tiles]
    if rng.random() < 0.4 and tiles:
        directives.append(FlatGrid())
    if len(kernel.stores) > 1 and tiles and rng.random() < 0.3:
        directives.append(Coarsen(range=kernel.ranges[-1].symbol.name, by=rng.choice([1, 2, 2, 4])))
    if len(tiles) == 1 and len(tiles[0].ranges) > 1 and rng.random() < 0.4:
        directives.append(Straddle(range=tiles[0].ranges[-1]))
    directives += rows
    directives += _lanes(rng, kernel, [*tiles, *rows])
    directives.append(Warps(count=rng.choice([1, 2, 4, 8])))
    directives += _memory(rng, kernel)
    if kernel.numerics == "fast" and rng.random() < 0.5:
        directives.append(Contract())
    if rng.random() < 0.05:
        directives.append(rng.choice([Threads(), Invariant(lanes=16, block=16)]))
    mapping = Mapping(directives=tuple(directives))
    if rng.random() < 0.15:
        return _fixed(rng, kernel, mapping)
    return _vectorized(kernel, mapping, target) if rng.random() < 0.5 else mapping


def _fixed(rng: random.Random, kernel: Kernel, mapping: Mapping) -> Mapping:
    """`mapping` with a row per program and one order of its elements, whatever is beside it, if rows are
    sequential.
    """
    loop = mapping.find(Loop)
    names = [r.symbol.name for r in kernel.ranges if r.kind == "parallel"]
    if loop is None or not isinstance(loop.by, int) or _points(kernel, tuple(names)) > MOST_PROGRAMS:
        return mapping
    kept = [
        one for one in mapping.directives if not isinstance(one, Tile | Lanes | Straddle | FlatGrid | Coarsen)
    ]
    tiles = [Tile(ranges=tuple(names), by=1)] if names else []
    lanes = Lanes(ranges=(loop.ranges[-1],), by=rng.choice([1, 1, 1, 2]))
    return Mapping(directives=(*tiles, *kept, Invariant(lanes=loop.by, block=loop.by), lanes))


def _resized(rng: random.Random, one: Directive) -> Directive:
    """`one` with larger or smaller blocks."""
    match one:
        case Tile(by=int()) | Loop(by=int()):
            assert isinstance(one.by, int)
            return replace(one, by=max(1, min(1 << 12, int(one.by * rng.choice([0.25, 0.5, 1, 2, 4])))))
        case Warps():
            return replace(one, count=rng.choice([1, 2, 4, 8]))
        case Index():
            return replace(one, dtype=rng.choice(["i32", "i64"]))
        case _:
            return one


def _points(kernel: Kernel, names: tuple[str, ...]) -> int:
    extents = [r.extent for r in kernel.ranges if r.symbol.name in names]
    return max(1, evaluate(multiply_all(extents), {s.name: LARGEST.get(s.name, 40) for s in kernel.sizes}))


def _block(rng: random.Random, points: int, pieces: int) -> int:
    """A power of two that cuts `points` into at most so many `pieces`."""
    most = round_up_to_power_of_two(points)
    least = max(1, round_up_to_power_of_two(-(-points // max(1, pieces))))
    return rng.choice([size for k in range(22) if least <= (size := 1 << k) <= 2 * most])


def _tiles(rng: random.Random, kernel: Kernel) -> list[Tile]:
    names = [r.symbol.name for r in kernel.ranges if r.kind == "parallel"]
    if rng.random() < 0.2:
        rng.shuffle(names)
    count = rng.choice([1, 1, 2, 3])
    groups: list[list[str]] = [[] for _ in range(count)]
    for name in names:
        groups[rng.randrange(count)].append(name)
    if names and rng.random() < 0.03:
        next(group for group in groups if group).pop()
    pieces = MOST_PROGRAMS
    tiles = []
    for group in filter(None, groups):
        ranges = tuple(group)
        points = _points(kernel, ranges)
        padded = 0
        if rng.random() < 0.15:
            padded = round_up_to_power_of_two(_points(kernel, ranges[-1:]))
            points = points // max(1, _points(kernel, ranges[-1:])) * padded
        block = _block(rng, points, pieces)
        pieces //= max(1, -(-points // block))
        tiles.append(Tile(ranges=ranges, by=block, padded=padded))
    return tiles


def _rows(rng: random.Random, kernel: Kernel, proposed: Mapping) -> list[Directive]:
    found: list[Directive] = []
    sequential = tuple(r.symbol.name for r in kernel.ranges if r.kind == "sequential")
    if sequential:
        found.append(Sequential(ranges=sequential, by=rng.choice([1, 1, 2, 4]), stages=rng.choice([1, 2, 3])))
    names = tuple(r.symbol.name for r in kernel.ranges if r.kind == "reduction")
    if not names:
        return found
    points = _points(kernel, names)
    longest = find_bounds(
        multiply_all(get_extent(r.symbol) for r in kernel.ranges if r.symbol.name in names)
    ).hi
    share, sort, select = (proposed.find(kind) for kind in (Share, Sort, Select))
    if share is not None and rng.random() < 0.6:
        found.append(share)
        return found
    elif longest is not None and rng.random() < 0.5:
        size = round_up_to_power_of_two(max(1, longest)) * rng.choice([1, 1, 2])
        found.append(Keep(ranges=names, by=size, first=rng.random() < 0.3))
    else:
        found.append(Loop(ranges=names, by=_block(rng, points, MOST_TURNS), stages=rng.choice([1, 1, 2, 3])))
    if any(isinstance(node, Scan) for node in iterate_postorder(list_roots(kernel))) and rng.random() < 0.4:
        found.append(Runs(range=names[-1], by=rng.choice([2, 4, 8])))
    if isinstance(sort, Sort):
        keys: Literal["integer", "float"] = rng.choice(("integer", "float"))
        found.append(replace(sort, threads=rng.choice([1, 2, 8, 32]), width=rng.choice([1, 2, 4]), keys=keys))
    if isinstance(select, Select):
        room = rng.choice([0, 0, 32, 64])
        found.append(replace(select, share=rng.choice([1, 2]), room=room, groups=rng.choice([32, 64])))
    return found


def _lanes(rng: random.Random, kernel: Kernel, walks: list[Directive]) -> list[Directive]:
    found: list[Directive] = []
    names = [one.ranges[-1] for one in walks if isinstance(one, Tile | Keep | Loop | Share)]
    if names and rng.random() < 0.6:
        found.append(Lanes(ranges=(rng.choice(names),), by=rng.choice([1, 2, 4, 4])))
    if names and rng.random() < 0.2:
        found.append(Lanes(ranges=(names[-1],), by=rng.choice([1, 2, 4]), narrow=True))
    return found


def _memory(rng: random.Random, kernel: Kernel) -> list[Directive]:
    found: list[Directive] = []
    if all(store.mode == "add" and store.indirect for store in kernel.stores) and rng.random() < 0.5:
        args = tuple(dict.fromkeys(store.buffer for store in kernel.stores))
        found.append(Privatise(args=args, bins=rng.choice([8, 16, 256])))
    loaded = sorted({node.buffer for node in iterate_postorder(list_roots(kernel)) if isinstance(node, Load)})
    if loaded and rng.random() < 0.3:
        found.append(Evict(args=(rng.choice(loaded),), priority=rng.choice(["first", "first", "last"])))
    narrow = rng.random() < 0.6
    found.append(Index(dtype="i32" if narrow else "i64", promised=narrow and rng.random() < 0.5))
    if rng.random() < 0.3:
        found.append(Values(promised=rng.random() < 0.5))
    return found


def _vectorized(kernel: Kernel, mapping: Mapping, target: Target) -> Mapping:
    """`mapping` with accesses of whole vectors along rows that begin or end anywhere, if there are any."""
    try:
        check_mapping(kernel, mapping, target)
        found = find_peeled_vectors(kernel, build_shape(kernel, mapping, target), list_roots(kernel))
    except EmitError:
        return mapping
    if found is None:
        return mapping
    vector = Vector(range=found.tile.inner.name, by=found.widest, shifted=found.shifted, tail="peel")
    return replace(mapping, directives=(*mapping.directives, vector))
