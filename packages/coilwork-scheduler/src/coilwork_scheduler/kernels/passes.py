"""When the values of a kernel are computed: its passes over the reduction ranges, and what that allows in place.

Along walked ranges a kernel has these passes at every point: where each point touches elements of its own, it reads them
before it writes them, and no other point does either.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr
from coilwork_ir.kernels import Store
from coilwork_ir.scalar import IndexValue, Load, Reduce, Scalar, Scan, Sort, postorder
from coilwork_scheduler.kernels.accesses import scalars_of
from coilwork_scheduler.kernels.compose import Draft


@dataclass(frozen=True, slots=True)
class Moment:
    """A pass: number of reductions that must be complete before it, and whether it walks the reduction ranges."""

    depth: int
    walks: bool

    def reads_before(self, write: Moment) -> bool:
        """True if what is read at this moment is surely read before the same point writes at `write`."""
        if self.depth != write.depth:
            return self.depth < write.depth
        return self.walks == write.walks or not self.walks


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Moments at which a draft's buffers are loaded, by buffer and load, and at which its stores happen."""

    loads: Mapping[str, Mapping[Load, tuple[Moment, ...]]]
    stores: Mapping[Store, Moment]


def timing(draft: Draft) -> Timing:
    """The moments of `draft`, derived as code generators derive passes."""
    reduced = frozenset(draft.reduced)
    depth: dict[Scalar, int] = {}
    walks: dict[Scalar, bool] = {}
    roots: list[tuple[tuple[Scalar, ...], Moment]] = []
    for node in postorder(scalars_of(draft)):
        below = max((depth[o] for o in node.operands), default=0)
        if isinstance(node, Reduce | Scan | Sort):
            roots.append((node.operands, Moment(below, True)))
        depth[node] = below + 1 if isinstance(node, Reduce) else below
        # what is reduced along walked rows still varies along the reduced ranges
        row = isinstance(node, Reduce) and node.axes == draft.reduced
        walks[node] = not row and (_varies(node, reduced) or any(walks[o] for o in node.operands))
    stores: dict[Store, Moment] = {}
    for store in draft.stores:
        parts = _parts(store)
        moment = Moment(
            max(depth[p] for p in parts),
            any(walks[p] for p in parts) or not reduced.isdisjoint(store.index.free_symbols),
        )
        stores[store] = moment
        roots.append((parts, moment))
    for check in draft.checks:
        roots.append(((check.condition,), Moment(depth[check.condition], walks[check.condition])))
    loads: dict[str, dict[Load, tuple[Moment, ...]]] = {}
    for operands, moment in roots:
        for found in _loads_above_reductions(operands):
            moments = loads.setdefault(found.buffer, {})
            if moment not in moments.get(found, ()):
                moments[found] = (*moments.get(found, ()), moment)
    return Timing(loads=loads, stores=stores)


def _varies(node: Scalar, reduced: Collection[Expr]) -> bool:
    match node:
        case Load():
            return any(s in reduced for index in node.index for s in index.free_symbols)
        case IndexValue():
            return any(s in reduced for s in node.expr.free_symbols)
        case Scan() | Sort():
            return True
        case _:
            return False


def _parts(store: Store) -> tuple[Scalar, ...]:
    mask = () if store.mask is None else (store.mask,)
    return (store.value, *store.indirect, *mask)


def _loads_above_reductions(roots: tuple[Scalar, ...]) -> list[Load]:
    seen: set[Scalar] = set()
    found: list[Load] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            found.append(node)
        if not isinstance(node, Reduce):
            stack.extend(node.operands)
    return found


def overwrites_safely(when: Timing, read: str, store: Store) -> bool:
    """True if `store` may write the memory that loads of `read` read.

    That is: every such load is of the very element that its point writes, and comes before the write.
    """
    if not when.loads.get(read):
        return True
    if store.indirect or store.mode != "store":
        return False
    write = when.stores[store]
    for load, moments in when.loads.get(read, {}).items():
        if load.index[0] is not store.index or not all(moment.reads_before(write) for moment in moments):
            return False
    return True


def inplace_pairs(draft: Draft, buffers: Mapping[str, Buffer]) -> tuple[tuple[str, str], ...]:
    """Pairs (output, input) of equal size where the output may be written over the input."""
    when = timing(draft)
    written = {store.buffer for store in draft.stores}
    candidates = [(name, buffers[name], buffers[name].span) for name in when.loads if name not in written]
    taken_over = {new for new, _ in draft.into}
    pairs: list[tuple[str, str]] = []
    for store in draft.stores:
        whole = store.mask is None or store.mask is draft.bound
        if store.buffer in taken_over or not whole or not candidates:
            continue
        out = buffers[store.buffer]
        span = out.span
        for name, source, source_span in candidates:
            if (
                source.dtype.itemsize == out.dtype.itemsize
                and source_span is span
                and source.device == out.device
                and overwrites_safely(when, name, store)
            ):
                pairs.append((store.buffer, name))
    return tuple(pairs)
