"""Ranges that comparisons cut into equal parts."""

from __future__ import annotations

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.scalar import Scalar, const, find_even_parts, index_value, load, op, where

F32, I64 = DType.F32, DType.I64
ROW, COLUMN = symbol("i", extent=6), symbol("j", extent=12)
UNKNOWN = symbol("k", extent=symbol("n"))


def joined(along: Expr, *cuts: int, comparison: str = "lt") -> Scalar:
    """Another tensor behind each cut."""
    value: Scalar = load("last", (ROW, COLUMN), F32)
    for number, cut in enumerate(reversed(cuts)):
        condition = op(comparison, index_value(along), const(cut, I64))
        value = where(condition, load(f"in{number}", (ROW, COLUMN), F32), value)
    return value


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (joined(COLUMN, 6), (COLUMN, 2)),
        (joined(COLUMN, 4, 8), (COLUMN, 3)),
        (joined(COLUMN, 3, 12), (COLUMN, 4)),
        (joined(COLUMN, 9), (COLUMN, 4)),
        (joined(COLUMN, 5, comparison="le"), (COLUMN, 2)),
        (joined(COLUMN, 5, comparison="gt"), (COLUMN, 2)),
        (joined(ROW, 3), (ROW, 2)),
        (joined(COLUMN, 5), None),
        (joined(COLUMN, 2), None),
        (joined(COLUMN, 0, 12), None),
        (joined(COLUMN + 1, 6), None),
        (joined(UNKNOWN, 6), None),
        (joined(COLUMN), None),
    ],
)
def test_a_few_equal_parts(value: Scalar, wanted: tuple[Expr, int] | None) -> None:
    assert find_even_parts([value], (ROW, COLUMN, UNKNOWN)) == wanted


def test_of_two_ranges_the_innermost() -> None:
    assert find_even_parts([joined(ROW, 3), joined(COLUMN, 6)], (ROW, COLUMN)) == (COLUMN, 2)
    assert find_even_parts([joined(ROW, 3), joined(COLUMN, 5)], (ROW, COLUMN)) == (ROW, 2)
