"""Analyse a draft kernel: its accesses to memory, outputs that may alias inputs, and contractions.

Tiling orders ranges by the accesses. Aliasing pairs let a call write an output over an input. A draft that is
one contraction, or several of a common factor, becomes a kernel for matrix units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coilwork_ir.buffers import Buffer
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.index import Expr, find_run_stride, get_extent
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.alias_analysis import Timing, time_accesses
from coilwork_ir.kernels.nodes import Store
from coilwork_ir.kernels.rewrite import list_kernel_roots, list_store_roots, replace_roots
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Reduce,
    Scalar,
    const,
    find_index_symbols,
    iterate_postorder,
    placeholder,
    rewrite,
)
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.sum_of_products import contractions_in
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.kernels.compose import Draft

# ---- Accesses ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One distinct load or store.

    Attributes:
        buffer: what is touched.
        index: flat offset, in elements.
        strides: likely step of `index` per range, in elements; 0 where it does not vary, -1 where it is not
            affine, as where only a position that is looked up varies.
        touched_bytes: likely bytes touched: points of the ranges that vary, times the element size.
        store: it writes.
    """

    buffer: str
    index: Expr
    strides: Mapping[Expr, int]
    touched_bytes: int
    store: bool


def find_unit_strides(offset: Expr) -> frozenset[Expr]:
    """Return the range symbols along which the flat `offset` moves by one element."""
    found = []
    for symbol in offset.free_symbols:
        step = find_run_stride(offset, symbol) if symbol.extent is not None else None
        if step is not None and step.is_const and step.value == 1:
            found.append(symbol)
    return frozenset(found)


def find_nearest(offset: Expr, most: int) -> frozenset[Expr]:
    """Return the range symbols along which the flat `offset` moves by the fewest elements, up to `most` of
    them.
    """
    steps: dict[Expr, int] = {}
    for symbol in offset.free_symbols:
        step = find_run_stride(offset, symbol) if symbol.extent is not None else None
        if step is not None and step.is_const and 0 < step.value <= most:
            steps[symbol] = step.value
    least = min(steps.values(), default=0)
    return frozenset(symbol for symbol, step in steps.items() if step == least)


def list_scalars(draft: Draft) -> tuple[Scalar, ...]:
    """Return every scalar graph of `draft`, stores first, in order."""
    values: list[Scalar] = []
    for store in draft.stores:
        values.extend(list_store_roots(store))
    values.extend(check.condition for check in draft.checks)
    return tuple(values)


def find_accesses(draft: Draft, buffers: Mapping[str, Buffer], sizes: SizeHints) -> tuple[Access, ...]:
    """Distinct loads and stores, largest first, stores before loads of the same size."""
    ranges = (*draft.parallel, *draft.sequential, *draft.reduced)
    found: dict[tuple[str, Expr, bool, frozenset[Expr]], Access] = {}
    touches: list[tuple[str, Expr, bool, Sequence[Scalar]]] = [
        (store.buffer, store.index, True, store.indirect) for store in draft.stores
    ]
    touches += [
        (node.buffer, node.index[0], False, node.indirect)
        for node in iterate_postorder(list_scalars(draft))
        if isinstance(node, Load)
    ]
    for name, index, store, indirect in touches:
        looked_up = find_index_symbols(indirect).intersection(ranges) if indirect else frozenset()
        key = (name, index, store, looked_up)
        if key not in found:
            found[key] = _access(name, index, store, looked_up, ranges, buffers[name].dtype.itemsize, sizes)
    return tuple(sorted(found.values(), key=lambda a: (-a.touched_bytes, not a.store)))


def _access(
    name: str,
    index: Expr,
    store: bool,
    looked_up: frozenset[Expr],
    ranges: Sequence[Expr],
    itemsize: int,
    sizes: SizeHints,
) -> Access:
    """Return the access at `index`, of whose placeholders the values vary along the ranges `looked_up`."""
    strides: dict[Expr, int] = {}
    points = 1
    for symbol in ranges:
        direct = symbol in index.free_symbols
        if not direct and symbol not in looked_up:
            strides[symbol] = 0
            continue
        points *= max(sizes.value(get_extent(symbol)), 1)
        strides[symbol] = _guess_step(index, symbol, sizes) if direct else -1
    return Access(buffer=name, index=index, strides=strides, touched_bytes=points * itemsize, store=store)


