"""The order of steps."""

from __future__ import annotations

from graph_builder import Builder, Compare

from coilwork_ir.loops import Extern
from coilwork_scheduler.order import ExternalMemory, SchedulingUnit, count_live_bytes, order_units


def unit(position: int, before: tuple[int, ...], allocates: str, *touches: str) -> SchedulingUnit:
    made = ((allocates, 100),) if allocates else ()
    return SchedulingUnit(
        position=position,
        before=before,
        allocates=made,
        touches=(*touches, *((allocates,) if allocates else ())),
    )


def test_the_order_of_the_graph_is_kept_without_a_reason() -> None:
    units = [unit(0, (), "a"), unit(1, (), "b"), unit(2, (0, 1), "c", "a", "b")]
    assert order_units(units, ExternalMemory(kept=frozenset({"c"}))) == (0, 1, 2)


def test_what_frees_memory_goes_first() -> None:
    # three large values, each with a consumer that makes it small: one at a time is enough
    units = []
    for k in range(3):
        units.append(unit(k, (), f"big{k}"))
    for k in range(3):
        small = SchedulingUnit(
            position=3 + k, before=(k,), allocates=((f"small{k}", 1),), touches=(f"big{k}", f"small{k}")
        )
        units.append(small)
    assert order_units(units, ExternalMemory()) == (0, 3, 1, 4, 2, 5)


def test_returned_memory_is_not_counted_as_freed() -> None:
    units = [unit(0, (), "a"), unit(1, (), "b"), unit(2, (0,), "", "a")]
    assert order_units(units, ExternalMemory(kept=frozenset({"a", "b"}))) == (0, 1, 2)


def test_memory_that_several_fill_does_not_keep_the_first_of_them_back() -> None:
    # parts of a returned value, each made in a temporary and moved to its place
    units = [unit(k, (), f"part{k}") for k in range(3)]
    whole = (("whole", 300),)
    for begins in (True, False):
        first = SchedulingUnit(
            position=3, before=(0,), allocates=whole, touches=("part0", "whole"), begins=begins
        )
        others = [unit(3 + k, (k, 2 + k), "", f"part{k}", "whole") for k in (1, 2)]
        expected = (0, 3, 1, 4, 2, 5) if begins else (0, 1, 2, 3, 4, 5)
        assert order_units([*units, first, *others], ExternalMemory(kept=frozenset({"whole"}))) == expected


def test_what_is_given_is_freed_first() -> None:
    # of two that need a gradient, one is the last to need what the forward saved, the other makes more
    units = [
        unit(0, (), "gradient"),
        unit(1, (0,), "of input", "gradient"),
        unit(2, (0,), "of weight", "gradient", "saved"),
        unit(3, (1,), "result", "of input"),
    ]
    kept = frozenset({"of weight", "result"})
    assert order_units(units, ExternalMemory(kept=kept)) == (0, 1, 2, 3)
    assert order_units(units, ExternalMemory(kept=kept, given={"saved": 500})) == (0, 2, 1, 3)
    assert max(count_live_bytes(units, (0, 2, 1, 3), ExternalMemory(kept=kept, given={"saved": 500}))) == 700


def test_a_view_does_not_keep_its_readers_back() -> None:
    units = [
        unit(0, (), "gradient"),
        unit(1, (0,), "of input", "gradient"),
        SchedulingUnit(position=2, before=(0,), allocates=(), touches=("gradient",), is_view=True),
        unit(3, (2,), "of weight", "gradient", "saved"),
        unit(4, (1,), "result", "of input"),
    ]
    held = ExternalMemory(kept=frozenset({"of weight", "result"}), given={"saved": 500})
    assert order_units(units, held) == (0, 2, 3, 1, 4)


def test_memory_that_is_taken_over_counts_once() -> None:
    over = SchedulingUnit(
        position=1, before=(0,), allocates=(("b", 100),), touches=("a", "b"), in_place=(("b", "a"),)
    )
    beside = SchedulingUnit(position=1, before=(0,), allocates=(("b", 100),), touches=("a", "b"))
    first = unit(0, (), "a")
    assert count_live_bytes([first, over], (0, 1), ExternalMemory()) == [100, 100]
    assert count_live_bytes([first, beside], (0, 1), ExternalMemory()) == [100, 200]
    # somebody else needs it
    assert count_live_bytes([first, over], (0, 1), ExternalMemory(kept=frozenset({"a"}))) == [100, 200]
    later = unit(2, (0,), "", "a")
    assert count_live_bytes([first, over, later], (0, 1, 2), ExternalMemory()) == [100, 200, 100]
    other_size = SchedulingUnit(
        position=1, before=(0,), allocates=(("b", 50),), touches=("a", "b"), in_place=(("b", "a"),)
    )
    assert count_live_bytes([first, other_size], (0, 1), ExternalMemory()) == [100, 150]


def test_random_calls_keep_their_order_and_are_not_removed(build: Builder, compare: Compare) -> None:
    for k in range(3):
        build.extern(f"test.draw{k}", [], [build.buffer(f"d{k}", 4)], random=True)
    made = compare(build.graph("d2"))
    assert [s.target for s in made.steps if isinstance(s, Extern)] == [
        "test.draw0",
        "test.draw1",
        "test.draw2",
    ]
