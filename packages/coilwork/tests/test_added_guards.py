"""Guards that compiling added: what the log says of them."""

from __future__ import annotations

import logging

import pytest

from coilwork_lowering import AddedGuard
from coilwork_tools.explain.report import CONDITION, SHOWN, announce


def guards(count: int, condition: str) -> list[AddedGuard]:
    return [AddedGuard(condition=f"{condition}{i}", where=f"here.py:{i}") for i in range(count)]


def test_a_few_short_ones_are_said_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        texts = announce("g", guards(2, "s0 >= "))
    assert [record.getMessage() for record in caplog.records] == [
        f"graph g: compiling added a guard: {text}" for text in texts
    ]


def test_long_and_many_ones_are_cut_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    condition = f"Eq({'(s0//4) + ' * 500}7, "
    with caplog.at_level(logging.WARNING, logger="coilwork"):
        texts = announce("g", guards(SHOWN + 31, condition))
    assert [text.startswith(condition) for text in texts] == [True] * (SHOWN + 31)
    *lines, last = (record.getMessage() for record in caplog.records)
    assert len(lines) == SHOWN
    for i, line in enumerate(lines):
        assert len(line) < CONDITION + 120
        assert line.endswith(f"7, {i} for a step outside of lowering (by here.py:{i})")
    assert "31 more" in last
