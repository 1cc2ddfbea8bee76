"""The iteration space of a kernel: order of ranges, collapsed loops, letters.

The order follows the layout of the largest accesses, so that the innermost range is the one along which most
bytes lie at unit stride. Ranges that choose the part of memory in which stores at positions from data stay
are outermost. Neighbouring ranges that every index sees as one contiguous range are collapsed into one. A
range along which a transposed operand has unit stride stands right before the innermost one, if that is a
good share of the bytes, so that generators can make two-dimensional blocks of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Final, Literal, TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, get_extent, substitute, symbol
from coilwork_ir.kernels.nodes import RangeKind
from coilwork_ir.scalar import Reduce, Scan, Sort, iterate_postorder
from coilwork_ir.target import TURNED_SHARE, Target
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.kernels.compose import Draft
from coilwork_scheduler.kernels.draft_analysis import (
    Access,
    find_accesses,
    find_slices,
    index_expressions,
    list_scalars,
)

_ZERO: Final = as_expr(0)

# ---- Collapsing ranges ----


def join_ranges(outer: Expr, inner: Expr, indices: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]] | None:
    """One symbol for `outer * extent(inner) + inner` and `indices` over it, if they need no more
    than that.
    """
    size = get_extent(inner)
    whole = symbol(f"{outer.name}.{inner.name}", extent=get_extent(outer) * size)
    point = outer * size + inner
    result: list[Expr] = []
    for index in indices:
        free = index.free_symbols
        if outer in free or inner in free:
            over = substitute(index, {outer: _ZERO, inner: whole})
            if substitute(over, {whole: point}) is not index:
                return None
            index = over
        result.append(index)
    return whole, tuple(result)


# ---- Tilings ----


Letter: TypeAlias = Literal["x", "y", "z", "w", "r"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledRange:
    """One range of the kernel, under a provisional symbol, and the letter that it is to be named by."""

    symbol: Expr
    kind: RangeKind
    letter: Letter


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The kernel's ranges, outermost first, and the draft's range symbols over them."""

    ranges: tuple[TiledRange, ...]
    mapping: Mapping[Expr, Expr]


def tile(draft: Draft, buffers: Mapping[str, Buffer], sizes: SizeHints, target: Target) -> Tiling:
    """Return the tiling of `draft` on `target`."""
    touched = find_accesses(draft, buffers, sizes)
    outermost = find_slices(draft, buffers, sizes, target)
    others = [s for s in draft.parallel if s not in outermost]
    parallel = (*outermost, *_sort_by_layout(others, touched))
    reduced = draft.reduced if _has_fixed_order(draft) else _sort_by_layout(draft.reduced, touched)
    indices = index_expressions(draft)
    parallel_runs, indices = _collapse(parallel, indices)
    sequential_runs, indices = _collapse(draft.sequential, indices)
    reduced_runs, indices = _collapse(reduced, indices)
    # columns some elements apart share sectors of memory, too
    near = target.machine.memory.fetched_bytes // DType.F32.itemsize if target.is_gpu and draft.reduced else 1
    shares = _shares(touched, draft.parallel, near=near)

    # the unit stride of a run is that of its innermost range
    order = _move_coalesced_innermost([(run, shares[run.members[-1]]) for run in parallel_runs])
    turned = _find_transposed_shares(order, touched)
    ranges = _name_parallel(order, turned, single=bool(reduced))
    ranges += [TiledRange(symbol=run.symbol, kind="sequential", letter="w") for run in sequential_runs]
    ranges += [TiledRange(symbol=run.symbol, kind="reduction", letter="r") for run in reduced_runs]
    mapping: dict[Expr, Expr] = {}
    for run in (*parallel_runs, *sequential_runs, *reduced_runs):
        # every index was shown to see no more of a run than its innermost range running through all of it
        mapping.update(dict.fromkeys(run.members[:-1], _ZERO))
        mapping[run.members[-1]] = run.symbol
    return Tiling(ranges=tuple(ranges), mapping=mapping)


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring ranges that have become one, `symbol`."""

    members: tuple[Expr, ...]
    symbol: Expr


def _has_fixed_order(draft: Draft) -> bool:
    """Tell if the order of the reduction ranges is part of the result."""
    return any(
        isinstance(node, Scan | Sort) or (isinstance(node, Reduce) and node.kind in ("argmin", "argmax"))
        for node in iterate_postorder(list_scalars(draft))
    )


def _sort_by_layout(ranges: Sequence[Expr], touched: Sequence[Access]) -> tuple[Expr, ...]:
    """`ranges` outermost first by the largest access that tells two of them apart."""
    place = {s: k for k, s in enumerate(ranges)}

    def compare(a: Expr, b: Expr) -> int:
        for access in touched:
            first, second = access.strides[a], access.strides[b]
            if first > 0 and second > 0 and first != second:
                return -1 if first > second else 1
        return place[a] - place[b]

    return tuple(sorted(ranges, key=cmp_to_key(compare)))


def _collapse(ranges: Sequence[Expr], indices: tuple[Expr, ...]) -> tuple[list[_Run], tuple[Expr, ...]]:
    """Runs of neighbours that all `indices` see as one, and the indices over the runs' symbols."""
    runs: list[_Run] = []
    for inner in ranges:
        if runs:
            found = join_ranges(runs[-1].symbol, inner, indices)
            if found is not None:
                whole, indices = found
                runs[-1] = _Run((*runs[-1].members, inner), whole)
                continue
        runs.append(_Run((inner,), inner))
    return runs, indices


