"""Reductions, scans and sorts as passes over the reduction ranges: what each pass computes, keeps and stores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_cpp.planning.facts import Facts, recompute_cost
from coilwork_cpp.planning.regions import Region
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.roots import store_roots
from coilwork_ir.scalar import Const, IndexValue, Load, Reduce, Scalar, Scan, Sort, postorder

# A value that costs more than this is kept from one pass to the next.
_KEEP_FROM: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def ordered(self) -> tuple[Sort, ...]:
        """The sorts that it reads, which earlier passes finished."""
        return tuple(
            value for value in postorder(self.roots) if isinstance(value, Sort) and value in evaluated(self)
        )

    @property
    def roots(self) -> tuple[Scalar, ...]:
        """What it computes at each point."""
        combined = tuple(operand for node in (*self.reduces, *self.sorts) for operand in node.operands)
        return combined + tuple(root for store in self.stores for root in store_roots(store)) + self.keeps


def passes_of(region: Region, kernel: Kernel, *, keep: bool) -> tuple[tuple[Pass, ...], tuple[Store, ...]]:
    """The passes of `region`, in order, and the stores that happen once after them.

    `keep`: values may be kept between passes; otherwise they are computed again.

    Raises:
        EmitError: one pass needs scans in both directions, or rows that are sorted lie along several ranges.
    """
    facts = region.facts
    inner = frozenset(region.reduction)
    reduces: dict[int, list[Reduce]] = {}
    sorts: dict[int, list[Sort]] = {}
    for value in postorder(region.roots):
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
    stage = {s: max(facts.ready(root) for root in store_roots(s)) for s in inner_stores}
    count = max([*reduces, *sorts, *stage.values()], default=-1) + 1
    stage = _after_reads(stage, reduces, sorts, count, kernel)
    found = []
    for number in range(count):
        stores = tuple(s for s in inner_stores if stage[s] == number)
        step = Pass(
            reduces=tuple(reduces.get(number, ())),
            scans=(),
            stores=stores,
            sorts=tuple(sorts.get(number, ())),
        )
        found.append(step)
    found = [_with_scans(step) for step in found]
    return (tuple(_with_kept(found, facts, region) if keep else found)), outer_stores


def evaluated(step: Pass) -> frozenset[Scalar]:
    """Every value that a pass computes or reads, not looking below reductions and sorts, which earlier passes finished."""
    seen: set[Scalar] = set()
    stack = list(step.roots)
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            if not isinstance(value, Reduce | Sort):
                stack.extend(value.operands)
    return frozenset(seen)


def _after_reads(
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
            read = {value.buffer for value in evaluated(step) if isinstance(value, Load)}
            late = [
                store
                for store, at in moved.items()
                if at < number and not read.isdisjoint({store.buffer, *shares.get(store.buffer, ())})
            ]
            moved |= dict.fromkeys(late, number)
    return moved


def _with_scans(step: Pass) -> Pass:
    scans = tuple(v for v in postorder(step.roots) if isinstance(v, Scan) and v in evaluated(step))
    if len({scan.reverse for scan in scans}) > 1:
        raise EmitError("scan-directions", "one pass needs a scan from the front and one from the end")
    return replace(step, scans=scans)


def _with_kept(passes: list[Pass], facts: Facts, region: Region) -> list[Pass]:
    """Costly values that several passes need are kept by the first."""
    inner = frozenset(region.reduction)
    result = list(passes)
    for first in range(len(passes)):
        # What does not vary along the innermost range is computed outside of its loop, before anything is recalled.
        have = {v for v in evaluated(result[first]) if region.reduction[-1] in facts.varies[v]}
        for later in range(first + 1, len(passes)):
            for value in _shared_tops(result[later], have, facts, inner):
                if value not in result[first].keeps and value not in result[first].recalls:
                    result[first] = _keeping(result[first], value)
                result[later] = _recalling(result[later], value)
    return result


def _shared_tops(step: Pass, have: set[Scalar], facts: Facts, inner: frozenset[Expr]) -> list[Scalar]:
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


def _keeping(step: Pass, value: Scalar) -> Pass:
    return replace(step, keeps=(*step.keeps, value))


def _recalling(step: Pass, value: Scalar) -> Pass:
    return replace(step, recalls=step.recalls | {value})
