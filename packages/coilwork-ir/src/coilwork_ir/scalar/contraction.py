"""Contractions: sums of products whose two factors each know only a part of the result's ranges.

`sum over k of left(b, m, k) * right(b, k, n)`: the rows `m` only the left factor varies along, the columns `n` only the
right one, the batch `b` both. That is what matrix units compute: each factor is read, and whatever it is computed from
evaluated, once per block of rows or columns, not once per product. Factors are in f32, often 16-bit numbers widened: the
product of two of these is exact, so that a unit which multiplies 16-bit numbers and adds in f32 computes just this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar.build import cast
from coilwork_ir.scalar.nodes import Op, Reduce, Scalar
from coilwork_ir.scalar.walk import postorder, range_symbols

HALVES: Final = frozenset({DType.F16, DType.BF16})
# Integers whose values both of the 16-bit types have.
_SMALL: Final = frozenset({DType.I8, DType.U8, DType.BOOL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A sum of products. The three groups of ranges are in the order in which they were given.

    Attributes:
        left, right: the factors, of type `dtype`.
        dtype: what is multiplied; sums are in f32.
        batch: ranges that both factors vary along.
        rows: those of the left factor alone.
        columns: those of the right one alone.
        axes: what is summed over.
    """

    left: Scalar
    right: Scalar
    dtype: DType
    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]
    axes: tuple[Expr, ...]


def contraction_of(
    kind: ReduceKind, operand: Scalar, ranges: Iterable[Expr], axes: tuple[Expr, ...]
) -> Contraction | None:
    """The reduction of `operand`, over `ranges` and along `axes`, as a contraction; None if it is none.

    Ranges of extent 1 do not count, and a product of a matrix with a vector is no contraction: no part of it is read twice.
    The factor that varies along the outermost of the ranges that are not batch is the left one.
    """
    if kind != "sum" or not isinstance(operand, Op) or operand.op != "mul" or operand.dtype is not DType.F32:
        return None
    real = tuple(r for r in ranges if r.extent is None or as_int(r.extent) != 1)
    first, second = operand.operands
    known = {factor: range_symbols((factor,)) for factor in (first, second)}
    along = frozenset(a for a in axes if a.extent is None or as_int(a.extent) != 1)
    if not along or not along <= known[first] or not along <= known[second]:
        return None
    outer = next((r for r in real if (r in known[first]) != (r in known[second])), None)
    if outer is None:
        return None
    left, right = (first, second) if outer in known[first] else (second, first)
    batch = tuple(r for r in real if r in known[left] and r in known[right])
    rows = tuple(r for r in real if r in known[left] and r not in known[right])
    columns = tuple(r for r in real if r in known[right] and r not in known[left])
    if not rows or not columns or len(batch) + len(rows) + len(columns) != len(real):
        return None
    if any(isinstance(node, Reduce) for node in postorder((left, right))):
        return None
    dtype = _multiplied(left, right)
    return Contraction(
        left=_narrow(left, dtype),
        right=_narrow(right, dtype),
        dtype=dtype,
        batch=batch,
        rows=rows,
        columns=columns,
        axes=axes,
    )


def contraction_in(values: Iterable[Scalar], ranges: Iterable[Expr]) -> tuple[Reduce, Contraction] | None:
    """The only reduction among `values` and below, if it is a contraction over `ranges`."""
    found = [node for node in postorder(tuple(values)) if isinstance(node, Reduce)]
    if len(found) != 1 or len(found[0].operands) != 1:
        return None
    (node,) = found
    contraction = contraction_of(node.kind, node.operands[0], ranges, node.axes)
    return None if contraction is None else (node, contraction)


def _multiplied(left: Scalar, right: Scalar) -> DType:
    """The 16-bit type that both factors are exact in, or f32."""
    before = {_unwidened(left).dtype, _unwidened(right).dtype}
    halves = before & HALVES
    return next(iter(halves)) if len(halves) == 1 and before <= halves | _SMALL else DType.F32


def _narrow(factor: Scalar, dtype: DType) -> Scalar:
    return factor if factor.dtype is dtype else cast(_unwidened(factor), dtype)


def _unwidened(factor: Scalar) -> Scalar:
    """What `factor` is in f32, if it is only widened."""
    return factor.operands[0] if isinstance(factor, Op) and factor.op == "cast" else factor
