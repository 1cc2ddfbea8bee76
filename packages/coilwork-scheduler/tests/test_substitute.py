"""Masks of producers' loads: what guards a place that might not exist stays, the rest does not."""

from __future__ import annotations

import pytest
from known_values import number_of

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, const, floordiv, mod, substitute, symbol
from coilwork_ir.scalar import Op, Scalar, index_value, load, op
from coilwork_ir.scalar import const as literal
from coilwork_scheduler.inlining.substitute import COMPARISONS, Guards, estimate_share

F64 = DType.F64
ROW, COLUMN = symbol("i", lo=0, extent=const(64)), symbol("j", lo=0, extent=const(1024))


def below(expression: Expr, limit: int) -> Scalar:
    return op("lt", index_value(expression), literal(limit, DType.I64))


def both(left: Scalar, right: Scalar) -> Scalar:
    return op("bitwise_and", left, right)


def guards(*shape: Expr | int) -> Guards:
    sizes = tuple(as_expr(size) for size in shape)
    return Guards({"x": Buffer(name="x", dtype=F64, shape=sizes, strides=make_contiguous_strides(sizes))})


def test_what_has_nothing_to_do_with_the_mask_goes_without() -> None:
    assert guards(64).narrow_mask(below(COLUMN, 1000), "x", (ROW,)) is None
    assert guards().narrow_mask(below(COLUMN, 1000), "x", ()) is None


def test_a_mask_that_is_never_true_stays() -> None:
    mask = below(COLUMN, 0)
    assert guards(64).narrow_mask(mask, "x", (ROW,)) is mask


def test_what_a_mask_of_the_loads_own_leaves_out_where_the_mask_holds_stays_guarded() -> None:
    """Where `j - 5` exists it is not below 0: a load at 0 is never reached, and there need be
    nothing at 0.
    """
    mask = op("ge", index_value(COLUMN), literal(5, DType.I64))
    assert guards(0).narrow_mask(mask, "x", (const(0),), below(COLUMN - 5, 0)) is mask
    assert guards(64).narrow_mask(mask, "x", (const(0),), below(ROW, 5)) is None
    assert guards(64).narrow_mask(mask, "x", (const(0),)) is None


@pytest.mark.parametrize("size", [1000, 1023])
def test_places_that_do_not_exist_stay_guarded(size: int) -> None:
    mask = below(COLUMN, 1000)
    assert guards(64, size).narrow_mask(mask, "x", (ROW, COLUMN)) is mask


def test_a_little_padding_in_memory_is_read() -> None:
    assert guards(64, 1024).narrow_mask(below(COLUMN, 1000), "x", (ROW, COLUMN)) is None


def test_much_is_not_read_in_vain() -> None:
    mask = below(COLUMN, 600)
    assert guards(64, 1024).narrow_mask(mask, "x", (ROW, COLUMN)) is mask


def test_what_may_be_negative_stays_guarded() -> None:
    mask = below(COLUMN, 1000)
    assert guards(64, 2048).narrow_mask(mask, "x", (ROW, COLUMN - 1)) is mask


def test_each_condition_guards_what_it_is_about() -> None:
    rows, columns = below(mod(ROW, const(8)), 7), below(COLUMN, 1000)
    mask = both(rows, columns)
    place = 7 * floordiv(ROW, const(8)) + mod(ROW, const(8))
    assert guards(56).narrow_mask(mask, "x", (place,)) is rows
    assert guards(56, 1024).narrow_mask(mask, "x", (place, COLUMN)) is rows
    assert guards(56, 1000).narrow_mask(mask, "x", (place, COLUMN)) is mask
    assert guards(1024).narrow_mask(mask, "x", (COLUMN,)) is None


def test_conditions_on_the_same_places_stay_together() -> None:
    # no column below 3 is more than 5, whatever the row
    mask = both(below(COLUMN, 3), op("gt", index_value(COLUMN), literal(5, DType.I64)))
    assert guards(64).narrow_mask(mask, "x", (ROW,)) is mask
    near = both(below(ROW + COLUMN, 50), below(ROW, 60))
    assert guards(64).narrow_mask(near, "x", (ROW,)) is near


def test_a_mask_about_one_known_place_that_does_not_hold_stays() -> None:
    """Not below 31 is 31, by however little: nothing says that the load is of an element."""
    mask = both(below(const(31), 31), op("ge", index_value(const(31)), literal(0, DType.I64)))
    assert guards(31, 31).narrow_mask(mask, "x", (const(31), const(11))) is mask
    assert guards(32, 31).narrow_mask(below(const(31), 32), "x", (const(31), const(11))) is None
    # nor of one that leaves little of a range which the load is not along
    never = both(below(COLUMN, 1000), op("ge", index_value(COLUMN), literal(1000, DType.I64)))
    assert guards(31).narrow_mask(never, "x", (const(31),)) is never


def test_what_data_says_stays() -> None:
    mask = op("lt", load("lengths", (COLUMN,), DType.I64), literal(3, DType.I64))
    assert guards(64).narrow_mask(mask, "x", (ROW,)) is mask


@pytest.mark.parametrize("limit, expected", [(512, 0.5), (1024, 1.0), (0, 0.0), (256, 0.25)])
def test_the_share_of_points_that_a_mask_lets_through(limit: int, expected: float) -> None:
    assert estimate_share(below(COLUMN, limit)) == expected
    looked_up = op("lt", load("x", (ROW,), F64), literal(0.0, F64))
    assert estimate_share(both(below(COLUMN, limit), looked_up)) == expected
    assert estimate_share(both(below(COLUMN, limit), below(ROW, 32))) == expected / 2


def test_conditions_along_one_range_are_taken_together() -> None:
    middle = both(below(COLUMN, 768), op("ge", index_value(COLUMN), literal(512, DType.I64)))
    assert estimate_share(middle) == 0.25
    assert estimate_share(None) == 1.0


def test_a_few_rows_of_many_are_counted() -> None:
    """Eight of 2,048 places, wherever they are, though places that are tried stand for 32 each."""
    many = symbol("m", lo=0, extent=const(2048))
    for start in (0, 5, 16, 1000, 2040):
        few = both(op("ge", index_value(many), literal(start, DType.I64)), below(many - start, 8))
        assert estimate_share(few) == 8 / 2048


@pytest.mark.parametrize("name", sorted(COMPARISONS))
@pytest.mark.parametrize("slope", [-3, -1, 1, 2])
def test_places_are_counted_as_comparisons_hold_there(name: str, slope: int) -> None:
    short, compare = symbol("s", lo=0, extent=const(20)), COMPARISONS[name]
    for start in (-61, -40, -3, 0, 1, 7, 20, 59):
        line, bound = short * slope + start, short + 3
        for left, right in ((line, const(6)), (const(-1), line), (line, bound), (bound, line)):
            mask = op(name, index_value(left), index_value(right))
            held = [
                compare(*(number_of(substitute(side, {short: const(place)})) for side in (left, right)))
                for place in range(20)
            ]
            if isinstance(mask, Op):
                assert estimate_share(mask) == sum(held) / 20
