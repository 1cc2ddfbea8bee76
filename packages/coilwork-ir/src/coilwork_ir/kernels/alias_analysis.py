"""Decide when a kernel may write memory that it reads.

The outputs of a kernel may lie in the memory of its inputs where every load comes before the store that
overwrites it: the proof, and the verifier's rule `aliasing`. `can_load_ahead` says if a loop may load what
later iterations need before it stores: it may where each element is loaded by the very point that stores it,
for then points that differ along the loop have elements that differ, and other programs have others still.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels.nodes import Kernel, Store, TensorArg
from coilwork_ir.kernels.rewrite import list_kernel_roots, list_store_roots
from coilwork_ir.scalar import (
    Contraction,
    IndexValue,
    Load,
    Reduce,
    Scalar,
    Scan,
    Sort,
    find_contraction,
    iterate_postorder,
)
from coilwork_ir.verification import Place, Rule

# ---- Outputs in place of inputs ----


ALIASING_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "aliasing": Rule(
            "an `out` argument may share the memory of an `in` argument of the same element size and span if "
            "every load of it is of the element that the same point stores, no later than that",
            "leave the pair out",
        ),
    }
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A pass of a kernel.

    Attributes:
        depth: number of reductions, one inside another, that are complete before it.
        walks: it visits the points of the reduced ranges.
    """

    depth: int
    walks: bool

    def reads_before(self, write: Moment) -> bool:
        """Tell if what is read at this moment is surely read before the same point writes at `write`."""
        if self.depth != write.depth:
            return self.depth < write.depth
        return self.walks == write.walks or not self.walks


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Moments at which buffers are loaded, by buffer and load, and at which stores happen."""

    loads: Mapping[str, Mapping[Load, tuple[Moment, ...]]]
    stores: Mapping[Store, Moment]

    def can_overwrite(self, read: str, store: Store) -> bool:
        """Tell if `store` may write the memory that loads of `read` read."""
        loads = self.loads.get(read)
        if not loads:
            return True
        if store.indirect or store.mode != "store":
            return False
        write = self.stores[store]
        return all(
            load.index[0] is store.index and all(moment.reads_before(write) for moment in moments)
            for load, moments in loads.items()
        )


def time_accesses(stores: Sequence[Store], conditions: Iterable[Scalar], reduced: Sequence[Expr]) -> Timing:
    """Find the moments of the loads and stores of a kernel, as code generators derive its passes.

    Args:
        stores: what the kernel stores.
        conditions: what its checks look at.
        reduced: its ranges of kind `reduction`.
    """
    checked = tuple(conditions)
    along = frozenset(reduced)
    depth: dict[Scalar, int] = {}
    walks: dict[Scalar, bool] = {}
    roots: list[tuple[tuple[Scalar, ...], Moment]] = []
    for node in iterate_postorder(
        (*(root for store in stores for root in list_store_roots(store)), *checked)
    ):
        below = max((depth[o] for o in node.operands), default=0)
        if isinstance(node, Reduce | Contraction | Scan | Sort):
            roots.append((node.operands, Moment(below, True)))
        depth[node] = below + 1 if isinstance(node, Reduce | Contraction) else below
        # what is reduced along sequential ranges still varies along the reduced ones
        row = isinstance(node, Reduce | Contraction) and along == frozenset(node.axes)
        walks[node] = not row and (_varies(node, along) or any(walks[o] for o in node.operands))
    moments: dict[Store, Moment] = {}
    for store in stores:
        parts = list_store_roots(store)
        moment = Moment(
            max(depth[p] for p in parts),
            any(walks[p] for p in parts) or not along.isdisjoint(store.index.free_symbols),
        )
        moments[store] = moment
        roots.append((parts, moment))
    roots += [((condition,), Moment(depth[condition], walks[condition])) for condition in checked]
    loads: dict[str, dict[Load, tuple[Moment, ...]]] = {}
    for operands, moment in roots:
        for load in _loads_above_reductions(operands):
            known = loads.setdefault(load.buffer, {})
            if moment not in known.get(load, ()):
                known[load] = (*known.get(load, ()), moment)
    return Timing(loads=loads, stores=moments)


def _varies(node: Scalar, ranges: Collection[Expr]) -> bool:
    match node:
        case Load():
            return any(s in ranges for index in node.index for s in index.free_symbols)
        case IndexValue():
            return any(s in ranges for s in node.expr.free_symbols)
        case Scan() | Sort():
            return True
        case _:
            return False


def _loads_above_reductions(roots: tuple[Scalar, ...]) -> list[Load]:
    seen: set[Scalar] = set()
    loads: list[Load] = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Load):
            loads.append(node)
        if not isinstance(node, Reduce | Contraction):
            stack.extend(node.operands)
    return loads


def check_aliasing(kernel: Kernel, args: Mapping[str, TensorArg], place: Place) -> None:
    """Check the pairs of `kernel.aliasing`.

    Raises:
        VerifyError: a pair breaks the rule `aliasing`.
    """
    if not kernel.aliasing:
        return
    check_pairs(kernel.aliasing, args, place)
    if find_contraction(list_kernel_roots(kernel)) is not None:
        # threads do not load, in the layout of a product's results, just the elements that they store
        place.fail("aliasing", "the kernel is a contraction")
    reduced = [r.symbol for r in kernel.ranges if r.kind == "reduction"]
    timing = time_accesses(kernel.stores, (check.condition for check in kernel.checks), reduced)
    for output, source in kernel.aliasing:
        for store in kernel.stores:
            if store.buffer == output and not timing.can_overwrite(source, store):
                place.fail("aliasing", f"{output} is stored before {source} is read, or over another element")


def check_pairs(pairs: Iterable[tuple[str, str]], args: Mapping[str, TensorArg], place: Place) -> None:
    """Check that each pair names an output and an input of the same size."""
    for output, source in pairs:
        first, second = args.get(output), args.get(source)
        if first is None or second is None or first.role != "out" or second.role != "in":
            place.fail("aliasing", f"{output} of {source}")
        if first.dtype.itemsize != second.dtype.itemsize:
            place.fail("aliasing", f"{output} is {first.dtype.text}, {source} is {second.dtype.text}")
        if first.span is not second.span:
            place.fail("aliasing", f"{output} spans {first.span!r} elements, {source} {second.span!r}")


# ---- Loads before stores ----


def find_overwritten_arguments(kernel: Kernel, store: Store) -> frozenset[str]:
    """Return the arguments that may be the memory which `store` writes."""
    return frozenset({store.buffer, *(source for out, source in kernel.aliasing if out == store.buffer)})


def can_load_ahead(kernel: Kernel, values: Iterable[Scalar], *, within: Collection[str] = ()) -> bool:
    """Tell if loads of later points find the same before and after the stores of earlier ones.

    An iteration has all points of the ranges called `within`, which it loads before it stores.
    """
    loads: dict[str, list[Load]] = {}
    for node in iterate_postorder(tuple(values)):
        if isinstance(node, Load):
            loads.setdefault(node.buffer, []).append(node)
    return all(
        _stores_what_it_loads(kernel, store, load, within)
        for store in kernel.stores
        for source in find_overwritten_arguments(kernel, store)
        for load in loads.get(source, ())
    )


def _stores_what_it_loads(kernel: Kernel, store: Store, load: Load, within: Collection[str]) -> bool:
    """Each point loads by `load` the element that it stores, and no other point does.

    A plain store whose place depends on all ranges writes no element twice.
    """
    ranges = {r.symbol for r in kernel.ranges if as_int(r.extent) != 1 and r.symbol.name not in within}
    direct = store.mode == "store" and not store.indirect and not load.indirect
    return direct and load.index[0] is store.index and ranges <= store.index.free_symbols
