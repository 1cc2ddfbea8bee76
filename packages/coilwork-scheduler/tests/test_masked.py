"""What a mask says of the expressions in a load's offset."""

from __future__ import annotations

from declared import schedule

from coilwork_ir.dtypes import DType
from coilwork_ir.index import const, floordiv, mod, symbol
from coilwork_ir.scalar import const as literal
from coilwork_ir.scalar import index_value, load, op
from coilwork_ir.target import target
from coilwork_scheduler.kernels.masked import index_where

ROW = symbol("i", lo=0, extent=const(4096))


def below(expression, limit):
    return op("lt", index_value(expression), literal(limit, DType.I64))


def test_a_division_that_the_mask_makes_idle_goes_away():
    place = mod(ROW, const(1024))
    index = 51470336 * floordiv(place, const(1023)) + 50264 * mod(place, const(1023))
    assert index_where(index, below(place, 1023)) is 50264 * place
    assert index_where(index, op("bitwise_and", below(ROW, 5000), below(place, 1023))) is 50264 * place
    assert index_where(index, below(place, 1024)) is index


def test_quotient_and_remainder_come_together_again():
    place = mod(ROW, const(1024))
    index = 1024 * floordiv(ROW, const(1024)) + mod(place, const(1023))
    assert index_where(index, below(place, 1023)) is ROW


def test_either_of_two_conditions_says_nothing():
    place = mod(ROW, const(1024))
    index = mod(place, const(1023))
    assert index_where(index, op("bitwise_or", below(place, 1023), below(ROW, 7))) is index


def test_what_may_be_negative_is_divided():
    signed = symbol("s", lo=-8)
    index = mod(signed, const(16))
    assert index_where(index, below(signed, 16)) is index


def test_padding_a_flattened_slice_is_in_place(build, compare):
    """Rows 0 to 2 of each 4, flattened to 6 rows, padded back to 8: the element read is the
    element written.
    """
    build.input("x", 8, 5)

    def body(i, j):
        place = mod(i, const(4))
        row = 3 * floordiv(i, const(4)) + place
        # as a slice is flattened: row r of the six is row r // 3 * 4 + r % 3 of the eight
        source = 4 * floordiv(row, const(3)) + mod(row, const(3))
        mask = below(place, 3)
        return op("exp", load("x", (source, j), DType.F64, mask=mask, other=0.0))

    build.pointwise("y", [8, 5], body)
    made = compare(build.graph("y"))
    assert made.kernels[0].aliasing
    assert schedule(build.graph("y"), target("sm_90")).kernels[0].aliasing
