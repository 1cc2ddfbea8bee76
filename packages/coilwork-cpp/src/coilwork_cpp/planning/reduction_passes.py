"""Reductions, scans and sorts as passes over the reduction ranges: what each computes, keeps and stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from coilwork_cpp.facts import Facts, recompute_cost, split_comparison
from coilwork_cpp.planning.plan import Plan
from coilwork_cpp.planning.regions import Region
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, get_extent
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Reduce, Scalar, Scan, Sort, iterate_postorder

# A value that costs more than this is kept from one pass to the next.
_KEEP_FROM: Final = 8


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One walk along the reduction ranges.

    Attributes:
        reduces: accumulated in it.
        scans: carried along in it.
        stores: performed at each of its points.
        sorts: whose rows are filled in it, and in order after it.
        keeps: values that later passes read back.
        recalls: values that an earlier pass kept.
        first: it walks so many points only, or all if `None`.
    """

    reduces: tuple[Reduce, ...]
    scans: tuple[Scan, ...]
    stores: tuple[Store, ...]
    sorts: tuple[Sort, ...] = ()
    keeps: tuple[Scalar, ...] = ()
    recalls: frozenset[Scalar] = frozenset()
    first: int | None = None

    @cached_property
    def finished_sorts(self) -> tuple[Sort, ...]:
        """The sorts that it reads, which earlier passes finished."""
        return tuple(
            value
            for value in iterate_postorder(self.roots)
            if isinstance(value, Sort) and value in self.computed_values
        )

    @cached_property
    def roots(self) -> tuple[Scalar, ...]:
        """The values that it computes at each point."""
        combined = tuple(operand for node in (*self.reduces, *self.sorts) for operand in node.operands)
        return (
            combined + tuple(root for store in self.stores for root in list_store_roots(store)) + self.keeps
        )

    @cached_property
    def computed_values(self) -> frozenset[Scalar]:
        """Every value that it computes or reads, not looking below reductions and sorts, which earlier passes
        finished.
        """
        seen: set[Scalar] = set()
        stack = list(self.roots)
        while stack:
            value = stack.pop()
            if value not in seen:
                seen.add(value)
                if not isinstance(value, Reduce | Sort):
                    stack.extend(value.operands)
        return frozenset(seen)


def list_passes(region: Region, kernel: Kernel, plan: Plan) -> tuple[tuple[Pass, ...], tuple[Store, ...]]:
    """Return the passes of `region`, in order, and the stores that happen once after them, as `plan` says
    what is kept and walked.

    Raises:
        EmitError: one pass needs scans in both directions, rows that are sorted lie along several ranges, or
            `plan` says of passes what they do not allow.
    """
    passes, outer_stores = _split_into_passes(region, kernel)
    saved = _apply_saves(list(passes), plan.saves, kernel)
    return tuple(
        _limit_to_first(step, plan.walk(n).first, region, kernel) for n, step in enumerate(saved)
    ), outer_stores


def choose_saves(region: Region, kernel: Kernel) -> dict[int, tuple[Scalar, ...]]:
    """Costly values that several passes of `region` need, by the number of the first, which keeps them."""
    passes, _ = _split_into_passes(region, kernel)
    kept = _choose_kept(list(passes), region.facts, region)
    return {number: step.keeps for number, step in enumerate(kept) if step.keeps}


def _split_into_passes(region: Region, kernel: Kernel) -> tuple[tuple[Pass, ...], tuple[Store, ...]]:
    """Return the passes of `region` that keep nothing, and the stores after them."""
    facts = region.facts
    inner = frozenset(region.reduction)
    reduces: dict[int, list[Reduce]] = {}
    sorts: dict[int, list[Sort]] = {}
    for value in region.values:
        if isinstance(value, Reduce):
            reduces.setdefault(facts.stage[value], []).append(value)
        elif isinstance(value, Sort):
            sorts.setdefault(facts.stage[value], []).append(value)
    if sorts and len(region.reduction) > 1:
        raise EmitError(
            "sort", f"kernel {kernel.name} sorts along one of several ranges", origins=kernel.origins
        )
    outer_stores = tuple(s for s in region.stores if region.varies(s).isdisjoint(inner))
    inner_stores = [s for s in region.stores if s not in outer_stores]
    stage = {s: max(facts.ready(root) for root in list_store_roots(s)) for s in inner_stores}
    count = max([*reduces, *sorts, *stage.values()], default=-1) + 1
    stage = _delay_stores(stage, reduces, sorts, count, kernel)
    passes = []
    for number in range(count):
        stores = tuple(s for s in inner_stores if stage[s] == number)
        step = Pass(
            reduces=tuple(reduces.get(number, ())),
            scans=(),
            stores=stores,
            sorts=tuple(sorts.get(number, ())),
        )
        passes.append(step)
    return tuple(_add_scans(step) for step in passes), outer_stores


def _delay_stores(
    stage: dict[Store, int],
    reduces: dict[int, list[Reduce]],
    sorts: dict[int, list[Sort]],
    count: int,
    kernel: Kernel,
) -> dict[Store, int]:
    """Stores into memory that a later pass reads move to that pass."""
    shares: dict[str, set[str]] = {}
    for out, source in kernel.aliasing:
        shares.setdefault(out, set()).add(source)
    moved = dict(stage)
    for number in range(count):
        late: list[Store] | None = None
        # what moves to a pass is read there, too, which may hold back others
        while late is None or late:
            step = Pass(
                reduces=tuple(reduces.get(number, ())),
                scans=(),
                stores=tuple(s for s in moved if moved[s] == number),
                sorts=tuple(sorts.get(number, ())),
            )
            read = {value.buffer for value in step.computed_values if isinstance(value, Load)}
            late = [
                store
                for store, at in moved.items()
                if at < number and not read.isdisjoint({store.buffer, *shares.get(store.buffer, ())})
            ]
            moved |= dict.fromkeys(late, number)
    return moved


