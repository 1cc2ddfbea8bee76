"""The order of steps."""

from __future__ import annotations

from coilwork_scheduler.order import Unit, order


def unit(position, before, allocates, *touches):
    made = ((allocates, 100),) if allocates else ()
    return Unit(
        position=position,
        before=before,
        allocates=made,
        touches=(*touches, *((allocates,) if allocates else ())),
    )


def test_the_order_of_the_graph_is_kept_without_a_reason():
    units = [unit(0, (), "a"), unit(1, (), "b"), unit(2, (0, 1), "c", "a", "b")]
    assert order(units, frozenset({"c"})) == (0, 1, 2)


def test_what_frees_memory_goes_first():
    # three large values, each with a consumer that makes it small: one at a time is enough
    units = []
    for k in range(3):
        units.append(unit(k, (), f"big{k}"))
    for k in range(3):
        small = Unit(
            position=3 + k, before=(k,), allocates=((f"small{k}", 1),), touches=(f"big{k}", f"small{k}")
        )
        units.append(small)
    assert order(units, frozenset()) == (0, 3, 1, 4, 2, 5)


def test_returned_memory_is_not_counted_as_freed():
    units = [unit(0, (), "a"), unit(1, (), "b"), unit(2, (0,), "", "a")]
    assert order(units, frozenset({"a", "b"})) == (0, 1, 2)


def test_memory_that_several_fill_does_not_keep_the_first_of_them_back():
    # parts of a returned value, each made in a temporary and moved to its place
    units = [unit(k, (), f"part{k}") for k in range(3)]
    whole = (("whole", 300),)
    for begins in (True, False):
        first = Unit(position=3, before=(0,), allocates=whole, touches=("part0", "whole"), begins=begins)
        others = [unit(3 + k, (k, 2 + k), "", f"part{k}", "whole") for k in (1, 2)]
        expected = (0, 3, 1, 4, 2, 5) if begins else (0, 1, 2, 3, 4, 5)
        assert order([*units, first, *others], frozenset({"whole"})) == expected
