"""C++ trees and their printer: parentheses that are needed or that help, literals, statements and files."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Braces,
    Break,
    Call,
    Code,
    Comment,
    CppPrinter,
    Declare,
    DeclareArray,
    Do,
    Element,
    For,
    Function,
    If,
    Literal,
    Member,
    Name,
    Return,
    Scope,
    Select,
    Source,
    Statement,
    Struct,
    Unary,
    Verbatim,
    While,
    element,
    integer,
    is_mentioned,
    list_called,
    real,
    string,
)

A, B, C = Name("a"), Name("b"), Name("c")
PRINTER, CLEAR = CppPrinter(), CppPrinter(clear=True)

# Operators from weak to strong, as the standard's grammar nests them.
LEVELS = (
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
    ("*", "/", "%"),
)  # fmt: skip
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+|<<|>>|<=|>=|==|!=|&&|\|\||--|[-+*/%<>&|^~!?:()\[\]{},.]")

CODES: st.SearchStrategy[Code] = st.recursive(
    st.sampled_from([A, B, C, integer(0), integer(7)]),
    lambda inner: st.one_of(
        st.builds(Unary, st.sampled_from("-~!&*"), inner),
        st.builds(Binary, st.sampled_from([op for level in LEVELS for op in level]), inner, inner),
        st.builds(Select, inner, inner, inner),
        st.builds(Call, st.just("f"), st.lists(inner, max_size=3).map(tuple)),
        st.builds(Element, inner, inner),
        st.builds(Member, inner, st.just("size")),
    ),
    max_leaves=12,
)


class Reader:
    """Reads expressions by the grammar of C++: what is printed must mean what was built."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(text)
        assert "".join(self.tokens) == text.replace(" ", "")

    def take(self, *wanted: str) -> str | None:
        return self.tokens.pop(0) if self.tokens and self.tokens[0] in wanted else None

    def expression(self) -> Code:
        condition = self.infix(0)
        if self.take("?") is None:
            return condition
        then = self.expression()
        assert self.take(":")
        return Select(condition, then, self.expression())

    def infix(self, level: int) -> Code:
        if level == len(LEVELS):
            return self.prefix()
        left = self.infix(level + 1)
        while operator := self.take(*LEVELS[level]):
            left = Binary(operator, left, self.infix(level + 1))
        return left

    def prefix(self) -> Code:
        operator = self.take("-", "~", "!", "&", "*")
        return self.postfix() if operator is None else Unary(operator, self.prefix())

    def postfix(self) -> Code:
        first = self.tokens.pop(0)
        code: Code = Literal(first) if first.isdigit() else Name(first)
        if first == "(":
            code = self.expression()
            assert self.take(")")
        while opened := self.take("(", "[", "."):
            if opened == ".":
                code = Member(code, self.tokens.pop(0))
            elif opened == "[":
                code = Element(code, self.expression())
                assert self.take("]")
            else:
                assert isinstance(code, Name)
                code = Call(code.text, tuple(self.arguments()))
        return code

    def arguments(self) -> list[Code]:
        found: list[Code] = []
        while self.take(")") is None:
            found.append(self.expression())
            self.take(",")
        return found


@given(CODES)
def test_printed_expressions_are_read_back(code: Code) -> None:
    for printer in (PRINTER, CLEAR):
        reader = Reader(printer.code(code))
        assert reader.expression() == code
        assert not reader.tokens


@given(CODES)
def test_clear_text_only_adds_parentheses(code: Code) -> None:
    bare = str.maketrans("", "", "()")
    assert CLEAR.code(code).translate(bare) == PRINTER.code(code).translate(bare)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (Binary("*", Binary("+", A, B), C), "(a + b) * c"),
        (Binary("+", Binary("*", A, B), C), "a * b + c"),
        (Binary("-", A, Binary("-", B, C)), "a - (b - c)"),
        (Binary("-", Binary("-", A, B), C), "a - b - c"),
        (Binary("/", A, Binary("*", B, C)), "a / (b * c)"),
        (Binary("==", Binary("%", A, B), integer(0)), "a % b == 0"),
        (Binary("*", integer(-2), A), "-2 * a"),
        (Unary("-", Unary("-", A)), "-(-a)"),
        (Unary("-", Literal("-1")), "-(-1)"),
        (Element(A, Binary("+", B, C)), "a[b + c]"),
        (element("args", 2), "args[2]"),
        (Select(Binary("<", A, B), A, Select(C, A, B)), "a < b ? a : (c ? a : b)"),
        (Call("f", (A, Braces((B, integer(1))))), "f(a, {b, 1})"),
        (Member(Binary("+", A, B), "data"), "(a + b).data"),
    ],
)
def test_parentheses_follow_precedence(code: Code, text: str) -> None:
    assert PRINTER.code(code) == text


