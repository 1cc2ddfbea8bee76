"""Which reductions are known to end before the end of their axis."""

from __future__ import annotations

import math

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import symbol
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, cast, const, count_leading_points, index_value, load, op, where

X, R = symbol("x0", extent=8), symbol("r0", extent=100)
ONE = symbol("r1", extent=1)
COUNT = load("lengths", [X], DType.I64)
VALUE = load("values", [R], DType.F32)
ZERO = const(0.0, DType.F32)
INSIDE = op("lt", index_value(R), COUNT)


def test_an_operand_counts_up_to_a_number_from_data() -> None:
    assert count_leading_points("sum", where(INSIDE, VALUE, ZERO), (R,)) is COUNT
    assert count_leading_points("sum", where(INSIDE, VALUE, ZERO), (ONE, R)) is COUNT
    assert count_leading_points("prod", where(INSIDE, VALUE, const(1.0, DType.F32)), (R,)) is COUNT


def test_extremes_do_not_notice_what_is_farthest() -> None:
    extremes: tuple[tuple[ReduceKind, float], ...] = (("max", -math.inf), ("min", math.inf))
    for kind, far in extremes:
        assert count_leading_points(kind, where(INSIDE, VALUE, const(far, DType.F32)), (R,)) is COUNT
        assert count_leading_points(kind, where(INSIDE, VALUE, const(-far, DType.F32)), (R,)) is None
    whole = load("wholes", [R], DType.I32)
    assert count_leading_points("max", where(INSIDE, whole, const(-(2**31), DType.I32)), (R,)) is COUNT
    assert count_leading_points("min", where(INSIDE, whole, const(2**31 - 1, DType.I32)), (R,)) is COUNT
    unsigned = where(INSIDE, cast(whole, DType.U8), const(0, DType.U8))
    assert count_leading_points("max", unsigned, (R,)) is None


def test_a_position_may_be_counted_in_any_type_that_holds_it() -> None:
    count = load("lengths", [X], DType.I32)
    inside = op("lt", cast(index_value(R), DType.I32), count)
    assert count_leading_points("sum", where(inside, VALUE, ZERO), (R,)) is count
    for axis, dtype in ((symbol("r0", extent=200), DType.I8), (symbol("r0"), DType.I32), (R, DType.F32)):
        count = load("lengths", [X], dtype)
        inside = op("lt", cast(index_value(axis), dtype), count)
        value = load("values", [axis], DType.F32)
        assert count_leading_points("sum", where(inside, value, ZERO), (axis,)) is None


@pytest.mark.parametrize(
    ("kind", "operand"),
    [
        ("sum", VALUE),
        # what stands in for the rest is not noticed by other kinds only
        ("sum", where(INSIDE, VALUE, const(1.0, DType.F32))),
        ("prod", where(INSIDE, VALUE, ZERO)),
        ("max", where(INSIDE, VALUE, ZERO)),
        # the condition fails in front, in the middle, or wherever data says
        ("sum", where(op("gt", index_value(R), COUNT), VALUE, ZERO)),
        ("sum", where(op("lt", index_value(R * 2), COUNT), VALUE, ZERO)),
        ("sum", where(op("lt", index_value(R), load("lengths", [R], DType.I64)), VALUE, ZERO)),
    ],
)
def test_others_may_count_to_the_end(kind: ReduceKind, operand: Scalar) -> None:
    assert count_leading_points(kind, operand, (R,)) is None


def test_several_long_axes_have_no_one_end() -> None:
    assert count_leading_points("sum", where(INSIDE, VALUE, ZERO), (X, R)) is None
