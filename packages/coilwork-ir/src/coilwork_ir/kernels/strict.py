"""What `numerics=strict` means for functions that no processor computes exactly: in f64, rounded once.

A generator for which f64 functions are right to a few units in their last place gives f32 results that are
the nearest numbers to the exact ones, but for one in some million, whatever the device. Division, square root
and the operations that round once by IEEE 754 are left as they are: a generator writes their exact forms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.kernels.roots import kernel_roots, with_roots
from coilwork_ir.scalar import (
    Combine,
    Op,
    Reduce,
    Scalar,
    Scan,
    cast,
    combine,
    op,
    reduce,
    rewrite,
    scan,
    scan_again,
)

FUNCTIONS: Final = frozenset(
    {
        *("pow", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "atan2"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
        *("sigmoid", "erf", "erfc", "lgamma", "hypot"),
        *("zeta", "igamma", "igammac"),
    }
)


def make_functions_strict(kernel: Kernel) -> Kernel:
    """`kernel`, if it is `strict` with every function of f32 or narrower floats computed in f64.

    The same for reductions and scans that divide or take exponentials at each step. Types of stores and of
    all other values stay as they are.
    """
    if kernel.numerics != "strict":
        return kernel
    if kernel.combined is not None:
        body = make_functions_strict(replace(kernel.combined.body, numerics=kernel.numerics))
        return replace(kernel, combined=replace(kernel.combined, body=body))
    return with_roots(kernel, rewrite(kernel_roots(kernel), _visit))


def _visit(node: Scalar) -> Scalar:
    if isinstance(node, Scan) and isinstance(node.kind, Combine):
        function = combine(rewrite(node.kind.results, _visit))
        first, *others = node.operands
        return scan(function, first, node.axis, others=others, output=node.output, reverse=node.reverse)
    if not node.operands or not node.operands[0].dtype.is_float or node.operands[0].dtype is DType.F64:
        return node
    match node:
        case Op() if node.op in FUNCTIONS:
            return cast(op(node.op, *(cast(value, DType.F64) for value in node.operands)), node.dtype)
        case Reduce() if node.kind in ("welford", "online_softmax"):
            wide = (cast(node.operands[0], DType.F64), *node.operands[1:])
            return cast(reduce(node.kind, wide, node.axes, output=node.output), node.dtype)
        case Scan() if node.kind == "logcumsumexp":
            running = scan_again(node, (cast(node.operands[0], DType.F64),), node.axis)
            return cast(running, node.dtype)
        case _:
            return node
