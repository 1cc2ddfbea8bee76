"""Reading an element of a view where it lies in the memory that is viewed.

A transposed operand is the buffer that was computed, under other strides. Read there, by that buffer's own index, what
computes the buffer can take the place of the load.
"""

from __future__ import annotations

from collections.abc import Mapping

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, floordiv, mod, provably_eq
from coilwork_ir.loops import View
from coilwork_ir.scalar import Load, load


def element(
    buffer: Buffer, index: tuple[Expr, ...], buffers: Mapping[str, Buffer], views: Mapping[str, View]
) -> Load:
    """The element of `buffer` at `index`: a load from the innermost buffer that it is a view of, as far as that is dense."""
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


def _dense(buffer: Buffer) -> tuple[int, ...] | None:
    """Dimensions, outermost in memory first, if each element of a stretch of memory is one of the buffer's."""
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
