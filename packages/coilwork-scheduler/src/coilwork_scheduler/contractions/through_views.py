"""Reading an element of a view where it lies in the memory that is viewed.

A transposed operand is the buffer that was computed, under other strides. Read there, by that buffer's own
index, what computes the buffer can take the place of the load.
"""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, provably_eq, provably_le
from coilwork_ir.loops import View
from coilwork_ir.scalar import Load, load


def element(
    buffer: Buffer, index: tuple[Expr, ...], buffers: Mapping[str, Buffer], views: Mapping[str, View]
) -> Load:
    """The element of `buffer` at `index`: a load from the innermost buffer that it is a view of, as far as
    that is dense.
    """
    while (view := views.get(buffer.name)) is not None:
        source = buffers[view.source]
        order = _dense(source)
        if source.dtype is not buffer.dtype or order is None:
            break
        offset = buffer.offset_of(index) + view.offset
        found: dict[int, Expr] = {}
        for place, dimension in enumerate(order):
            at = floordiv(offset, source.strides[dimension])
            # the outermost dimension has no other behind it
            found[dimension] = mod(at, source.shape[dimension]) if place else at
        buffer, index = source, tuple(found[dimension] for dimension in range(len(order)))
    return load(buffer.name, index, buffer.dtype)


def sliced_element(
    buffer: Buffer, index: tuple[Expr, ...], buffers: Mapping[str, Buffer], views: Mapping[str, View]
) -> Load | None:
    """The element of `buffer` at `index`, as a load from what it is a view of.

    Each dimension steps through one of that, so that `index` may lie outside of `buffer`, where a mask keeps
    it out. None if it is another view, or none.
    """
    view = views.get(buffer.name)
    if view is None or buffers[view.source].dtype is not buffer.dtype:
        return None
    source = buffers[view.source]
    starts = _starts(source, view.offset)
    several = [d for d, size in enumerate(buffer.shape) if as_int(size) != 1]
    found = dict(enumerate(starts)) if starts is not None else {}
    free = set(found)
    for d in several:
        steps = {e: step for e in free if (step := _step(buffer.strides[d], source.strides[e])) is not None}
        fitting = [e for e, step in steps.items() if _fits(found[e], step, buffer.shape[d], source.shape[e])]
        if not fitting:
            return None
        chosen = min(fitting, key=lambda e: steps[e])
        free.remove(chosen)
        found[chosen] = found[chosen] + steps[chosen] * index[d]
    if not found and source.shape:
        return None
    return load(source.name, tuple(found[e] for e in range(len(source.shape))), buffer.dtype)


def _starts(source: Buffer, offset: Expr) -> list[Expr] | None:
    """The element of `source` at `offset`; None if that is not known."""
    rest = as_int(offset)
    if rest == 0:
        return [as_expr(0)] * len(source.shape)
    strides = [as_int(stride) for stride in source.strides]
    if rest is None or None in strides:
        return None
    starts = [as_expr(0)] * len(strides)
    known = [(stride, d) for d, stride in enumerate(strides) if stride and as_int(source.shape[d]) != 1]
    for stride, d in sorted(known, reverse=True):
        starts[d], rest = as_expr(rest // stride), rest % stride
    return None if rest else starts


def _step(ours: Expr, theirs: Expr) -> int | None:
    """By how many elements of a dimension of stride `theirs` one of stride `ours` steps."""
    if ours is theirs:
        return 1
    a, b = as_int(ours), as_int(theirs)
    return a // b if a and b and a % b == 0 else None


def _fits(start: Expr, step: int, count: Expr, size: Expr) -> bool:
    """True if `count` steps stay within `size`."""
    return provably_le(start + step * (count - 1) + 1, size)


def _dense(buffer: Buffer) -> tuple[int, ...] | None:
    """Dimensions, outermost in memory first, if each element of a stretch of memory is one of the
    buffer's.
    """
    pending = dict(enumerate(zip(buffer.shape, buffer.strides, strict=True)))
    wanted = as_expr(1)
    order: list[int] = []
    while pending:
        inner = [d for d, (_, stride) in pending.items() if stride is wanted or provably_eq(stride, wanted)]
        # of those of one stride all but the last have one element
        ones = [d for d in inner if provably_eq(pending[d][0], 1)]
        if not inner:
            return None
        chosen = ones[-1] if ones else inner[-1]
        order.append(chosen)
        wanted = wanted * pending.pop(chosen)[0]
    return tuple(reversed(order))
