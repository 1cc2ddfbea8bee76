"""The passes run in an order that is given reasons for."""

from __future__ import annotations

from coilwork_scheduler.pipeline import PASS_NAMES
from coilwork_scheduler.sequence import ORDER, Before, violations


def test_the_pipeline_keeps_the_order_and_has_a_reason_for_every_place():
    assert violations(PASS_NAMES) == ()


def test_every_reason_is_broken_by_some_other_order():
    for row in ORDER:
        swapped = [{row.first: row.second, row.second: row.first}.get(name, name) for name in PASS_NAMES]
        assert any(row.why in text for text in violations(swapped)), row


def test_a_place_without_a_reason_is_found():
    rows = (Before("a", "b", "a makes what b reads"),)
    assert violations(("a", "b", "c"), rows) == ("nothing says why b runs before c",)


def test_unknown_and_repeated_passes_are_found():
    rows = (Before("a", "b", "a makes what b reads"), Before("a", "gone", "it was here once"))
    assert violations(("a", "b", "a"), rows) == (
        "a runs twice",
        "a must run before b: a makes what b reads",
        "there is no pass gone",
        "nothing says why b runs before a",
    )