def _add_scans(step: Pass) -> Pass:
    scans = tuple(
        v for v in iterate_postorder(step.roots) if isinstance(v, Scan) and v in step.computed_values
    )
    if len({scan.reverse for scan in scans}) > 1:
        raise EmitError("scan-directions", "one pass needs a scan from the front and one from the end")
    return replace(step, scans=scans)


def _choose_kept(passes: list[Pass], facts: Facts, region: Region) -> list[Pass]:
    """Costly values that several passes need are kept by the first."""
    inner = frozenset(region.reduction)
    result = list(passes)
    for first in range(len(passes)):
        # What does not vary along the innermost range is computed outside of its loop, before anything is
        # recalled.
        have = {v for v in result[first].computed_values if region.reduction[-1] in facts.varies[v]}
        for later in range(first + 1, len(passes)):
            for value in _find_costly_values(result[later], have, facts, inner):
                if value not in result[first].keeps and value not in result[first].recalls:
                    result[first] = _add_kept(result[first], value)
                result[later] = _add_recall(result[later], value)
    return result


def _apply_saves(passes: list[Pass], saves: Mapping[int, tuple[Scalar, ...]], kernel: Kernel) -> list[Pass]:
    """`passes` that keep what `saves` says by their numbers, of which later ones recall what they need."""
    result = list(passes)
    for number, values in saves.items():
        if number >= len(result) or not result[number].computed_values.issuperset(values):
            raise EmitError(
                "mapping-save", f"pass {number} of {kernel.name} does not compute what it is to keep"
            )
        result[number] = replace(result[number], keeps=values)
    for first in range(len(result)):
        have = {*result[first].keeps, *result[first].recalls}
        for later in range(first + 1, len(result)):
            for value in _list_first_reached(result[later], have):
                result[later] = _add_recall(result[later], value)
    for number, values in saves.items():
        if any(all(value not in step.recalls for step in result[number + 1 :]) for value in values):
            raise EmitError(
                "mapping-save", f"no pass of {kernel.name} after number {number} reads what it keeps"
            )
    return result


def _list_first_reached(step: Pass, have: Set[Scalar]) -> list[Scalar]:
    """The values in `have` that `step` reaches first from what it combines and stores."""
    reached: list[Scalar] = []
    seen: set[Scalar] = set(step.recalls)
    stack = list(step.roots)
    while stack:
        value = stack.pop()
        if value in seen or isinstance(value, Reduce | Sort):
            continue
        seen.add(value)
        if value in have:
            reached.append(value)
        else:
            stack.extend(value.operands)
    return reached


def _find_costly_values(step: Pass, have: set[Scalar], facts: Facts, inner: frozenset[Expr]) -> list[Scalar]:
    """The values in `have` that `step` reaches first from its roots and that cost much to compute again."""
    tops: list[Scalar] = []
    seen: set[Scalar] = set(step.recalls)
    stack = list(step.roots)
    while stack:
        value = stack.pop()
        if value in seen or isinstance(value, Reduce | Sort):
            continue
        seen.add(value)
        plain = isinstance(value, Const | Load | IndexValue)
        if value in have and not plain and recompute_cost(value, inner, facts) >= _KEEP_FROM:
            tops.append(value)
        else:
            stack.extend(value.operands)
    return tops


def _add_kept(step: Pass, value: Scalar) -> Pass:
    return replace(step, keeps=(*step.keeps, value))


def _add_recall(step: Pass, value: Scalar) -> Pass:
    return replace(step, recalls=step.recalls | {value})


# First points


def count_first_points(step: Pass, axis: Expr) -> int | None:
    """At how many of the first points along `axis` alone `step` does something; None if at all, or if it does
    more than store.

    A store of the first elements of a sorted row is masked, `r < 64`, whatever else the row is used for.
    """
    if step.reduces or step.scans or step.sorts or step.keeps:
        return None
    counts = {_count_masked_points(store, axis) for store in step.stores}
    return counts.pop() if len(counts) == 1 else None


def count_read_elements(sort: Sort, passes: Sequence[Pass]) -> int | None:
    """Return the most elements of a row in order that are read, where `passes` know."""
    counts = {
        step.first for step in passes if any(_is_same_row(sort, other) for other in step.finished_sorts)
    }
    return counts.pop() if len(counts) == 1 else None


def _limit_to_first(step: Pass, count: int | None, region: Region, kernel: Kernel) -> Pass:
    """`step` at its first `count` points alone, where its stores need no masks; itself if that is `None`."""
    if count is None:
        return step
    if not step.finished_sorts or count_first_points(step, region.reduction[-1]) != count:
        raise EmitError(
            "mapping-select", f"a pass of {kernel.name} does more than store the first {count} points"
        )
    return replace(step, stores=tuple(replace(s, mask=None) for s in step.stores), first=count)


def _count_masked_points(store: Store, axis: Expr) -> int | None:
    """Return the number of first points along `axis` that the store's mask leaves, if that is all that it
    says, and rows have as many.
    """
    if store.mask is None or not isinstance(store.mask, Op) or store.mask.op != "lt":
        return None
    sides, length = split_comparison(store.mask), as_int(get_extent(axis))
    count = as_int(sides[1]) if sides is not None and sides[0] is axis else None
    return count if count is not None and length is not None and 1 <= count <= length else None


def _is_same_row(sort: Sort, other: Sort) -> bool:
    return (sort.operands[0], sort.descending, sort.topk) == (
        other.operands[0],
        other.descending,
        other.topk,
    )
