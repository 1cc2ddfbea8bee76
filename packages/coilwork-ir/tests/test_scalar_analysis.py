"""Facts about scalar graphs: reductions that end early, equal parts, bounds of integers."""

from __future__ import annotations

import math

import pytest

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, symbol
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import (
    Scalar,
    cast,
    const,
    count_leading_points,
    find_even_parts,
    find_span,
    index_value,
    iterate_postorder,
    load,
    narrow_to_32_bits,
    op,
    where,
)

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


I32, I64 = DType.I32, DType.I64
I = symbol("i0", extent=100)


def loaded(dtype: DType) -> Scalar:
    return load("x", (I,), dtype)


def wide(dtype: DType) -> Scalar:
    return cast(loaded(dtype), I64)


FIVE = const(5, I64)
SPANS: dict[str, tuple[Scalar, tuple[int, int] | None]] = {
    "truth": (wide(DType.BOOL), (0, 1)),
    "byte": (wide(DType.U8), (0, 255)),
    "signed": (wide(DType.I16), (-32768, 32767)),
    "words": (wide(I32), (-(2**31), 2**31 - 1)),
    "unknown": (loaded(I64), None),
    "of a float": (cast(loaded(DType.F32), I64), None),
    "of a float to a byte": (cast(cast(loaded(DType.F32), DType.I8), I64), (-128, 127)),
    "position": (index_value(I * 2 + 1), (1, 199)),
    "sum": (op("add", wide(DType.BOOL), FIVE), (5, 6)),
    "difference": (op("sub", wide(DType.U8), FIVE), (-5, 250)),
    "product": (op("mul", wide(DType.I8), wide(DType.I8)), (-128 * 127, 128 * 128)),
    "choice": (where(loaded(DType.BOOL), FIVE, wide(DType.BOOL)), (0, 5)),
    "extremes": (op("minimum", op("maximum", wide(DType.I8), const(0, I64)), FIVE), (0, 5)),
    "product of an unknown": (op("mul", loaded(I64), const(0, I64)), None),
    "wraps around": (op("mul", loaded(DType.I8), loaded(DType.I8)), (-128, 127)),
    "narrower": (cast(cast(loaded(DType.U8), DType.I8), I64), (-128, 127)),
}


@pytest.mark.parametrize("name", SPANS)
def test_the_span_of_a_value_is_found(name: str) -> None:
    scalar, expected = SPANS[name]
    assert find_span(scalar) == expected


@pytest.mark.parametrize("name", ["truth", "byte", "sum", "difference", "product", "choice", "extremes"])
def test_nothing_is_computed_in_64_bits(name: str) -> None:
    narrow = narrow_to_32_bits(SPANS[name][0])
    assert narrow.dtype is I32 and find_span(narrow) == SPANS[name][1]
    assert all(node.dtype is not I64 for node in iterate_postorder((narrow,)))


def test_what_is_on_the_way_may_be_wide() -> None:
    large = op("mul", wide(I32), const(4, I64))
    narrow = narrow_to_32_bits(op("minimum", op("maximum", large, const(0, I64)), FIVE))
    assert narrow.dtype is I32 and large in set(iterate_postorder((narrow,)))


@pytest.mark.parametrize(
    "wrapping",
    [
        op("sub", loaded(DType.U8), const(200, DType.U8)),
        op("add", loaded(DType.I8), loaded(DType.I8)),
        op("mul", loaded(DType.I16), loaded(DType.I16)),
        cast(loaded(DType.U8), DType.I8),
        cast(wide(DType.I16), DType.U8),
    ],
)
def test_what_wraps_around_is_computed_in_its_own_type(wrapping: Scalar) -> None:
    narrow = narrow_to_32_bits(cast(wrapping, I64))
    assert narrow.dtype is I32 and wrapping in set(iterate_postorder((narrow,)))
