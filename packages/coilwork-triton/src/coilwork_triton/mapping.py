"""How a kernel runs at first choice, as closed mappings, one for each kind of sizes.

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

from coilwork_ir.dtypes import DType
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping import (
    Contract,
    FlatGrid,
    Guard,
    Index,
    Limit,
    Loop,
    Mapped,
    Mapping,
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
from coilwork_triton.launch.parameters import (
    BLOCKS,
    STAGES,
)
from coilwork_triton.launch.search_space import WARPS
from coilwork_triton.open_sizes import Forms
from coilwork_triton.planning import Plan
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
        case Planned():
            yield None, plan.setting.kernel, close(plan, plan.configs[0])
        case Forms(forms=forms):
            for form in forms:
                guard = form.guard if form.guard is not None and form.guard.conditions else None
                yield guard, form.kernel, close(form.planned, form.config)
                if guard is None:
                    # forms behind it are never taken
                    return


def close(planned: Planned, config: Config) -> Mapping:
    """How the kernel that is `planned` runs when it is launched with `config`."""
    known = {**dict(config.meta), WARPS: config.num_warps}
    directives = tuple(one.close(known) for one in planned.mapping.directives if not isinstance(one, Limit))
    return Mapping(directives=directives)


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
            Unit(unit="mma" if shape.parts.dtype.itemsize <= 2 else "fma"),
            Warps(count=config.num_warps),
            Index(dtype="i64" if shape.index_dtype is DType.I64 else "i32"),
            *([Contract()] if config.fp_fusion else []),
        )
    )
