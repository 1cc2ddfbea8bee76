"""Kernels in steps that do two rows at once, where rows in pairs read the same ones.

Rows that an enlarged image has between the same two of its origin,

    store %out0[64*x0 + x1] = load %in0[32*((x0 + 1) // 2) + x1 // 2]             x0 < 64

are not 2*x0 and 2*x0 + 1, but 2*x0 - 1 and 2*x0, of which the first pair and the last have one that is none:

    store %out0[128*x0 - 64 + x1] = load %in0[32*x0 + x1 // 2]  mask 2*x0 - 1 >= 0
    store %out0[128*x0 + x1] = load %in0[32*x0 + x1 // 2]       mask 2*x0 < 64    x0 < 33
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, provably_le, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.scalar import Const, Load, Scalar, const, index_value, load, op, rewrite
from coilwork_triton.facts.places import stores_at


def pair_rows(kernel: Kernel, loads: Callable[[Kernel], int], most: float) -> Kernel | None:
    """`kernel`, whose stores have no masks, with each two of its rows in one.

    None if that leaves more than the share `most` of its `loads`.
    """
    if len(kernel.ranges) < 2:
        return None
    row = kernel.ranges[-2].symbol
    count = None if row.extent is None else as_int(row.extent)
    if count is None or count < 2:
        return None
    pairs = [_paired(kernel, count, ahead) for ahead in (0, 1)]
    found = [(loads(pair), pair) for pair in pairs if pair is not None]
    least, best = min(found, key=lambda one: one[0], default=(0, None))
    return best if best is not None and least <= most * 2 * loads(kernel) else None


def _paired(kernel: Kernel, count: int, ahead: int) -> Kernel | None:
    """Rows 2*k - `ahead` and the next, of `count`; None if rows that are none could not be told from others
    by their numbers.
    """
    if not ahead and count % 2:
        return None
    place = len(kernel.ranges) - 2
    row = kernel.ranges[place]
    pair = symbol(row.symbol.name, extent=(count + ahead + 1) // 2)
    stores: list[Store] = []
    for at in (pair * 2 - ahead, pair * 2 - ahead + 1):
        inside = _inside(at, count)
        moved = stores_at(kernel.stores, {row.symbol: at})
        # what stores share is looked at once
        values = rewrite([store.value for store in moved], partial(_guarded, kernel, inside))
        stores += [
            replace(store, value=value, mask=inside) for store, value in zip(moved, values, strict=True)
        ]
    ranges = (*kernel.ranges[:place], replace(row, symbol=pair), *kernel.ranges[place + 1 :])
    return replace(kernel, ranges=ranges, stores=tuple(stores))


def _inside(at: Expr, count: int) -> Scalar | None:
    """`at` is the number of one of `count` rows; None if it always is."""
    if not provably_le(as_expr(0), at):
        return op("ge", index_value(at), const(0, DType.I64))
    return None if provably_le(at + 1, as_expr(count)) else op("lt", index_value(at), const(count, DType.I64))


def _guarded(kernel: Kernel, inside: Scalar | None, node: Scalar) -> Scalar:
    """`node`; if it is a load that may leave its tensor where a row is none, only where it is one."""
    if inside is None or not isinstance(node, Load) or isinstance(node.mask, Const):
        return node
    span = next((a.span for a in kernel.args if a.name == node.buffer), as_expr(0))
    at = node.index[0]
    if not node.indirect and provably_le(as_expr(0), at) and provably_le(at + 1, span):
        return node
    mask = inside if node.mask is None else op("bitwise_and", inside, node.mask)
    other = 0 if node.mask is None else node.other
    return load(node.buffer, node.index, node.dtype, indirect=node.indirect, mask=mask, other=other)
