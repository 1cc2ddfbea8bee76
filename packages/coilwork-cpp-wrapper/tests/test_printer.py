"""The printer of C++."""

from __future__ import annotations

import math

import pytest

from coilwork_cpp_wrapper.printer import code_text, print_unit, real_text, string_text
from coilwork_cpp_wrapper.tree import (
    Binary,
    Block,
    Braces,
    Call,
    Code,
    Declare,
    Do,
    Function,
    If,
    Leave,
    Member,
    Name,
    Number,
    Real,
    Remark,
    Words,
)

A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Binary("-", A, Binary("-", B, C)), "a - (b - c)"),
        (Binary("-", Binary("-", A, B), C), "a - b - c"),
        (Binary("*", Binary("+", A, B), C), "(a + b) * c"),
        (Binary("/", A, Binary("*", B, C)), "a / (b * c)"),
        (Binary("==", Binary("%", A, B), Number(0)), "a % b == 0"),
        (Binary("*", Number(-2), A), "-2 * a"),
        (Number(1 << 40), "1099511627776LL"),
        (Number(-(1 << 63)), "INT64_MIN"),
        (Call("f", (A, Braces((B, Number(1))))), "f(a, {b, 1})"),
        (Member(Binary("+", A, B), "data"), "(a + b).data"),
        (Words('say "hi"\n\\'), '"say \\"hi\\"\\n\\\\"'),
    ],
)
def test_code(code: Code, text: str) -> None:
    assert code_text(code) == text


def test_reals() -> None:
    assert [real_text(x) for x in (0.1, 1e-5, -2.0)] == ["0.1", "1e-05", "-2.0"]
    assert real_text(math.inf) == "__builtin_inf()"
    assert real_text(-math.inf) == "-__builtin_inf()"
    assert "nan" in real_text(math.nan)
    assert code_text(Real(3.0)) == "3.0"


def test_strings_hold_no_trigraphs_and_no_control_characters() -> None:
    assert string_text("??/\x07") == '"\\?\\?/ "'


def test_unit() -> None:
    body = (
        Declare("const int64_t", "n", Number(3)),
        Remark("a comment\\\nof two lines"),
        If(Binary("<", Name("n"), Number(4)), (Do(Call("f")),), (Leave("return"),)),
        Block("while (true)", (Leave("break"),)),
    )
    text = print_unit("Heading", [Function("static void g", ("int a",), body, "What g does.")])
    assert (
        text
        == """// Heading

// What g does.
static void g(int a) {
  const int64_t n = 3;
  // a comment
  // of two lines
  if (n < 4) {
    f();
  } else {
    return;
  }
  while (true) {
    break;
  }
}
"""
    )
