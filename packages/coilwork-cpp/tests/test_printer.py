"""The printer: parentheses that are needed or that help, and statements."""

from __future__ import annotations

from coilwork_cpp.text.printer import code_text, source_text
from coilwork_cpp.text.tree import (
    Assign,
    Binary,
    Call,
    Comment,
    Declare,
    Element,
    For,
    Function,
    If,
    Literal,
    Name,
    Select,
    Source,
    Struct,
    Unary,
    called,
)
from coilwork_cpp.values.indexing import index_code
from coilwork_ir.index import as_expr, maximum, minimum, symbol

A, B, C = Name("a"), Name("b"), Name("c")


def test_precedence() -> None:
    assert code_text(Binary("*", Binary("+", A, B), C)) == "(a + b) * c"
    assert code_text(Binary("+", Binary("*", A, B), C)) == "a * b + c"
    assert code_text(Binary("-", A, Binary("-", B, C))) == "a - (b - c)"
    assert code_text(Binary("-", Binary("-", A, B), C)) == "a - b - c"
    assert code_text(Unary("-", Unary("-", A))) == "-(-a)"
    assert code_text(Unary("-", Literal("-1"))) == "-(-1)"
    assert code_text(Element(A, Binary("+", B, C))) == "a[b + c]"
    assert code_text(Select(Binary("<", A, B), A, Select(C, A, B))) == "a < b ? a : (c ? a : b)"


def test_operators_that_readers_confuse_get_parentheses() -> None:
    assert code_text(Binary("|", Binary("&", A, B), Binary("<", A, C))) == "(a & b) | (a < c)"
    assert code_text(Binary("|", Binary("|", A, B), C)) == "a | b | c"
    assert code_text(Binary("<", Binary("+", A, B), C)) == "a + b < c"
    assert code_text(Binary("%", Binary("/", A, B), C)) == "(a / b) % c"


def test_statements() -> None:
    loop = For("i", Literal("0"), Name("n"), (Assign(Element(A, Name("i")), B, "+="),), simd=True)
    body = (Comment("why"), Declare("const float", "b", Call("f", (C,))), loop, If(A, (Declare("int", "d"),)))
    item = Function("static void g", ("i64 n",), body, comment="Does it.")
    text = source_text(
        Source(heading="file", declarations=("using x = int;",), items=(Struct("S", ("int a",)), item))
    )
    assert text == (
        "// file\n\nusing x = int;\n\nstruct S {\n  int a;\n};\n\n// Does it.\nstatic void g(i64 n) {\n"
        "  // why\n  const float b = f(c);\n  #pragma omp simd\n  for (i64 i = 0; i < n; ++i) {\n    a[i] += b;\n  }\n"
        "  if (a) {\n    int d;\n  }\n}\n"
    )
    assert called((item,)) == {"f"}


def test_index_expressions() -> None:
    n, m = symbol("n0", lo=0), symbol("m0")
    i = symbol("x0", extent=n)
    names = {n: Name("n0"), m: Name("m0"), i: Name("x0")}
    shown = {
        "x0 * 8 + 3": i * 8 + 3,
        "x0 / 4": i // 4,
        "(x0 % 4) * n0": (i % 4) * n,
        "floor_div<i64>(m0, 4)": m // 4,
        "floor_mod<i64>(m0, 4)": m % 4,
        "-m0": -m,
        "3 - m0": as_expr(3) - m,
        "min_i64(m0, 5)": minimum(m, 5),
        "max_i64(m0, 5)": maximum(m, 5),
    }
    for text, expr in shown.items():
        assert code_text(index_code(expr, names)) == text
