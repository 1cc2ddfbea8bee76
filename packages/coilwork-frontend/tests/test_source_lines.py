"""Lines of a program in texts about an equal one."""

from __future__ import annotations

from coilwork_frontend.source_lines import match_lines, pack_lines, unpack_lines

BEFORE = ["/a/model.py:3  x = y", "", "/a/model.py:13  z = x", "/a/model.py:3  x = y"]


def test_each_spelling_is_replaced() -> None:
    rename = match_lines(
        BEFORE, ["/b/model.py:13  x = y", "", "/b/model.py:33  z = x", "/b/model.py:13  x = y"]
    )
    assert rename is not None
    assert rename("launch k\n  model.py:3  x = y  [mul]") == "launch k\n  model.py:13  x = y  [mul]"
    assert rename("at /a/model.py:13: z = x") == "at /b/model.py:33: z = x"
    assert rename("model.py:130 and my_model.py:3") == "model.py:130 and my_model.py:3"


def test_equal_lines_change_nothing() -> None:
    assert match_lines(BEFORE, BEFORE) is str


def test_one_line_that_became_two_has_no_match() -> None:
    assert match_lines(BEFORE, [*BEFORE[:3], "/a/model.py:4  x = y"]) is None


def test_packed_lines_come_back() -> None:
    assert unpack_lines(pack_lines(BEFORE)) == BEFORE
