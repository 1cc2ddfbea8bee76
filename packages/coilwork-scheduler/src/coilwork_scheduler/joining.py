"""Two ranges that indices see as one."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.index import Expr, as_expr, extent_of, substitute, symbol

_ZERO = as_expr(0)


def joined(outer: Expr, inner: Expr, indices: Sequence[Expr]) -> tuple[Expr, tuple[Expr, ...]] | None:
    """One symbol for `outer * extent(inner) + inner` and `indices` over it, if they need no more
    than that.
    """
    size = extent_of(inner)
    whole = symbol(f"{outer.name}.{inner.name}", extent=extent_of(outer) * size)
    point = outer * size + inner
    result: list[Expr] = []
    for index in indices:
        free = index.free_symbols
        if outer in free or inner in free:
            over = substitute(index, {outer: _ZERO, inner: whole})
            if substitute(over, {whole: point}) is not index:
                return None
            index = over
        result.append(index)
    return whole, tuple(result)
