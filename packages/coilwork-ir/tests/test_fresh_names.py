"""Names are given out once, in the form that was asked for."""

from __future__ import annotations

from coilwork_ir.fresh_names import FreshNames


def test_a_name_that_is_free_stays_as_it_is() -> None:
    names = FreshNames({"b", "b_1"})
    assert [names.close_to("a") for _ in range(3)] == ["a", "a_1", "a_2"]
    assert [names.close_to("b") for _ in range(2)] == ["b_2", "b_3"]
    assert [names.close_to("a_1") for _ in range(2)] == ["a_1_1", "a_1_2"]
    assert [FreshNames({"c"}).close_to("c", second=2)] == ["c_2"]


def test_numbers_count_per_stem_or_through() -> None:
    names = FreshNames({"x_1", "y3"})
    assert [names.make_suffixed("x") for _ in range(3)] == ["x_0", "x_2", "x_3"]
    assert names.make_suffixed("y") == "y_0"
    assert [names.make_numbered(stem) for stem in "xyxyy"] == ["x0", "y1", "x2", "y4", "y5"]