def _shares(touched: Sequence[Access], ranges: Sequence[Expr], *, near: int) -> dict[Expr, float]:
    """Shares of bytes whose nearest neighbours, up to `near` elements apart, lie along each of `ranges`."""
    everything = sum(access.touched_bytes for access in touched) or 1
    found = dict.fromkeys(ranges, 0)
    for access in touched:
        least = min((step for step in access.strides.values() if step > 0), default=0)
        for s in ranges if 0 < least <= near else ():
            found[s] += access.touched_bytes if access.strides[s] == least else 0
    return {s: round(moved / everything, 6) for s, moved in found.items()}


def _find_transposed_shares(order: Sequence[_Run], touched: Sequence[Access]) -> list[float]:
    """Return for each of `order`, the share of bytes at unit stride along it alone, and not along the
    innermost one. A buffer counts once, though all elements of a window are read from it.
    """
    if not order:
        return []
    inner = order[-1].members[-1]
    touched = list({(a.buffer, a.store, *a.strides.values()): a for a in touched}.values())
    everything = sum(access.touched_bytes for access in touched) or 1
    left = [access for access in touched if access.strides[inner] != 1]
    return [
        sum(a.touched_bytes for a in left if a.strides[run.members[-1]] == 1) / everything for run in order
    ]


def _move_coalesced_innermost(order: list[tuple[_Run, float]]) -> list[_Run]:
    """Move the range with the largest share innermost; ties keep the order."""
    if not order:
        return []
    best = max(range(len(order)), key=lambda k: (order[k][1], k))
    return [run for run, _ in (*order[:best], *order[best + 1 :], order[best])]


def _name_parallel(order: Sequence[_Run], turned: Sequence[float], *, single: bool) -> list[TiledRange]:
    """Return the parallel ranges in order, those with enough of the `turned` shares next to the innermost
    one, under other letters. With `single` (something is reduced) all of them are called `x`.
    """
    if not order:
        return []
    names: tuple[Letter, ...] = ("x",) if single else ("x", "y", "z")
    own = [k for k in range(len(order) - 1) if turned[k] >= TURNED_SHARE][::-1][: len(names) - 1]
    heads = dict(zip([len(order) - 1, *own], names, strict=False))
    grouped: dict[Letter, list[TiledRange]] = {name: [] for name in names}
    outermost = names[len(heads) - 1]
    for k, run in enumerate(order):
        name = heads.get(k, outermost)
        grouped[name].append(TiledRange(symbol=run.symbol, kind="parallel", letter=name))
    for k, name in heads.items():
        # of one letter, the range that has the share is innermost
        head = order[k].symbol
        grouped[name].sort(key=lambda r: r.symbol is head)
    return [entry for name in reversed(names) for entry in grouped[name]]
