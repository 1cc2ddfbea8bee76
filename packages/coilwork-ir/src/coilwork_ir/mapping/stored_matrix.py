"""Factors of contractions as matrices in memory, which a copy engine takes block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, as_expr, as_int, find_stride, get_extent, provably_divisible, substitute
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.scalar import Contraction, Load, Scalar, find_parts

_VECTOR_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMatrix:
    """A factor as it lies in memory, in rows of whole vectors.

    Attributes:
        buffer: the argument that it is loaded from.
        offset: of its first element, in elements; varies along the batch at most.
        along_axes: rows lie along the sum, and one row or column of the product behind the other.
        stride: elements from one row to the next.
    """

    buffer: str
    offset: Expr
    along_axes: bool
    stride: Expr

    @property
    def is_batched(self) -> bool:
        """True if there is one for each point of a batch."""
        return any(symbol.extent is not None for symbol in self.offset.free_symbols)


def find_stored_matrix(kernel: Kernel, node: Contraction, factor: Scalar) -> StoredMatrix | None:
    """Return `factor` of `node`, a contraction of `kernel`, as a matrix in memory.

    None if it is anything but loaded, has several ranges along a side, or rows that may start between vectors
    of 16 bytes.
    """
    parallel = [r.symbol for r in kernel.ranges if r.kind == "parallel"]
    parts = find_parts(node.left, node.right, parallel, node.axes)
    axes = [axis for axis in node.axes if as_int(get_extent(axis)) != 1]
    if not isinstance(factor, Load) or factor.operands or parts is None:
        return None
    sides = parts.rows if factor is node.left else parts.columns
    argument = next(arg for arg in kernel.args if arg.name == factor.buffer)
    if len(sides) != 1 or len(axes) != 1 or not argument.aligned:
        return None
    (place,) = factor.index
    steps = {symbol: find_stride(place, symbol) for symbol in (*sides, *axes)}
    found = [symbol for symbol, step in steps.items() if step is not None and as_int(step) == 1]
    if len(found) != 1:
        return None
    (near,) = found
    ((far, stride),) = [pair for pair in steps.items() if pair[0] is not near]
    vector = _VECTOR_BYTES // factor.dtype.itemsize
    offset = substitute(place, {far: as_expr(0), near: as_expr(0)})
    if stride is None or not (provably_divisible(stride, vector) and provably_divisible(offset, vector)):
        return None
    return StoredMatrix(buffer=factor.buffer, offset=offset, along_axes=near in axes, stride=stride)
