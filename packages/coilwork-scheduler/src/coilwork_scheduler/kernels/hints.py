"""Advice for code generators: how to walk the reductions, what may be written in place."""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import bounds
from coilwork_ir.kernels import Hints
from coilwork_ir.kernels.nodes import ReductionStrategy
from coilwork_ir.scalar import Load, Sort, postorder
from coilwork_ir.target import Target
from coilwork_scheduler.kernels.accesses import scalars_of
from coilwork_scheduler.kernels.compose import Draft
from coilwork_scheduler.kernels.contracted import is_contraction
from coilwork_scheduler.kernels.passes import inplace_pairs
from coilwork_scheduler.kernels.tile import Tiling
from coilwork_scheduler.occupancy import LONGEST_COLUMN
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.stage import extent_of


def hints_for(
    draft: Draft, tiling: Tiling, buffers: Mapping[str, Buffer], target: Target, options: ScheduleOptions
) -> Hints:
    """The hints of `draft`; in-place pairs name its buffers."""
    if target.is_gpu and is_contraction(draft):
        # threads do not load, in the layout of a product's results, just the elements that they store
        return Hints(reduction="contracted")
    return Hints(
        reduction="split" if draft.split > 1 else _strategy(draft, tiling, target, options),
        split=draft.split,
        inplace=inplace_pairs(draft, buffers),
        atomic=any(store.mode != "store" for store in draft.stores),
    )


def _strategy(draft: Draft, tiling: Tiling, target: Target, options: ScheduleOptions) -> ReductionStrategy:
    if not draft.reduced:
        return "none"
    scalars = tuple(postorder(scalars_of(draft)))
    if draft.walked or any(isinstance(node, Sort) for node in scalars):
        # a row is known to fit
        return "persistent"
    longest = 1
    for symbol in draft.reduced:
        top = bounds(extent_of(symbol)).hi
        if top is None:
            return "looped"
        longest *= top
    if not target.is_gpu:
        # a row in cache is read again at no cost, and there are no registers to hold it
        return "looped"
    along_rows = max((r.coalescing for r in tiling.ranges if r.kind == "reduction"), default=0.0)
    along_columns = max((r.coalescing for r in tiling.ranges if r.kind == "parallel"), default=0.0)
    if along_columns > along_rows and longest > LONGEST_COLUMN:
        return "looped"
    reduced = set(draft.reduced)
    row_values = sum(
        1 for node in scalars if isinstance(node, Load) and not reduced.isdisjoint(node.index[0].free_symbols)
    )
    # two values per element fit beside their sum; more of them shorten the row that fits
    room = options.persistent_bytes // 4 // max(1, row_values // 2)
    return "persistent" if longest <= room else "looped"
