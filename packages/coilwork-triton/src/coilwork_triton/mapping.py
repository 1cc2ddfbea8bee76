"""Decisions about a kernel, as a closed `Mapping`: `map_kernel` says how it runs, `config_of` launches it so.

    mapping @softmax for cuda {
      when `n1 <= 4096` and `n1 % 16 == 0`:
        tile x0 by 1
        keep r0 by 4096
        warps 4
        index i32
      otherwise:
        tile x0 by 1
        loop r0 by 1024
        warps 8
        index i64
    }

A mapping is about the kernel that kernel passes leave, not the one that they get.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from typing import Literal

from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, product
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Coarsen,
    Contract,
    Directive,
    Evict,
    FlatGrid,
    Guard,
    Index,
    Invariant,
    Keep,
    Lanes,
    Loop,
    Mapped,
    Mapping,
    Order,
    Privatise,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Straddle,
    Tile,
    Unit,
    Values,
    Vector,
    Version,
    Versions,
    Warps,
)
from coilwork_ir.target import Target
from coilwork_triton.contraction.configs import GROUP
from coilwork_triton.contraction.shape import ContractionShape
from coilwork_triton.iteration import tiles
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.launch.parameters import (
    BLOCKS,
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    STAGES,
    next_power_of_two,
)
from coilwork_triton.open_sizes import Forms
from coilwork_triton.planning import Plan
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.proposals.refinements import Planned


def map_plan(kernel: Kernel, plan: Plan, target: Target) -> Mapped:
    """How `kernel` runs on `target` at first choice, by `plan`, for each kind of sizes, and the rewritten kernel."""
    parts = tuple(_parts(kernel, plan))
    versions = tuple(Version(guard=guard, mapping=mapping) for guard, _, mapping in parts)
    _, general, _ = parts[-1]
    return Mapped(
        kernel=general, versions=Versions(kernel=kernel.name, target=target.kind, versions=versions)
    )


def _parts(kernel: Kernel, plan: Plan) -> Iterator[tuple[Guard | None, Kernel, Mapping]]:
    match plan:
        case ContractionShape():
            yield None, kernel, map_contraction(kernel, plan, plan.configs[0])
        case Planned(setting=setting, shape=shape):
            yield None, setting.kernel, map_kernel(setting, shape, shape.configs[0])
        case Forms(forms=forms):
            for form in forms:
                guard = form.guard if form.guard is not None and form.guard.conditions else None
                yield guard, form.kernel, map_kernel(form.setting, form.shape, form.config)
                if guard is None:
                    # forms behind it are never taken
                    return


def map_kernel(setting: Setting, shape: Shape, config: Config) -> Mapping:
    """How the kernel of `setting`, in `shape`, runs when it is launched with `config`."""
    meta = dict(config.meta)
    return Mapping(
        directives=(
            *_cuts(setting.kernel, shape, meta),
            *_rows(setting, shape, meta),
            *_threads(setting, shape, config),
            *_memory(setting, shape),
            *([Contract()] if config.fp_fusion else []),
        )
    )


def _cuts(kernel: Kernel, shape: Shape, meta: MappingOf[str, int]) -> Iterator[Directive]:
    """Which points programs have."""
    for tile in shape.parallel:
        ranges = _ranges(kernel, tile)
        lanes = 0
        if tile.column is not None:
            outer = product(r.extent for r in kernel.ranges if r.symbol.name in ranges[:-1])
            lanes = (as_int(tile.numel) or 0) // (as_int(outer) or 1)
        yield Tile(ranges=ranges, by=meta[tile.block], padded=lanes)
    if shape.flat_grid and shape.parallel:
        yield FlatGrid()
    if shape.step > 1:
        yield Coarsen(range=kernel.ranges[-1].symbol.name, by=shape.step)
    if shape.two_rows is not None:
        yield Straddle(range=shape.two_rows.tile.inner.name)


def _rows(setting: Setting, shape: Shape, meta: MappingOf[str, int]) -> Iterator[Directive]:
    """How rows are walked, scanned and sorted."""
    kernel, walked, tile = setting.kernel, shape.walked, shape.reduced
    if walked is not None:
        stages = meta.get(STAGES, 1)
        yield Sequential(ranges=_ranges(kernel, walked), by=meta[walked.block], stages=stages)
    if tile is None:
        return
    ranges, block = _ranges(kernel, tile), meta[tile.block]
    if shape.sharing is not None:
        yield Share(ranges=ranges, by=shape.sharing.length, workspace=shape.sharing.workspace)
    elif shape.walk == "persistent":
        yield Keep(ranges=ranges, by=block, first=shape.tiles[0] is tile and len(shape.tiles) > 1)
    else:
        yield Loop(ranges=ranges, by=block, stages=meta.get(STAGES, 1))
    if setting.options.batch_invariant and not setting.analysis.sorts:
        yield Invariant(lanes=block, block=block)
    if RUN in meta:
        yield Runs(range=ranges[-1], by=meta[RUN])
    if SORT_THREADS in meta:
        keys: Literal["integer", "float"] = "float" if shape.float_keys else "integer"
        yield Sort(range=ranges[-1], threads=meta[SORT_THREADS], width=meta[SORT_WIDTH], keys=keys)
    if shape.chosen is not None:
        yield Select(
            range=ranges[-1],
            first=as_int(shape.chosen.numel) or 0,
            share=meta[SORT_SHARE],
            groups=meta[SORT_GROUPS],
            room=meta[SORT_ROOM],
            spread=meta[SORT_SPREAD],
        )


def _threads(setting: Setting, shape: Shape, config: Config) -> Iterator[Directive]:
    """How threads lie over a block, and how many neighbours one of them has."""
    axes = sorted((t for t in shape.tiles if t.axis is not None), key=lambda t: t.axis or 0)
    tile = shape.reduced if shape.reduced in axes and not shape.neighbourly else axes[-1] if axes else None
    together = 1 if shape.neighbourly else shape.together or shape.chunk
    if tile is not None and (shape.neighbourly or together > 1):
        yield Lanes(ranges=(tile.inner.name,), by=together)
    if shape.vectors is not None:
        found = shape.vectors
        lanes = max((row.lanes for row in found.rows.values()), default=found.lanes)
        yield Vector(range=found.tile.inner.name, by=lanes, shifted=found.shifted, tail="peel")
    yield Warps(count=config.num_warps)


def _memory(setting: Setting, shape: Shape) -> Iterator[Directive]:
    """Where data go on their way, and of what type positions are."""
    if setting.draft.bins:
        yield Privatise(
            args=tuple(dict.fromkeys(store.buffer for store in setting.kernel.stores)),
            bins=setting.draft.bins,
        )
    if shape.streamed:
        yield Evict(
            args=tuple(a.name for a in setting.kernel.args if a.name in shape.streamed), priority="first"
        )
    yield _index(shape.index_dtype, promised=setting.options.index_dtype == "i32")
    if shape.short_values:
        yield Values()


def _index(dtype: DType, *, promised: bool) -> Index:
    return Index(dtype="i64") if dtype is DType.I64 else Index(dtype="i32", promised=promised)


def _ranges(kernel: Kernel, tile: tiles.Tile) -> tuple[str, ...]:
    """Names of the ranges of `tile`, outermost first."""
    members = {tile.index, *(part for part, _ in tile.parts)}
    return tuple(r.symbol.name for r in kernel.ranges if r.symbol in members)


def map_contraction(kernel: Kernel, shape: ContractionShape, config: Config) -> Mapping:
    """How the matrix product `kernel`, in `shape`, runs when it is launched with `config`."""
    meta = dict(config.meta)
    sides = {
        name: _ranges(kernel, tile) for name, tile in zip("xyr", (shape.columns, shape.rows, shape.axis))
    }
    batch = [] if shape.batch is None else [Tile(ranges=_ranges(kernel, shape.batch), by=1)]
    cuts = [Tile(ranges=sides[letter], by=meta[BLOCKS[letter]]) for letter in "xy" if sides[letter]]
    ordered = tuple(name for letter in "yx" for name in sides[letter])
    return Mapping(
        directives=(
            *cuts,
            *batch,
            FlatGrid(),
            *([Order(ranges=ordered, by=meta[GROUP])] if ordered else []),
            Loop(ranges=sides["r"], by=meta[BLOCKS["r"]], stages=meta[STAGES]),
            Unit(unit="mma" if shape.node.left.dtype.itemsize <= 2 else "fma"),
            Warps(count=config.num_warps),
            _index(shape.index_dtype, promised=False),
            *([Contract()] if config.fp_fusion else []),
        )
    )


def config_of(mapping: Mapping, shape: Shape) -> Config:
    """The configuration that launches a kernel, in `shape`, as the closed `mapping` says."""
    found: dict[str, int] = {}
    for tile in shape.tiles:
        members = {tile.index.name, *(part.name for part, _ in tile.parts)}
        for one in _walks(mapping):
            if set(one.ranges) <= members:
                size = _closed(one.by)
                found[tile.block] = next_power_of_two(size) if isinstance(one, Share) else size
                if not isinstance(one, Tile | Keep | Share):
                    found[STAGES] = _closed(one.stages)
    runs, sort, select = mapping.find(Runs), mapping.find(Sort), mapping.find(Select)
    if runs is not None:
        found[RUN] = _closed(runs.by)
    if sort is not None:
        found |= {SORT_THREADS: _closed(sort.threads), SORT_WIDTH: _closed(sort.width)}
    if select is not None:
        numbers = (select.share, select.groups, select.room, select.spread)
        names = (SORT_SHARE, SORT_GROUPS, SORT_ROOM, SORT_SPREAD)
        found |= dict(zip(names, map(_closed, numbers), strict=True))
    warps = mapping.find(Warps)
    return Config(
        # parameters in the order of the kernel's
        meta=tuple((name, found[name]) for name, _ in shape.configs[0].meta),
        num_warps=1 if warps is None else _closed(warps.count),
        num_stages=1,
        fp_fusion=mapping.find(Contract) is not None,
    )


def _walks(mapping: Mapping) -> Iterator[Tile | Keep | Loop | Sequential | Share]:
    return (one for one in mapping.directives if isinstance(one, Tile | Keep | Loop | Sequential | Share))


def _closed(number: object) -> int:
    if not isinstance(number, int):
        raise ValueError(f"{number} is not chosen")
    return number
