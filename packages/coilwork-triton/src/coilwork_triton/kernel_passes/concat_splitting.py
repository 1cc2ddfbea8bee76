"""Kernels over one of a few equal parts of a range: a point computes what all of the parts have at its place.

Gradients of halves that were cut from one tensor are joined again, and each reads what the other reads:

    store %out0[x0] = where(x0 < 256, f(%in0[x0], %in1[x0]), g(%in0[x0 - 256], %in1[x0 - 256]))      x0 < 512

becomes

    store %out0[x0] = f(%in0[x0], %in1[x0])                                                          x0 < 256
    store %out0[x0 + 256] = g(%in0[x0], %in1[x0])

What both read is read once, and neither is computed where it is not wanted. Where the parts of other tensors
are copied, or the same is computed of all, there is nothing to gain: one load through a selected pointer does
(`coilwork_triton.facts.joined`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr, as_int, stride_of, symbol
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import Load, Op, Scalar, find_even_parts, postorder
from coilwork_triton.facts.places import are_plain, stores_at

_WIDE: Final = 16
_CHOOSING: Final = frozenset({"where", "lt", "le", "gt", "ge", "bitwise_and"})


def split_concat(kernel: Kernel, grids: Grids) -> Kernel | None:
    """`kernel` over one part of the range that is cut into equal parts; None if there is none, or nothing to
    gain.
    """
    if not are_plain(kernel.stores) or kernel.checks or any(r.kind != "parallel" for r in kernel.ranges):
        return None
    found = find_even_parts([store.value for store in kernel.stores], [r.symbol for r in kernel.ranges])
    if found is None:
        return None
    whole, count = found
    extent = None if whole.extent is None else as_int(whole.extent)
    assert extent is not None
    length = extent // count
    inner = whole is kernel.ranges[-1].symbol
    if inner and not all(_stays_wide(store, whole, length, grids) for store in kernel.stores):
        return None
    part = symbol(whole.name, extent=length)
    each = [stores_at(kernel.stores, {whole: part + number * length}) for number in range(count)]
    if not _gains(kernel, each, part):
        return None
    return replace(
        kernel,
        ranges=tuple(replace(r, symbol=part) if r.symbol is whole else r for r in kernel.ranges),
        stores=tuple(store for stores in zip(*each, strict=True) for store in stores),
    )


def _stays_wide(store: Store, inner: Expr, length: int, grids: Grids) -> bool:
    size = store.value.dtype.itemsize
    step = stride_of(store.index, inner)
    return (
        step is not None
        and as_int(step) == 1
        and length * size >= grids.part_bytes
        and length * size % _WIDE == 0
    )


def _gains(kernel: Kernel, each: list[tuple[Store, ...]], part: Expr) -> bool:
    """Tell whether parts read some element alike that varies along them, or compute less than all points of
    the whole range do.
    """
    orders = [_order(stores) for stores in each]
    reads = [
        {v for v in order if isinstance(v, Load) and part in v.index[0].free_symbols} for order in orders
    ]
    alike = len(frozenset().union(*reads)) < sum(map(len, reads))
    return alike or all(_work(order) < _work(_order(kernel.stores)) for order in orders)


def _order(stores: Sequence[Store]) -> tuple[Scalar, ...]:
    return tuple(postorder([store.value for store in stores]))


def _work(order: Sequence[Scalar]) -> int:
    """Operations beside those that choose a part."""
    return sum(isinstance(v, Op) and v.op not in _CHOOSING for v in order)
