"""Boxes: pieces of reductions whose operands have neighbours along different axes.

    x[n, c, p]   channels last: neighbours along c
    y[n, c, p]   in planes: neighbours along p

The sum of their differences is cut along n and c in the order of `y`. A piece of a few channels would fetch a
sector of `x` for each of their points, and use as many elements of it. So channels are two axes first: the
inner one stays whole in every piece, beside a run of p, and the outer one is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coilwork_ir.index import Expr, as_expr, as_int, extent_of, substitute, symbol


def boxed_axes(
    order: Sequence[Expr],
    refined: Mapping[Expr, Expr],
    near: Mapping[Expr, int],
    *,
    share: float,
    least: int,
    most: int,
) -> tuple[tuple[Expr, ...], dict[Expr, Expr]]:
    """`order`, outermost first, with an axis in two of which pieces keep one, and what axes are over it.

    `near` are bytes whose nearest neighbours lie along an axis of `order`. If at most `share` of them lie
    along an axis that is not the innermost, `order` stays as it is. From `least` to
    `most` points stay together.
    """
    total = sum(near.values())
    crossing = max(order[:-1], key=lambda axis: near.get(axis, 0), default=None)
    if crossing is None or near.get(crossing, 0) <= share * total or near.get(order[-1], 0) <= share * total:
        return tuple(order), dict(refined)
    extent = as_int(extent_of(crossing))
    if extent is None:
        return tuple(order), dict(refined)
    others = [axis for axis in order if axis is not crossing]
    if extent <= most:
        return (*others, crossing), dict(refined)
    length = next((n for n in range(most, least - 1, -1) if extent % n == 0), None)
    if length is None:
        return tuple(order), dict(refined)
    outer = symbol(f"{crossing.name}_box", extent=as_expr(extent // length))
    inner = symbol(f"{crossing.name}_in_box", extent=as_expr(length))
    parts = {crossing: outer * length + inner}
    place = order.index(crossing)
    whole = {axis: substitute(over, parts) for axis, over in refined.items()}
    return (*order[:place], outer, *order[place + 1 :], inner), {**parts, **whole}
