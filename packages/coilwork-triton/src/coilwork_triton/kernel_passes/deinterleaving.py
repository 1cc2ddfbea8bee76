"""Kernels that deal neighbours out to places far apart, as the pixels of a block to images of their own,
point by point of what they read.

    store %out0[64*x0 + x1] = load %in0[2*x1 + x0]          x0 < 2, x1 < 64

reads every other element along its rows, once for each x0. With all of the neighbours in one point,

    store %out0[x1] = load %in0[2*x1]                       x1 < 64
    store %out0[64 + x1] = load %in0[2*x1 + 1]

what is read lies together, and in steps (`coilwork_triton.kernel_passes.thread_coarsening`) both are 16 bytes
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, stride_of
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.scalar import Load, postorder
from coilwork_triton.facts.places import are_plain, stores_at

# So many results of a point stay in registers, and as many neighbours are whole parts of 16 bytes.
_COUNTS: Final = (2, 4)


def deinterleave(kernel: Kernel) -> Kernel | None:
    """`kernel`, in lines, over points that read a few neighbours and store each to a place of its own; None
    if it does nothing of the kind.
    """
    if not are_plain(kernel.stores) or kernel.checks or any(r.kind != "parallel" for r in kernel.ranges):
        return None
    loads = [v for v in postorder([store.value for store in kernel.stores]) if isinstance(v, Load)]
    if any(load.operands for load in loads):
        return None
    for dealt in kernel.ranges:
        count = 0 if dealt.symbol.extent is None else as_int(dealt.symbol.extent)
        if count in _COUNTS:
            for inner in kernel.ranges:
                if inner is not dealt and _are_dealt(kernel.stores, loads, dealt.symbol, inner.symbol, count):
                    return _dealt(kernel, dealt, inner, count)
    return None


def _are_dealt(stores: Sequence[Store], loads: Sequence[Load], dealt: Expr, inner: Expr, count: int) -> bool:
    """Tell if neighbours along `dealt` are neighbours where they are read, and neighbours along `inner` where
    they are stored.
    """
    varying = [load for load in loads if not load.index[0].free_symbols.isdisjoint((dealt, inner))]
    read = all(_step(load.index[0], dealt) == 1 and _step(load.index[0], inner) == count for load in varying)
    return bool(varying) and read and all(_step(store.index, inner) == 1 for store in stores)


def _step(index: Expr, along: Expr) -> int | None:
    step = stride_of(index, along)
    return None if step is None else as_int(step)


def _dealt(kernel: Kernel, dealt: Range, inner: Range, count: int) -> Kernel:
    each = [stores_at(kernel.stores, {dealt.symbol: as_expr(number)}) for number in range(count)]
    outer = [r for r in kernel.ranges if r not in (dealt, inner)]
    outer.sort(key=lambda r: -(_step(kernel.stores[0].index, r.symbol) or 0))
    return replace(
        kernel,
        ranges=(*outer, inner),
        stores=tuple(store for stores in zip(*each, strict=True) for store in stores),
    )
