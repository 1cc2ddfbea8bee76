"""Advice for code generators: how to walk the reductions."""

from __future__ import annotations

from math import prod

from coilwork_ir.index import Expr, bounds, extent_of
from coilwork_ir.kernels import Hints
from coilwork_ir.kernels.nodes import ReductionStrategy
from coilwork_ir.scalar import Load, Sort, postorder
from coilwork_ir.target import Target
from coilwork_scheduler.kernels.accesses import scalars_of
from coilwork_scheduler.kernels.compose import Draft
from coilwork_scheduler.kernels.contracted import is_contraction
from coilwork_scheduler.kernels.tile import Tiling
from coilwork_scheduler.occupancy import LONGEST_COLUMN
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.sizes import SizeHints


def hints_for(draft: Draft, tiling: Tiling, target: Target, options: ScheduleOptions) -> Hints:
    """The hints of `draft`."""
    if target.is_gpu and is_contraction(draft):
        return Hints(reduction="contracted")
    return Hints(
        reduction="split" if draft.split > 1 else _strategy(draft, tiling, target, options),
        split=draft.split,
    )


def likely_strategy(
    draft: Draft, tiling: Tiling, target: Target, options: ScheduleOptions, sizes: SizeHints
) -> ReductionStrategy:
    """How to walk the reductions of `draft` where no size exceeds what `sizes` have for likely; unknown ones may be any."""
    lengths = [_most(extent_of(symbol), sizes) for symbol in draft.reduced]
    longest = None if None in lengths else prod(length for length in lengths if length is not None)
    return _walk(draft, tiling, target, options, longest)


def _most(extent: Expr, sizes: SizeHints) -> int | None:
    return sizes.value(extent) if all(s.name in sizes.known for s in extent.free_symbols) else None


def _strategy(draft: Draft, tiling: Tiling, target: Target, options: ScheduleOptions) -> ReductionStrategy:
    longest: int | None = 1
    for symbol in draft.reduced:
        top = bounds(extent_of(symbol)).hi
        longest = None if top is None or longest is None else longest * top
    return _walk(draft, tiling, target, options, longest)


def _walk(
    draft: Draft, tiling: Tiling, target: Target, options: ScheduleOptions, longest: int | None
) -> ReductionStrategy:
    """How rows of at most `longest` points are walked; None if there is no bound."""
    if not draft.reduced:
        return "none"
    scalars = tuple(postorder(scalars_of(draft)))
    if draft.walked or any(isinstance(node, Sort) for node in scalars):
        # a row is known to fit
        return "persistent"
    if longest is None or not target.is_gpu:
        # a row in a CPU's cache is read again at no cost, and there are no registers to hold it
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