def test_operators_that_readers_confuse_get_parentheses_in_clear_text() -> None:
    assert CLEAR.code(Binary("|", Binary("&", A, B), Binary("<", A, C))) == "(a & b) | (a < c)"
    assert CLEAR.code(Binary("|", Binary("|", A, B), C)) == "a | b | c"
    assert CLEAR.code(Binary("<", Binary("+", A, B), C)) == "a + b < c"
    assert CLEAR.code(Binary("%", Binary("/", A, B), C)) == "(a / b) % c"
    assert CLEAR.code(Binary("==", Binary("%", A, B), C)) == "(a % b) == c"


def test_integers_are_wide_where_they_have_to_be() -> None:
    assert integer(1 << 40).text == "1099511627776LL"
    assert integer(-(1 << 31)).text == "-2147483648LL"
    assert integer(-(1 << 63)).text == "INT64_MIN"


def test_reals_are_literals_or_builtins() -> None:
    assert [real(x).text for x in (0.1, 1e-5, -2.0)] == ["0.1", "1e-05", "-2.0"]
    assert real(math.inf).text == "__builtin_inf()"
    assert real(-math.inf).text == "-__builtin_inf()"
    assert "nan" in real(math.nan).text


def test_strings_hold_no_trigraphs_and_no_control_characters() -> None:
    assert string("??/\x07").text == '"\\?\\?/ "'
    assert string('say "hi"\n\\').text == '"say \\"hi\\"\\n\\\\"'


def test_file_of_every_statement_is_printed() -> None:
    loop = For("i", Literal("0"), Name("n"), (Assign(Element(A, Name("i")), B, "+="),), simd=True)
    body: tuple[Statement, ...] = (
        Comment("why\\\nof two lines"),
        Declare("const float", "b", Call("f", (C,))),
        DeclareArray("float", "t", 8, alignment=64),
        DeclareArray("int", "u", items=(integer(1), Call("v"))),
        loop,
        If(A, (Declare("int", "d"),), (Return(),)),
        While(Name("true"), (Break(),)),
        Scope((Do(Call("h", (Call("k"),))),)),
    )
    item = Function("static void g", ("i64 n",), body, comment="Does it.")
    struct = Struct("S", ("int a",))
    text = PRINTER.source(Source("file", (Verbatim("\nusing x = int;\n"), struct, item)))
    assert (
        text
        == """// file

using x = int;

struct S {
  int a;
};

// Does it.
static void g(i64 n) {
  // why
  // of two lines
  const float b = f(c);
  alignas(64) float t[8];
  int u[] = {1, v()};
  #pragma omp simd
  for (i64 i = 0; i < n; ++i) {
    a[i] += b;
  }
  if (a) {
    int d;
  } else {
    return;
  }
  while (true) {
    break;
  }
  {
    h(k());
  }
}
"""
    )
    assert list_called((struct, item)) == {"f", "h", "k", "v"}


def test_a_name_is_mentioned_wherever_it_stands() -> None:
    name, other = Name("x"), Name("y")
    inner = If(Binary("&", other, name), (Do(Call("f")),))
    assert is_mentioned(name, (For("i", Literal("0"), other, (inner,)),))
    assert not is_mentioned(name, (For("x", Literal("0"), other, (Do(Call("x", (other,))),)),))


def test_calls_too_long_for_a_line_have_an_argument_per_line() -> None:
    call = Call("rt::check", tuple(Name(f"a_long_name_of_an_argument_{k}") for k in range(5)))
    source = Source("file", (Function("void g", (), (Do(call),)),))
    lines = CppPrinter(width=110).source(source).splitlines()[3:-1]
    assert lines[0] == "  rt::check(" and lines[-1] == "      a_long_name_of_an_argument_4);"
    assert len(lines) == 6
    assert len(PRINTER.source(source).splitlines()[3:-1]) == 1
