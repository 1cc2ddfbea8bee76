"""A kernel over other size symbols: the same kernel where sizes are known to be multiples, say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coilwork_ir.index import Expr, substitute, symbol
from coilwork_ir.kernels.nodes import Kernel, Store
from coilwork_ir.scalar import Scalar, substitute_ranges


def with_sizes(kernel: Kernel, values: Mapping[Expr, Expr], sizes: tuple[Expr, ...]) -> Kernel:
    """`kernel`, which is no combined one, over `sizes`, in terms of which `values` are its own. Ranges keep
    their names.
    """
    mapping = dict(values)
    ranges = []
    for entry in kernel.ranges:
        if entry.symbol.extent is not None:
            extent = substitute(entry.symbol.extent, values)
            renewed = symbol(entry.symbol.name, extent=extent)
            mapping[entry.symbol] = renewed
            entry = replace(entry, symbol=renewed)
        ranges.append(entry)
    roots = [root for store in kernel.stores for root in _roots(store)]
    roots += [check.condition for check in kernel.checks]
    rest = iter(substitute_ranges(roots, mapping))
    stores = []
    for store in kernel.stores:
        indirect = tuple(next(rest) for _ in store.indirect)
        value = next(rest)
        mask = None if store.mask is None else next(rest)
        index = substitute(store.index, mapping)
        stores.append(replace(store, index=index, indirect=indirect, value=value, mask=mask))
    return replace(
        kernel,
        ranges=tuple(ranges),
        args=tuple(replace(arg, span=substitute(arg.span, values)) for arg in kernel.args),
        sizes=sizes,
        stores=tuple(stores),
        checks=tuple(replace(check, condition=next(rest)) for check in kernel.checks),
    )


def _roots(store: Store) -> tuple[Scalar, ...]:
    return (*store.indirect, store.value, *(() if store.mask is None else (store.mask,)))
