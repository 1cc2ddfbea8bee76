"""Sums of 64 bit integers of which no partial sum leaves 32 bits: they are made in 32, and widened at the
end, bit for bit the same.

`mask.sum()` and `mask.long().cumsum(-1)` count in 64 bits by type. Processors add half as many of those at
once, and threads of a GPU exchange them in two words.
"""

from __future__ import annotations

from math import prod
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import bounds, extent_of
from coilwork_ir.scalar import Reduce, Scalar, Scan, cast, narrow_to_32_bits, reduce, scan, whole_span

_LARGEST: Final = (1 << 31) - 1


def narrowed(node: Scalar) -> Scalar:
    """`node` in fewer bits, if it is such a sum, running or not, of known length."""
    if not isinstance(node, Reduce | Scan) or node.kind != "sum" or node.dtype is not DType.I64:
        return node
    axes = node.axes if isinstance(node, Reduce) else (node.axis,)
    lengths = [bounds(extent_of(axis)).hi for axis in axes]
    known = [length for length in lengths if length is not None]
    span = whole_span(node.operands[0])
    if len(known) < len(lengths) or span is None or prod(known) * max(-span[0], span[1]) > _LARGEST:
        return node
    value = narrow_to_32_bits(node.operands[0])
    if isinstance(node, Scan):
        return cast(scan("sum", value, node.axis, reverse=node.reverse), DType.I64)
    return cast(reduce("sum", (value,), node.axes), DType.I64)
