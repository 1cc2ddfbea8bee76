"""Sums of products: conversions that change nothing are left out, and a few rows are added up together.

A product of few rows and a weight in fewer bits reads and widens an element of the weight for each row:

    store %out0[512*x0 + x1] = sum over r0 of x[x0, r0] * cast(f32, weight[x1, r0])        x0 < 4

becomes four sums that share what they read, with four times as many operations for each element widened:

    store %out0[x1]        = sum over r0 of x[0, r0] * cast(f32, weight[x1, r0])
    store %out0[x1 + 512]  = sum over r0 of x[1, r0] * cast(f32, weight[x1, r0])
    ...

Each sum keeps its order, so its bits are those of the row alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr, as_int, substitute, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.rewrite import list_kernel_roots, replace_roots
from coilwork_ir.scalar import (
    Op,
    Reduce,
    Scalar,
    find_index_symbols,
    iterate_postorder,
    join_conversions,
    list_loads,
    rewrite,
    substitute_ranges,
)

# Rows that are added up together: their sums, in as many lanes as those of one, leave half of the registers
# for what is read.
_ROWS: Final = 4


def join_casts(kernel: Kernel) -> Kernel:
    """`kernel` without conversions to types that hold all numbers of what is converted again."""
    return replace_roots(kernel, rewrite(list_kernel_roots(kernel), _join_cast))


def _join_cast(node: Scalar) -> Scalar:
    return join_conversions(node) if isinstance(node, Op) and node.op == "cast" else node


def share_factors(kernel: Kernel) -> Kernel:
    """`kernel` with up to `_ROWS` points of a range at a time, if all its sums of products compute a factor
    that does not depend on them.
    """
    if (
        kernel.aliasing
        or kernel.checks
        or any(s.mode != "store" or s.indirect or s.mask is not None for s in kernel.stores)
    ):
        return kernel
    sums = [node for node in iterate_postorder(list_kernel_roots(kernel)) if isinstance(node, Reduce)]
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    for whole in parallel:
        others = frozenset(parallel) - {whole}
        extent = None if whole.extent is None else as_int(whole.extent)
        count = 0 if extent is None else _find_count(extent)
        if count > 1 and sums and all(_shares_work(node, whole, others) for node in sums):
            assert extent is not None
            return _unroll(kernel, whole, extent, count)
    return kernel


def _find_count(extent: int) -> int:
    """Return the most points up to `_ROWS` that the range has a whole number of times."""
    return max(count for count in range(1, _ROWS + 1) if extent % count == 0)


def _shares_work(node: Reduce, along: Expr, others: frozenset[Expr]) -> bool:
    """Tell if `node` sums products of which one factor alone varies along `along`, and the other one is
    computed from what varies along `others`.
    """
    product = node.operands[0]
    if node.kind != "sum" or len(node.operands) != 1 or not isinstance(product, Op) or product.op != "mul":
        return False
    varying, shared = sorted(product.operands, key=lambda factor: along not in find_index_symbols((factor,)))
    seen, kept = find_index_symbols((varying,)), find_index_symbols((shared,))
    is_read = bool(list_loads((shared,))) and not others.isdisjoint(kept)
    return isinstance(shared, Op) and is_read and along in seen and along not in kept


def _unroll(kernel: Kernel, whole: Expr, extent: int, count: int) -> Kernel:
    part = symbol(whole.name, extent=extent // count)
    stores: list[Store] = []
    for number in range(count):
        here = {whole: part * count + number}
        values = substitute_ranges([store.value for store in kernel.stores], here)
        stores += [
            replace(store, index=substitute(store.index, here), value=value)
            for store, value in zip(kernel.stores, values, strict=True)
        ]
    ranges = tuple(replace(r, symbol=part) if r.symbol is whole else r for r in kernel.ranges)
    return replace(kernel, ranges=ranges, stores=tuple(stores))
