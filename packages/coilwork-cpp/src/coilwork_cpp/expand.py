"""Welford and online softmax as two plain reductions each.

Both exist to read data once. A CPU's cache makes a second pass cheap, and two passes are more accurate: sums of
squared differences from the true mean, and exponentials of differences from the true maximum.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_cpp.rebuild import kernel_roots, with_roots
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, product
from coilwork_ir.kernels import Kernel
from coilwork_ir.scalar import Reduce, Scalar, cast, const, index_value, op, reduce, rewrite, where


def expand(kernel: Kernel) -> Kernel:
    """`kernel` without `welford` and `online_softmax`."""
    return with_roots(kernel, rewrite(kernel_roots(kernel), _visit))


def _visit(node: Scalar) -> Scalar:
    if not isinstance(node, Reduce):
        return node
    source = node.operands[0]
    x = cast(source, source.dtype.compute)
    mask = node.operands[1:]
    if node.kind == "welford":
        mean = op("div", reduce("sum", (x, *mask), node.axes), _count(node.axes, mask, x.dtype))
        if node.output == 0:
            return cast(mean, node.dtype)
        difference = op("sub", x, mean)
        return cast(reduce("sum", (op("mul", difference, difference), *mask), node.axes), node.dtype)
    if node.kind == "online_softmax":
        top = reduce("max", (x, *mask), node.axes)
        if node.output == 0:
            return cast(top, node.dtype)
        return cast(reduce("sum", (op("exp", op("sub", x, top)), *mask), node.axes), node.dtype)
    return node


def _count(axes: Sequence[Expr], mask: Sequence[Scalar], dtype: DType) -> Scalar:
    """Number of elements combined, of type `dtype`."""
    if mask:
        ones = where(mask[0], const(1, DType.I64), const(0, DType.I64))
        return cast(reduce("sum", (ones,), axes), dtype)
    extents = [axis.extent for axis in axes]
    count = product(extent for extent in extents if extent is not None)
    return const(count.value, dtype) if count.is_const else cast(index_value(count), dtype)
