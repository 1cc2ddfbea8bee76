"""Contractions of kernels: which ranges are rows, columns and the batch of a sum of products.

`sum over k of left(b, m, k) * right(b, k, n)`: the rows `m` only the left factor varies along, the columns
`n` only the right one, the batch `b` both. That is what matrix units compute: each factor is read, and
whatever it is computed from evaluated, once per block of rows or columns, not once per product. Factors of 16
bits are multiplied exactly in f32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coilwork_ir.index import Expr, as_int
from coilwork_ir.scalar.nodes import Contraction, Reduce, Scalar, Scan, Sort
from coilwork_ir.scalar.walk import postorder, range_symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionParts:
    """The ranges of a contraction, each group in the order in which they were given.

    Attributes:
        batch: ranges that both factors vary along.
        rows: those of the left factor alone.
        columns: those of the right one alone.
    """

    batch: tuple[Expr, ...]
    rows: tuple[Expr, ...]
    columns: tuple[Expr, ...]


def find_parts(
    left: Scalar, right: Scalar, ranges: Iterable[Expr], axes: Iterable[Expr]
) -> ContractionParts | None:
    """The rows, columns and batch among `ranges` of the sum of `left * right` along `axes`; None if it is no
    contraction.

    Each range is a part of a factor, and each axis of both. Ranges of extent 1 do not count. The product of a
    matrix with a vector is no contraction: no part of it is read twice. Nor is one of what is itself reduced.
    """
    real = tuple(r for r in ranges if not _is_point(r))
    first, second = range_symbols((left,)), range_symbols((right,))
    along = frozenset(a for a in axes if not _is_point(a))
    if not along or not along <= first or not along <= second:
        return None
    found = ContractionParts(
        batch=tuple(r for r in real if r in first and r in second),
        rows=tuple(r for r in real if r in first and r not in second),
        columns=tuple(r for r in real if r in second and r not in first),
    )
    count = len(found.batch) + len(found.rows) + len(found.columns)
    if not found.rows or not found.columns or count != len(real):
        return None
    combining = any(isinstance(v, Reduce | Contraction | Scan | Sort) for v in postorder((left, right)))
    return None if combining else found


def find_contraction(values: Iterable[Scalar]) -> Contraction | None:
    """The first contraction among `values` and below; None if there is none."""
    return next((node for node in postorder(tuple(values)) if isinstance(node, Contraction)), None)


def _is_point(symbol: Expr) -> bool:
    """True for a range of one point."""
    return symbol.extent is not None and as_int(symbol.extent) == 1
