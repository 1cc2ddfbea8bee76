"""Stores over memory that the same kernel loads: whether a loop may load what later iterations need before it
stores.

Loads ahead are of points that come later in the loop. They find what they should unless an earlier iteration
is about to change it. It changes nothing of the kind where each element is loaded by the very point that
stores it: points that differ along the loop then have elements that differ, and other programs have others
still.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coilwork_ir.index import as_int
from coilwork_ir.kernels.nodes import Kernel, Store
from coilwork_ir.scalar import Load, Scalar, postorder


def overwritten(kernel: Kernel, store: Store) -> frozenset[str]:
    """The arguments that may be the memory which `store` writes."""
    return frozenset({store.buffer, *(source for out, source in kernel.aliasing if out == store.buffer)})


def loads_ahead(kernel: Kernel, values: Iterable[Scalar], *, within: Collection[str] = ()) -> bool:
    """True if loads of later points find the same before and after the stores of earlier ones.

    An iteration has all points of the ranges called `within`, which it loads before it stores.
    """
    loads: dict[str, list[Load]] = {}
    for node in postorder(tuple(values)):
        if isinstance(node, Load):
            loads.setdefault(node.buffer, []).append(node)
    return all(
        _its_own(kernel, store, load, within)
        for store in kernel.stores
        for source in overwritten(kernel, store)
        for load in loads.get(source, ())
    )


def _its_own(kernel: Kernel, store: Store, load: Load, within: Collection[str]) -> bool:
    """Each point loads by `load` the element that it stores, and no other point does.

    A plain store whose place depends on all ranges writes no element twice.
    """
    ranges = {r.symbol for r in kernel.ranges if as_int(r.extent) != 1 and r.symbol.name not in within}
    direct = store.mode == "store" and not store.indirect and not load.indirect
    return direct and load.index[0] is store.index and ranges <= store.index.free_symbols
