"""Of what kind a kernel is: kernels of one kind differ in their tensors and in how many elements these have.

The kind of a kernel is the kernel with a size symbol for its extent, if it has one range of known extent.
Extents that are multiples of 16 are of another kind than those that are not, and the symbol counts sixteens:
where accesses can be 16 bytes wide they stay so. Kernels over several ranges have their extents in their
indices too; these are of one kind if they are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import as_expr, as_int, substitute, symbol
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.scalar import Scalar, substitute_ranges
from coilwork_scheduler.kernels.canonical import structure

_UNIT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a kernel has in common with others.

    Attributes:
        text: equal for kernels of one kind.
        extent: how many units the range has that another kernel of the kind may have more or fewer of; None
            if all are alike in that.
    """

    text: str
    extent: int | None


def kind_of(kernel: Kernel) -> Kind | None:
    """The kind of `kernel`, if it can share a launch: it does nothing but store a value per point."""
    if not kernel.stores or kernel.checks or kernel.combined is not None or kernel.core is not None:
        return None
    if any(r.kind != "parallel" for r in kernel.ranges) or any(s.mode != "store" for s in kernel.stores):
        return None
    if any(as_int(r.extent) == 0 for r in kernel.ranges):
        return None
    free = _free_range(kernel)
    if free is None:
        return Kind(text=structure(kernel), extent=None)
    extent = as_int(free.extent) or 0
    unit = _UNIT if extent % _UNIT == 0 else 1
    return Kind(text=structure(general(kernel, least=1, most=None)), extent=extent // unit)


def general(kernel: Kernel, *, least: int, most: int | None) -> Kernel:
    """`kernel` with a size symbol, its last, for the extent of its one range.

    Its values lie between `least` and `most`, in units of the kind; `most` is None if they have no bound.

    Raises:
        ValueError: it has no such range.
    """
    free = _free_range(kernel)
    if free is None:
        raise ValueError(f"kernel {kernel.name} has no range of its own extent")
    size = symbol(f"n{len(kernel.sizes)}", lo=least, hi=most)
    whole = as_int(free.extent) or 0
    count = size * (_UNIT if whole % _UNIT == 0 else 1)
    position = symbol(free.symbol.name, extent=count)
    mapping = {free.symbol: position}
    roots = substitute_ranges([root for store in kernel.stores for root in _roots(store)], mapping)
    rest = iter(roots)
    stores = tuple(
        _with_roots(
            replace(store, index=substitute(store.index, mapping)), [next(rest) for _ in _roots(store)]
        )
        for store in kernel.stores
    )
    return replace(
        kernel,
        ranges=tuple(replace(r, symbol=position) if r is free else r for r in kernel.ranges),
        args=tuple(replace(a, span=count) if a.span is as_expr(whole) else a for a in kernel.args),
        sizes=(*kernel.sizes, size),
        stores=stores,
    )


def _free_range(kernel: Kernel) -> Range | None:
    """The one range with several points, if their number is known."""
    real = [r for r in kernel.ranges if as_int(r.extent) != 1]
    return real[0] if len(real) == 1 and as_int(real[0].extent) is not None else None


def _roots(store: Store) -> tuple[Scalar, ...]:
    return (store.value, *store.indirect, *(() if store.mask is None else (store.mask,)))


def _with_roots(store: Store, roots: list[Scalar]) -> Store:
    last = None if store.mask is None else roots[-1]
    return replace(store, value=roots[0], indirect=tuple(roots[1 : 1 + len(store.indirect)]), mask=last)
