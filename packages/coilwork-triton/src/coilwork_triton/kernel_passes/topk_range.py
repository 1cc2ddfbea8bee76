"""Kernels that keep the first elements of sorted rows: these elements get a range of their own.

A sort gives a whole row, and a store of its first elements is masked:

    store %out[64*x0 + r0] = sort(...)[r0] mask r0 < 64

Where every use of a kernel's sorts is of that kind, r0 becomes another range there, of 64 points. The sort
then need not order the rest of the row, and what follows it is computed for 64 points instead of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, substitute, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.rewrite import list_store_roots
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Op,
    Reduce,
    Scalar,
    Scan,
    Sort,
    index_value,
    iterate_postorder,
    load,
    replace_operands,
)
from coilwork_triton.launch.parameters import round_up_to_power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKRange:
    """A kernel over one more range, `index`, of the first elements of rows along `axis`."""

    kernel: Kernel
    axis: Expr
    index: Expr


def split_topk_range(kernel: Kernel) -> TopKRange | None:
    """`kernel` with a range for the first elements of its rows, if these are all that it uses of
    its sorts.
    """
    sorts = {
        v.axis
        for s in kernel.stores
        for root in list_store_roots(s)
        for v in iterate_postorder((root,))
        if isinstance(v, Sort)
    }
    if len(sorts) != 1 or any(_has_sort((check.condition,)) for check in kernel.checks):
        return None
    (axis,) = sorts
    using = [store for store in kernel.stores if _has_sort(list_store_roots(store))]
    counts = {_count_kept_points(store, axis) for store in using}
    if len(counts) != 1:
        return None
    count, length = counts.pop(), as_int(axis.extent) if axis.extent is not None else None
    if (
        count is None
        or length is None
        or 2 * round_up_to_power_of_two(count) > round_up_to_power_of_two(length)
    ):
        # to sort half of a row is as much work as all of it
        return None
    index = symbol("c0", extent=count)
    stores = tuple(_move_store(store, axis, index) if store in using else store for store in kernel.stores)
    if any(store is None for store in stores):
        return None
    return TopKRange(
        kernel=replace(kernel, stores=tuple(s for s in stores if s is not None)), axis=axis, index=index
    )


def find_topk_symbol(kernel: Kernel) -> Expr | None:
    """Return the range of the first elements of sorted rows that `kernel` was rewritten to; None if it has
    none.
    """
    known = {*(r.symbol for r in kernel.ranges), *kernel.sizes}
    found = {s for store in kernel.stores for s in store.index.free_symbols if not s.name.startswith("@")}
    return next(iter(found - known), None)


def compute_topk_block(topk: Expr) -> int:
    """Return how many first elements of sorted rows the range `topk` stands for, rounded up to a power of
    two.

    Raises:
        EmitError: nothing says how many.
    """
    count = None if topk.extent is None else as_int(topk.extent)
    if count is None:
        raise EmitError("range-extent", f"range {topk.name} has no known extent")
    return round_up_to_power_of_two(count)


def _has_sort(roots: tuple[Scalar, ...]) -> bool:
    return any(isinstance(value, Sort) for value in iterate_postorder(roots))


def _count_kept_points(store: Store, axis: Expr) -> int | None:
    """Return how many first points along `axis` the store's mask keeps; None if it is another mask."""
    match store.mask:
        case Op(op="lt", operands=(IndexValue(expr=position), IndexValue(expr=end))) if position is axis:
            return as_int(end) if store.mode == "store" else None
        case _:
            return None


def _move_store(store: Store, axis: Expr, index: Expr) -> Store | None:
    """`store` along `index` instead of `axis`; None if it combines what was sorted."""
    mapping = {axis: index}
    done: dict[Scalar, Scalar] = {}

    def move(node: Scalar) -> Scalar | None:
        if isinstance(node, Sort):
            return node
        if isinstance(node, Reduce | Scan):
            return node if isinstance(node, Reduce) and not _has_sort(node.operands) else None
        if node not in done:
            operands = [move(operand) for operand in node.operands]
            kept = [operand for operand in operands if operand is not None]
            if len(kept) < len(operands):
                return None
            found = replace_operands(node, kept)
            match found:
                case IndexValue():
                    found = index_value(substitute(found.expr, mapping), found.operands)
                case Load():
                    places = [substitute(e, mapping) for e in found.index]
                    found = load(
                        found.buffer,
                        places,
                        found.dtype,
                        indirect=found.indirect,
                        mask=found.mask,
                        other=found.other,
                    )
                case _:
                    pass
            done[node] = found
        return done[node]

    values = [move(root) for root in (store.value, *store.indirect)]
    kept = [value for value in values if value is not None]
    if len(kept) < len(values):
        return None
    return replace(
        store, index=substitute(store.index, mapping), value=kept[0], indirect=tuple(kept[1:]), mask=None
    )
