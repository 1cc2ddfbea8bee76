"""Welford and online softmax as two plain reductions each, and contractions as one.

The first two exist to read data once. A CPU's cache makes a second pass cheap, and two passes are more
accurate: sums of squared differences from the true mean, and exponentials of differences from the true
maximum.

A mean is a rounded one: the second pass adds the differences from it, too, which says by how much (the
corrected two-pass algorithm of Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The
American Statistician 37, 1983). The mean of equal numbers is that number then, and none differs from it. Not
of numbers across memory: there each column's sums lie in memory, too, and one more takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, product, stride_of
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import kernel_roots, replace_roots
from coilwork_ir.scalar import (
    Contraction,
    Reduce,
    Scalar,
    cast,
    const,
    index_value,
    loads,
    op,
    reduce,
    rewrite,
    where,
)


def expand(kernel: Kernel) -> Kernel:
    """`kernel` without `welford`, `online_softmax` and contractions."""
    return replace_roots(kernel, rewrite(kernel_roots(kernel), _visit))


def _visit(node: Scalar) -> Scalar:
    if isinstance(node, Contraction):
        # there are no matrix units to fill here: each result is a sum of its own
        return reduce("sum", [op("mul", *(cast(f, node.dtype) for f in node.operands))], node.axes)
    if not isinstance(node, Reduce):
        return node
    source = node.operands[0]
    x = cast(source, source.dtype.compute)
    mask = node.operands[1:]
    if node.kind == "welford":
        return cast(_mean(node, x, mask) if node.output == 0 else _squares(node, x, mask), node.dtype)
    if node.kind == "online_softmax":
        top = reduce("max", (x, *mask), node.axes)
        if node.output == 0:
            return cast(top, node.dtype)
        return cast(reduce("sum", (op("exp", op("sub", x, top)), *mask), node.axes), node.dtype)
    return node


def _mean(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """The mean, corrected along memory; without numbers that are all finite, as it comes."""
    rounded = _rounded_mean(node, x, mask)
    if not _is_along_memory(node):
        return rounded
    corrected = op("add", rounded, op("div", _residue(node, x, mask), _count(node.axes, mask, x.dtype)))
    return where(op("isnan", corrected), rounded, corrected)


def _squares(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """The sum of squared differences from the mean, 0 at least, corrected as the mean is."""
    difference = op("sub", x, _rounded_mean(node, x, mask))
    squares = reduce("sum", (op("mul", difference, difference), *mask), node.axes)
    if not _is_along_memory(node):
        return squares
    residue = _residue(node, x, mask)
    excess = op("div", op("mul", residue, residue), _count(node.axes, mask, x.dtype))
    corrected = op("maximum", op("sub", squares, excess), const(0, x.dtype))
    return where(op("isnan", corrected), squares, corrected)


def _residue(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    """The sum of differences from the rounded mean: what rounding took from the sum."""
    return reduce("sum", (op("sub", x, _rounded_mean(node, x, mask)), *mask), node.axes)


def _rounded_mean(node: Reduce, x: Scalar, mask: Sequence[Scalar]) -> Scalar:
    return op("div", reduce("sum", (x, *mask), node.axes), _count(node.axes, mask, x.dtype))


def _is_along_memory(node: Reduce) -> bool:
    """Tell if neighbours in memory are combined."""
    return any(
        stride_of(place, axis) is as_expr(1)
        for access in loads(node.operands[:1])
        for place in access.index
        for axis in node.axes
    )


def _count(axes: Sequence[Expr], mask: Sequence[Scalar], dtype: DType) -> Scalar:
    """Number of elements combined, of type `dtype`."""
    if mask:
        ones = where(mask[0], const(1, DType.I64), const(0, DType.I64))
        return cast(reduce("sum", (ones,), axes), dtype)
    extents = [axis.extent for axis in axes]
    count = product(extent for extent in extents if extent is not None)
    return const(count.value, dtype) if count.is_const else cast(index_value(count), dtype)
