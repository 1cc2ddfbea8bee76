"""Unroll a short range: one point computes what all points of the range did, and shares their reads.

`split_concat` unrolls the parts of a concatenation. Gradients of halves that were cut from one tensor are
joined again, and each reads what the other reads:

    store %out0[x0] = where(x0 < 256, f(%in0[x0], %in1[x0]), g(%in0[x0 - 256], %in1[x0 - 256]))      x0 < 512

becomes

    store %out0[x0] = f(%in0[x0], %in1[x0])                                                          x0 < 256
    store %out0[x0 + 256] = g(%in0[x0], %in1[x0])

`deinterleave` unrolls neighbours that are stored far apart, as the pixels of a block to images of their own:

    store %out0[64*x0 + x1] = load %in0[2*x1 + x0]          x0 < 2, x1 < 64

reads every other element along its rows, once for each x0, and becomes

    store %out0[x1] = load %in0[2*x1]                       x1 < 64
    store %out0[64 + x1] = load %in0[2*x1 + 1]

What is read then lies together, and both are 16 bytes at a time once threads are coarsened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, find_stride, provably_le, substitute, symbol
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.machine.model import Grids
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    const,
    find_even_parts,
    iterate_postorder,
    load,
    rewrite,
    substitute_ranges,
)

# Concatenations


_WIDE: Final = 16
_CHOOSING: Final = frozenset({"where", "lt", "le", "gt", "ge", "bitwise_and"})


def split_concat(kernel: Kernel, grids: Grids) -> Kernel | None:
    """`kernel` over one part of the range that is cut into equal parts; None if there is none, or nothing to
    gain.
    """
    if (
        not are_plain_stores(kernel.stores)
        or kernel.checks
        or any(r.kind != "parallel" for r in kernel.ranges)
    ):
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
    each = [specialize_stores(kernel.stores, {whole: part + number * length}) for number in range(count)]
    if not _gains(kernel, each, part):
        return None
    return replace(
        kernel,
        ranges=tuple(replace(r, symbol=part) if r.symbol is whole else r for r in kernel.ranges),
        stores=tuple(store for stores in zip(*each, strict=True) for store in stores),
    )


def _stays_wide(store: Store, inner: Expr, length: int, grids: Grids) -> bool:
    size = store.value.dtype.itemsize
    step = find_stride(store.index, inner)
    return (
        step is not None
        and as_int(step) == 1
        and length * size >= grids.part_bytes
        and length * size % _WIDE == 0
    )


def _gains(kernel: Kernel, parts: list[tuple[Store, ...]], part: Expr) -> bool:
    """Tell if parts read the same elements along them, or compute less than the points of the whole range."""
    orders = [_order(stores) for stores in parts]
    reads = [
        {v for v in order if isinstance(v, Load) and part in v.index[0].free_symbols} for order in orders
    ]
    alike = len(frozenset().union(*reads)) < sum(map(len, reads))
    return alike or all(_work(order) < _work(_order(kernel.stores)) for order in orders)


def _order(stores: Sequence[Store]) -> tuple[Scalar, ...]:
    return tuple(iterate_postorder([store.value for store in stores]))


def _work(order: Sequence[Scalar]) -> int:
    """Operations beside those that choose a part."""
    return sum(isinstance(v, Op) and v.op not in _CHOOSING for v in order)


# Deinterleaving


# So many results of a point stay in registers, and as many neighbours are whole parts of 16 bytes.
_COUNTS: Final = (2, 4)


def deinterleave(kernel: Kernel) -> Kernel | None:
    """`kernel`, in lines, over points that read a few neighbours and store each to a place of its own; None
    if it does nothing of the kind.
    """
    if (
        not are_plain_stores(kernel.stores)
        or kernel.checks
        or any(r.kind != "parallel" for r in kernel.ranges)
    ):
        return None
    loads = [v for v in iterate_postorder([store.value for store in kernel.stores]) if isinstance(v, Load)]
    if any(one.operands for one in loads):
        return None
    for dealt in kernel.ranges:
        count = 0 if dealt.symbol.extent is None else as_int(dealt.symbol.extent)
        if count in _COUNTS:
            for inner in kernel.ranges:
                if inner is not dealt and _is_deinterleaving(
                    kernel.stores, loads, dealt.symbol, inner.symbol, count
                ):
                    return _unroll_range(kernel, dealt, inner, count)
    return None


def _is_deinterleaving(
    stores: Sequence[Store], loads: Sequence[Load], dealt: Expr, inner: Expr, count: int
) -> bool:
    """Tell if neighbours along `dealt` are read from neighbouring places, and stored along `inner`."""
    varying = [one for one in loads if not one.index[0].free_symbols.isdisjoint((dealt, inner))]
    read = all(_step(one.index[0], dealt) == 1 and _step(one.index[0], inner) == count for one in varying)
    return bool(varying) and read and all(_step(store.index, inner) == 1 for store in stores)


def _step(index: Expr, along: Expr) -> int | None:
    step = find_stride(index, along)
    return None if step is None else as_int(step)


def _unroll_range(kernel: Kernel, dealt: Range, inner: Range, count: int) -> Kernel:
    each = [specialize_stores(kernel.stores, {dealt.symbol: as_expr(number)}) for number in range(count)]
    outer = [r for r in kernel.ranges if r not in (dealt, inner)]
    outer.sort(key=lambda r: -(_step(kernel.stores[0].index, r.symbol) or 0))
    return replace(
        kernel,
        ranges=(*outer, inner),
        stores=tuple(store for stores in zip(*each, strict=True) for store in stores),
    )


# Stores at known indices


# Integers that f32 holds.
_WHOLE: Final = 1 << 24


def are_plain_stores(stores: Sequence[Store]) -> bool:
    """Tell if `stores` write every point, without masks, at offsets that do not depend on data."""
    return all(store.mode == "store" and not store.indirect and store.mask is None for store in stores)


def specialize_stores(stores: Sequence[Store], places: Mapping[Expr, Expr]) -> tuple[Store, ...]:
    """`stores`, which are direct ones, at `places` of their ranges, with what is decided there."""
    roots = [
        root for store in stores for root in (store.value, *(() if store.mask is None else (store.mask,)))
    ]
    moved = iter(rewrite(substitute_ranges(roots, places), _fold_known))
    return tuple(
        replace(
            store,
            index=substitute(store.index, places),
            value=next(moved),
            mask=None if store.mask is None else next(moved),
        )
        for store in stores
    )


def _fold_known(node: Scalar) -> Scalar:
    """`node`, or the constant or operand that it is known to be now that a point's place in its step is
    known.
    """
    match node:
        case Op(op="cast", operands=(IndexValue(operands=(), expr=expr),)) if node.dtype is DType.F32:
            exact = as_int(expr)
            return node if exact is None or abs(exact) > _WHOLE else const(float(exact), DType.F32)
        case Op(op="mul", operands=(Const() as left, Const() as right)) if node.dtype is DType.F32:
            product = float(left.value) * float(right.value)
            return const(product, DType.F32) if _are_short(left, right) else node
        case Op(op="lt" | "ge" | "le" | "gt", operands=(IndexValue(operands=()), _)):
            return _fold_comparison(node)
        case Op(op="eq", operands=(IndexValue(operands=(), expr=expr), Const(value=int() as wanted))):
            exact = as_int(expr)
            return node if exact is None else const(exact == wanted, DType.BOOL)
        case Op(
            op="bitwise_and", operands=(Const(value=False) as never, _) | (_, Const(value=False) as never)
        ):
            return never
        case Op(op="bitwise_and", operands=(Const(value=True), other)) if node.dtype is DType.BOOL:
            return other
        case Op(op="bitwise_and", operands=(other, Const(value=True))) if node.dtype is DType.BOOL:
            return other
        case Op(op="where", operands=(Const(value=chosen), then, otherwise)):
            return then if chosen else otherwise
        case Load(mask=Const(value=False)):
            return const(node.other, node.dtype)
        case Load(mask=Const(value=True)):
            return load(node.buffer, node.index, node.dtype, indirect=node.indirect)
        case _:
            return node


def _are_short(*values: Const) -> bool:
    """The product of the two `values` is exact in f32: each is a number of 256ths below 16."""
    return all(abs(v.value) < 16 and (float(v.value) * 256).is_integer() for v in values)


def _fold_comparison(node: Op) -> Scalar:
    at, end = node.operands
    assert isinstance(at, IndexValue)
    if isinstance(end, IndexValue) and not end.operands:
        limit = end.expr
    elif isinstance(end, Const) and end.dtype.is_integer:
        limit = as_expr(int(end.value))
    else:
        return node
    lower, upper = {"lt": (at.expr, limit - 1), "le": (at.expr, limit), "ge": (limit, at.expr)}.get(
        node.op, (limit + 1, at.expr)
    )
    if provably_le(lower, upper):
        return const(True, DType.BOOL)
    return const(False, DType.BOOL) if provably_le(upper + 1, lower) else node
