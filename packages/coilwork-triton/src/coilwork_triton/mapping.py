"""How a kernel runs, one mapping for each kind of sizes: at first choice (`map_plan`), and what a search may choose
(`open_versions`).

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

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    FlatGrid,
    Guard,
    Index,
    Loop,
    Mapped,
    Mapping,
    Number,
    Order,
    Tile,
    Unit,
    Version,
    Versions,
    Warps,
)
from coilwork_ir.target import Target
from coilwork_triton.contraction.configs import GROUP
from coilwork_triton.contraction.shape import ContractionShape
from coilwork_triton.iteration import tiles
from coilwork_triton.launch.open_numbers import limits_between, numbers_of, open_numbers
from coilwork_triton.launch.parameters import BLOCKS, STAGES
from coilwork_triton.launch.search_space import WARPS
from coilwork_triton.planning import Plan
from coilwork_triton.proposals.refinements import Planned
from coilwork_triton.shape_versions import PlannedVersions


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
        case Planned():
            yield None, plan.setting.kernel, close(plan, plan.configs[0])
        case PlannedVersions(versions=versions):
            for version in versions:
                guard = version.guard if version.guard is not None and version.guard.conditions else None
                yield guard, version.kernel, close(version.planned, version.config)
                if guard is None:
                    # versions behind it are never taken
                    return


def close(planned: Planned, config: Config) -> Mapping:
    """How the kernel that is `planned` runs when it is launched with `config`."""
    return planned.mapping.close(_chosen(planned.mapping, config))


def _chosen(mapping: Mapping, config: Config) -> dict[str, int]:
    """What `config` chooses of the open numbers of `mapping`."""
    known = numbers_of(config)
    return {number.name: known[number.name] for number in mapping.open_numbers}


def open_versions(kernel: Kernel, plan: Plan) -> tuple[Version, ...]:
    """How `kernel` may run, by `plan`, for each kind of sizes: with open numbers where a search may choose."""
    match plan:
        case ContractionShape():
            return (Version(guard=None, mapping=_open_contraction(kernel, plan)),)
        case Planned(mapping=mapping):
            return (Version(guard=None, mapping=mapping),)
        case PlannedVersions(versions=versions):
            first = Version(guard=versions[0].guard, mapping=versions[0].planned.mapping)
            # few calls take the others
            others = (
                Version(guard=one.guard, mapping=close(one.planned, one.config)) for one in versions[1:]
            )
            return (first, *others)


def _ranges(kernel: Kernel, tile: tiles.Tile) -> tuple[str, ...]:
    """Names of the ranges of `tile`, outermost first."""
    members = {tile.index, *(part for part, _ in tile.parts)}
    return tuple(r.symbol.name for r in kernel.ranges if r.symbol in members)


def map_contraction(kernel: Kernel, shape: ContractionShape, config: Config) -> Mapping:
    """How the matrix product `kernel`, in `shape`, runs when it is launched with `config`."""
    return _map_product(kernel, shape, numbers_of(config), contracts=config.fp_fusion)


def _open_contraction(kernel: Kernel, shape: ContractionShape) -> Mapping:
    """How the matrix product `kernel`, in `shape`, may run."""
    numbers = open_numbers(shape.configs, shape.space)
    found = _map_product(kernel, shape, numbers, contracts=shape.configs[0].fp_fusion)
    limits = limits_between(numbers, shape.configs, shape.space)
    return Mapping(directives=(*found.directives, *limits))


def _map_product(
    kernel: Kernel, shape: ContractionShape, meta: MappingOf[str, Number], *, contracts: bool
) -> Mapping:
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
            Warps(count=meta[WARPS]),
            Index(dtype="i64" if shape.index_dtype is DType.I64 else "i32"),
            *([Contract()] if contracts else []),
        )
    )
