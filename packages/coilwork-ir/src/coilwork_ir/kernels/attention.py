"""Read facts of attention off its kernel: the roles of its ranges, and which points share keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, find_stride, substitute, symbol
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore, Kernel, Range
from coilwork_ir.scalar import Parameter, iterate_postorder

MOST_COLUMNS: Final = 512
"""Columns of values, and terms of a product, that a block has whole."""
AttentionKernelCore: TypeAlias = AttentionCore | AttentionGradientCore


# ---- Roles ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The ranges of an attention by what a program does with them.

    Attributes:
        others: a program has one point of them.
        rows, keys: gone through in blocks.
        columns, length: whole in each block.
    """

    others: tuple[Range, ...]
    rows: Range
    columns: Range
    keys: Range
    length: Range


def find_core(kernel: Kernel) -> AttentionKernelCore | None:
    """Return the core of `kernel`, if it is attention or its gradient."""
    core = kernel.core
    return core if isinstance(core, AttentionCore | AttentionGradientCore) else None


def roles_of(kernel: Kernel) -> Roles:
    """Return the roles of the ranges of `kernel`, whose core is attention.

    Raises:
        EmitError: it is no attention that is computed in blocks.
    """
    core = find_core(kernel)
    assert core is not None
    weights, ranges = core.weights, {r.symbol: r for r in kernel.ranges}
    if weights.accumulate is not DType.F32:
        raise EmitError(core.kind, f"no attention is summed in {weights.accumulate.text}")
    if not weights.rows:
        raise EmitError(core.kind, "there are no rows")
    *others, rows = weights.rows
    keys, length = weights.axes
    columns = weights.ranges[-1]
    for name, extent in (("columns", columns.extent), ("terms", length.extent)):
        count = None if extent is None else as_int(extent)
        if count is None or not 0 < count <= MOST_COLUMNS:
            raise EmitError(core.kind, f"there are no 1 to {MOST_COLUMNS} {name}")
    return Roles(
        others=tuple(ranges[r] for r in others),
        rows=ranges[rows],
        columns=ranges[columns],
        keys=ranges[keys],
        length=ranges[length],
    )


# ---- Points that share an element ----


@dataclass(frozen=True, slots=True)
class Sharing:
    """Neighbouring points of one of the other ranges that share keys: `count` of them in a row."""

    symbol: Expr
    extent: Expr
    count: Expr


def find_sharing(kernel: Kernel, roles: Roles, index: Expr) -> tuple[Sharing, ...] | None:
    """Return how points of the other ranges share the elements at `index`, by range; None if that is not
    found.
    """
    found: list[Sharing] = []
    for r in roles.others:
        count = _count_sharing(index, r)
        if count is None:
            return None
        found.append(Sharing(r.symbol, r.extent, count))
    return tuple(found)


def _count_sharing(index: Expr, r: Range) -> Expr | None:
    if r.symbol not in index.free_symbols:
        return r.extent
    step = find_stride(index, r.symbol)
    if step is not None:
        return as_expr(1) if as_int(step) != 0 else None
    extent = as_int(r.extent)
    if extent is None:
        return None
    for count in sorted((n for n in range(2, extent + 1) if extent % n == 0), reverse=True):
        outer = symbol("outer", extent=extent // count)
        inner = symbol("inner", extent=count)
        moved = substitute(index, {r.symbol: outer * count + inner})
        if inner not in moved.free_symbols and find_stride(moved, outer) is not None:
            return as_expr(count)
    return None


def index_of_store(kernel: Kernel, number: int) -> Expr | None:
    """Return the index at which result `number` of a gradient is stored; None if it is not."""
    for store in kernel.stores:
        if any(isinstance(v, Parameter) and v.position == number for v in iterate_postorder((store.value,))):
            return store.index
    return None


def find_key_sharing(kernel: Kernel) -> tuple[Sharing, ...]:
    """Return how points of the other ranges share keys and values."""
    roles = roles_of(kernel)
    found = []
    for number in (1, 2):
        index = index_of_store(kernel, number)
        found.append(None if index is None else find_sharing(kernel, roles, index))
    if found[0] is None or found[0] != found[1]:
        raise EmitError("attention-gradient", "points do not share keys as they share values")
    return found[0]