def find_slices(
    draft: Draft, buffers: Mapping[str, Buffer], sizes: SizeHints, target: Target
) -> tuple[Expr, ...]:
    """Find the parallel ranges that choose the part of a buffer which stores at positions from data hit.

    Stores at positions from data come in any order within a part. Points that share one should run together,
    as far as a cache goes. A part is memory that lies together, or the same columns of all rows in a large
    buffer that is updated in memory. Largest parts come first.
    """
    found: dict[Expr, int] = {}
    for store in draft.stores:
        if not store.indirect:
            continue
        within = max(_guess_step(store.index, placeholder(k), sizes) for k in range(len(store.indirect)))
        for symbol in draft.parallel:
            step = _guess_step(store.index, symbol, sizes)
            if 0 <= within < step or _chooses_columns(store, symbol, step, within, buffers, sizes, target):
                found[symbol] = max(step, found.get(symbol, 0))
    return tuple(sorted(found, key=lambda symbol: -found[symbol]))


def _chooses_columns(
    store: Store,
    symbol: Expr,
    step: int,
    within: int,
    buffers: Mapping[str, Buffer],
    sizes: SizeHints,
    target: Target,
) -> bool:
    """Tell if `symbol` chooses columns, `step` of them, of rows of `within`, which a cache holds, as it does
    not hold all of the rows.
    """
    buffer, count = buffers[store.buffer], sizes.value(get_extent(symbol))
    if store.mode == "store" or has_trait(buffer.device, PROCESSOR):
        return False
    if not 1 < step < within or step * count > within:
        return False
    total = sizes.size_bytes(buffer)
    return total > target.resident_bytes >= total // max(count, 1)


def _guess_step(index: Expr, symbol: Expr, sizes: SizeHints) -> int:
    """Return the likely step of `index` along `symbol`; -1 where it is not affine."""
    step = find_run_stride(index, symbol)
    return -1 if step is None else sizes.value(step)


def index_expressions(draft: Draft) -> tuple[Expr, ...]:
    """Return every distinct index expression, of loads, stores and index values, in order."""
    found: dict[Expr, None] = {}
    for store in draft.stores:
        found.setdefault(store.index)
    for node in iterate_postorder(list_scalars(draft)):
        match node:
            case Load():
                found.setdefault(node.index[0])
            case IndexValue():
                found.setdefault(node.expr)
            case _:
                pass
    return tuple(found)


# ---- Aliasing ----


def time_draft(draft: Draft) -> Timing:
    """Find the moments at which `draft` loads and stores."""
    return time_accesses(draft.stores, (check.condition for check in draft.checks), draft.reduced)


def find_aliasing(draft: Draft, buffers: Mapping[str, Buffer]) -> tuple[tuple[str, str], ...]:
    """Find the pairs (output, input) of `draft`, by their buffers, that a call may give the same memory."""
    timing = time_draft(draft)
    written = {store.buffer for store in draft.stores}
    candidates = [(name, buffers[name], buffers[name].span) for name in timing.loads if name not in written]
    taken_over = {new for new, _ in draft.into}
    pairs: list[tuple[str, str]] = []
    for store in draft.stores:
        # what a mask leaves out keeps what was there before, which would be the input
        is_whole = store.mask is None or store.mask is draft.bound
        if store.buffer in taken_over or not is_whole or not candidates:
            continue
        out = buffers[store.buffer]
        span = out.span
        for name, source, source_span in candidates:
            if (
                source.dtype.itemsize == out.dtype.itemsize
                and source_span is span
                and source.device == out.device
                and timing.can_overwrite(name, store)
            ):
                pairs.append((store.buffer, name))
    return tuple(pairs)


# ---- Contractions ----


def is_contraction(draft: Draft) -> bool:
    """Tell if the kernel `draft` is contractions, and what becomes of their sums at the same points."""
    scalars = list_scalars(draft)
    found = contractions_in(scalars, draft.parallel)
    if not found or draft.sequential or draft.bound is not None:
        return False
    if any(frozenset(node.axes) != frozenset(draft.reduced) for node in found):
        return False
    # what remains once the sums are known
    rest = rewrite(scalars, lambda value: const(0.0, value.dtype) if value in found else value)
    touched = find_index_symbols(rest).union(*(store.index.free_symbols for store in draft.stores))
    return touched.isdisjoint(draft.reduced)


def contract_kernel(kernel: Kernel) -> Kernel:
    """`kernel`, whose draft is contractions, with contractions in the place of its sums of products.

    The factor of the outermost rows or columns in the kernel's order of ranges is the left one.
    """
    roots = list_kernel_roots(kernel)
    found = contractions_in(roots, [r.symbol for r in kernel.ranges if r.kind == "parallel"])

    def visit(value: Scalar) -> Scalar:
        factors = found.get(value) if isinstance(value, Reduce) else None
        return value if factors is None else factors.node

    return replace_roots(kernel, rewrite(roots, visit)) if found else kernel
