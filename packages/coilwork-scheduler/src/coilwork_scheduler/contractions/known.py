"""Which sums that the scheduler has written, or that a program spells itself, are contractions, and their
form in a kernel.

Factors are in f32, often 16-bit numbers widened: the product of two of these is exact, so that a unit which
multiplies 16-bit numbers and adds in f32 computes just this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.loops import Node, Reduce
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Contraction as ScalarContraction,
)
from coilwork_ir.scalar import (
    Op,
    Scalar,
    cast,
    contract,
    find_parts,
    postorder,
    range_symbols,
)
from coilwork_ir.scalar import (
    Reduce as ScalarReduce,
)

_HALVES: Final = frozenset({DType.F16, DType.BF16})
# Integers whose values both of the 16-bit types have.
_SMALL: Final = frozenset({DType.I8, DType.U8, DType.BOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """The factors of a sum of products, of one type, and the ranges that only one of them varies along.

    Attributes:
        left, right: the factors.
        rows: ranges of the left one alone.
        columns: those of the right one alone.
        axes: what is summed over.
    """

    left: Scalar
    right: Scalar
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    axes: tuple[Expr, ...]

    @property
    def node(self) -> ScalarContraction:
        """The sum as kernels say it, in f32."""
        return contract(self.left, self.right, self.axes, DType.F32)


def contraction_of(
    kind: ReduceKind, operand: Scalar, ranges: Iterable[Expr], axes: tuple[Expr, ...]
) -> Factors | None:
    """The factors of the reduction of `operand`, over `ranges` and along `axes`; None if it is no
    contraction.

    The factor that varies along the outermost of the ranges that are not batch is the left one.
    """
    if kind != "sum" or not isinstance(operand, Op) or operand.op != "mul" or operand.dtype is not DType.F32:
        return None
    real = tuple(r for r in ranges if r.extent is None or as_int(r.extent) != 1)
    first, second = operand.operands
    known = {factor: range_symbols((factor,)) for factor in (first, second)}
    outer = next((r for r in real if (r in known[first]) != (r in known[second])), None)
    if outer is None:
        return None
    left, right = (first, second) if outer in known[first] else (second, first)
    parts = find_parts(left, right, real, axes)
    if parts is None:
        return None
    dtype = _multiplied(left, right)
    return Factors(
        left=_narrow(left, dtype),
        right=_narrow(right, dtype),
        rows=parts.rows,
        columns=parts.columns,
        axes=axes,
    )


def contraction_in(values: Iterable[Scalar], ranges: Iterable[Expr]) -> tuple[ScalarReduce, Factors] | None:
    """The only reduction among `values` and below, if it is a contraction over `ranges`."""
    found = [node for node in postorder(tuple(values)) if isinstance(node, ScalarReduce)]
    if len(found) != 1 or len(found[0].operands) != 1:
        return None
    (node,) = found
    factors = contraction_of(node.kind, node.operands[0], ranges, node.axes)
    return None if factors is None else (node, factors)


def contraction_of_node(node: Node) -> Factors | None:
    """`node` as a contraction; None if it is none."""
    if not isinstance(node, Reduce):
        return None
    return contraction_of(node.kind, node.body, node.ranges, node.axes)


def _multiplied(left: Scalar, right: Scalar) -> DType:
    """The 16-bit type that both factors are exact in, or f32."""
    before = {_unwidened(left).dtype, _unwidened(right).dtype}
    halves = before & _HALVES
    return next(iter(halves)) if len(halves) == 1 and before <= halves | _SMALL else DType.F32


def _narrow(factor: Scalar, dtype: DType) -> Scalar:
    return factor if factor.dtype is dtype else cast(_unwidened(factor), dtype)


def _unwidened(factor: Scalar) -> Scalar:
    """Return what `factor` is in f32, if it is only widened."""
    return factor.operands[0] if isinstance(factor, Op) and factor.op == "cast" else factor
