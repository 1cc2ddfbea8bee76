"""What a mask says of the expressions in a load's offset."""

from __future__ import annotations

from coilwork_ir.dtypes import DType
from coilwork_ir.index import const, floordiv, mod, symbol
from coilwork_ir.scalar import const as literal
from coilwork_ir.scalar import index_value, op
from coilwork_scheduler.kernels.compose import simplify_under_mask

ROW = symbol("i", lo=0, extent=const(4096))


def below(expression, limit):
    return op("lt", index_value(expression), literal(limit, DType.I64))


def test_a_division_that_the_mask_makes_idle_goes_away():
    place = mod(ROW, const(1024))
    index = 51470336 * floordiv(place, const(1023)) + 50264 * mod(place, const(1023))
    assert simplify_under_mask(index, below(place, 1023)) is 50264 * place
    assert (
        simplify_under_mask(index, op("bitwise_and", below(ROW, 5000), below(place, 1023))) is 50264 * place
    )
    assert simplify_under_mask(index, below(place, 1024)) is index


def test_quotient_and_remainder_come_together_again():
    place = mod(ROW, const(1024))
    index = 1024 * floordiv(ROW, const(1024)) + mod(place, const(1023))
    assert simplify_under_mask(index, below(place, 1023)) is ROW


def test_either_of_two_conditions_says_nothing():
    place = mod(ROW, const(1024))
    index = mod(place, const(1023))
    assert simplify_under_mask(index, op("bitwise_or", below(place, 1023), below(ROW, 7))) is index


def test_what_may_be_negative_is_divided():
    signed = symbol("s", lo=-8)
    index = mod(signed, const(16))
    assert simplify_under_mask(index, below(signed, 16)) is index
