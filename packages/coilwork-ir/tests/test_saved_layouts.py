"""Orders of dimensions that values of open sizes are saved in."""

from __future__ import annotations

import itertools
import operator

import pytest

from coilwork_ir.index import Expr, as_expr, symbol
from coilwork_ir.saved_layouts import find_order, nest_strides


@pytest.mark.parametrize("order", list(itertools.permutations((-1, -2, -3))))
def test_strides_say_the_order_that_they_are_made_of(order: tuple[int, ...]) -> None:
    sizes = (symbol("s0"), as_expr(3), symbol("s0") + 1)
    strides = tuple(map(as_expr, nest_strides(sizes, order)))
    assert find_order(sizes, strides, same) == order
    assert find_order((5, 3, 6), nest_strides((5, 3, 6), order), operator.eq) == order


def same(one: Expr | int, other: Expr | int) -> bool:
    return as_expr(one) is as_expr(other)


def test_gaps_have_no_order() -> None:
    s = symbol("s0")
    assert find_order((s, as_expr(4)), (as_expr(8), as_expr(1)), same) is None
    assert find_order((4, s), (s * 2, as_expr(1)), same) is None


def test_a_dimension_of_one_element_has_any_stride() -> None:
    assert find_order((4, 1, 3), (3, 77, 1), operator.eq) == (-2, -3, -1)
    assert find_order((), (), operator.eq) == ()
