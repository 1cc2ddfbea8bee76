"""The passes run in an order that is given reasons for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coilwork_ir.passes import Before
from coilwork_scheduler.pipeline import PASSES


def test_every_place_has_a_reason() -> None:
    assert PASSES.violations() == ()
    assert all(row.why for row in PASSES.passes)


@pytest.mark.parametrize("row", PASSES.order, ids=lambda row: f"{row.first} before {row.second}")
def test_every_reason_is_broken_by_some_other_order(row: Before) -> None:
    swap = {row.first: row.second, row.second: row.first}
    by_name = {one.name: one for one in PASSES.passes}
    swapped = replace(PASSES, passes=tuple(by_name[swap.get(name, name)] for name in PASSES.names))
    assert any(row.why in text for text in swapped.violations())
