"""Syntax errors show the line and a caret under the offending token."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coilwork_ir.errors import ParseError
from coilwork_ir.kernels.text import parse_kernel, parse_schedule
from coilwork_ir.loops.text import parse_graph
from coilwork_ir.program.text import parse_program
from coilwork_ir.text.reader import Reader, quote

GRAPH = """graph @g {
  input %x: f32[4]
  %y: f32[4] = pointwise [i0: 4] {
    t0 = load %x[i0] : f32
    t1 = neg(t0)
    yield t1
  }
  return (%y)
}
"""

BROKEN = (
    ("%x: f32[4]", "%x: f33[4]", 2, "unknown element type 'f33'", "f33"),
    ("neg(t0)", "nog(t0)", 5, "there is no scalar op 'nog'", "nog"),
    ("neg(t0)", "neg(t7)", 5, "t7 is not defined above", "t7"),
    ("neg(t0)", "add(t0)", 5, "add takes 2 operands, got 1", "t1 = add"),
    ("pointwise", "pintwise", 3, "there is no node kind 'pintwise'", "pintwise"),
    ("%x[i0]", "%x[i9]", 4, "i9", "i9"),
    ("return (%y)", "return (5)", 8, "expected %name, `size` or none", "5"),
    ("return (%y)\n}", "return (%y)", 9, "expected '}'", ""),
    ("return (%y)\n}", "return (%y)\n} more", 9, "expected the end", "more"),
)


@pytest.mark.parametrize("old, new, line, reason, token", BROKEN, ids=[b[3][:30] for b in BROKEN])
def test_an_error_points_at_its_token(old: str, new: str, line: int, reason: str, token: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(GRAPH.replace(old, new))
    error = caught.value
    assert error.code == "syntax"
    assert f"line {line}: " in error.what and reason in error.what
    shown, caret = error.node.split("\n")
    column = len(caret) - 1 - len("          ")
    assert caret.endswith("^")
    assert shown[column:].startswith(token)


@pytest.mark.parametrize("parse", [parse_graph, parse_kernel, parse_schedule, parse_program])
def test_other_text_is_refused(parse: Callable[[str], object]) -> None:
    for text in ("", "hello", "graph", "kernel @", "schedule @s {", "program @p {", "{}"):
        with pytest.raises(ParseError):
            parse(text)


def test_quoted_strings_are_read_back() -> None:
    for text in ("", 'a "b"', "back\\slash", "new\nline", "ünï ✓", "# no comment"):
        assert Reader(quote(text)).string() == text


def test_words_are_whole_words() -> None:
    reader = Reader("inputs input")
    assert not reader.accept("input")
    assert reader.name() == "inputs"
    assert reader.accept("input") and reader.is_at_end


def test_numbers_are_read_and_integers_are_whole() -> None:
    reader = Reader("-3 4.5 -1e-3 inf -inf nan")
    assert [reader.number() for _ in range(5)] == [-3, 4.5, -1e-3, float("inf"), float("-inf")]
    assert str(reader.number()) == "nan"
    with pytest.raises(ParseError, match="expected an integer"):
        Reader("4.5").integer()
