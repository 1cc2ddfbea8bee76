"""Kernels that store windows which slide along rows, with all elements of a window at one point.

Element k of the window at x1 is what element k - 1 of the next window is,

    store %out0[256*x0 + x1] = load %in0[x1 + x0]        x0 < 3, x1 < 256

and where a point stores all of them, and those of its neighbours, most are loaded already:

    store %out0[x1] = load %in0[x1]
    store %out0[x1 + 256] = load %in0[x1 + 1]
    store %out0[x1 + 512] = load %in0[x1 + 2]            x1 < 256
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coilwork_ir.index import Expr, as_expr, as_int, stride_of
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Load
from coilwork_triton.facts.places import stores_at


def unroll_windows(kernel: Kernel, loads: Sequence[Load], longest: int) -> Kernel | None:
    """`kernel` without the range along which `loads` slide as they do along its innermost range; None if
    there is none.

    Its stores have no masks. Of a window of more than `longest` points a thread has more to store than
    registers.
    """
    inner = kernel.ranges[-1].symbol
    for place, r in enumerate(kernel.ranges[:-1]):
        length = None if r.symbol.extent is None else as_int(r.symbol.extent)
        if length is None or not 1 < length <= longest or not _slides(loads, r.symbol, inner):
            continue
        stores = tuple(
            store for k in range(length) for store in stores_at(kernel.stores, {r.symbol: as_expr(k)})
        )
        ranges = (*kernel.ranges[:place], *kernel.ranges[place + 1 :])
        return replace(kernel, ranges=ranges, stores=stores)
    return None


def _slides(loads: Sequence[Load], along: Expr, inner: Expr) -> bool:
    """Tell if some of `loads` vary along `along`, and by as much as along `inner`."""
    varying = [load for load in loads if along in load.index[0].free_symbols]
    steps = [(stride_of(load.index[0], along), stride_of(load.index[0], inner)) for load in varying]
    return bool(steps) and all(a is not None and a is b for a, b in steps)
