"""Python trees and their printer: text that Python reads back, lines that fit, literals that mean what they
should.
"""

from __future__ import annotations

import ast
import io
import tokenize
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coilwork_ir.syntax.python import (
    EVERYTHING,
    NONE,
    WIDTH,
    Assign,
    Attribute,
    Binary,
    Blank,
    Call,
    Comment,
    Delete,
    Dict,
    Do,
    Docstring,
    Expression,
    Filled,
    For,
    Formula,
    Function,
    If,
    Import,
    Joined,
    List,
    Name,
    Noted,
    Number,
    Parameter,
    Raise,
    RawText,
    Return,
    Rows,
    Statement,
    Subscript,
    Text,
    Tuple,
    Unary,
    Unpack,
    Verbatim,
    While,
    call,
    method,
    number,
    print_expression,
    print_module,
)

A, B, C = Name("a"), Name("b"), Name("c")
ARITHMETIC = ("|", "^", "&", "<<", ">>", "+", "-", "*", "/", "//", "%")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
SPELLED = {
    ast.BitOr: "|", ast.BitXor: "^", ast.BitAnd: "&", ast.LShift: "<<", ast.RShift: ">>", ast.Add: "+",
    ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Lt: "<", ast.LtE: "<=",
    ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.USub: "-", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LEAVES: st.SearchStrategy[Expression] = st.one_of(
    st.sampled_from([A, B, C, NONE]),
    st.builds(Number, st.one_of(st.integers(0, 10**12), st.floats(0, 1e30), st.booleans())),
    st.builds(Text, TEXT, st.sampled_from("\"'")),
    st.builds(RawText, TEXT),
)


def is_no_tuple(expression: Expression) -> bool:
    return not isinstance(expression, Tuple)


def grow(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inner, max_size=3).map(tuple)
    return st.one_of(
        st.builds(Unary, st.sampled_from(["-", "~", "not"]), inner),
        st.builds(Binary, st.sampled_from(ARITHMETIC + COMPARISONS), inner, inner),
        st.builds(Attribute, inner, st.just("size")),
        st.builds(Call, inner, several, st.lists(st.tuples(st.just("key"), inner), max_size=1).map(tuple)),
        # `a[(b, c)]` is `a[b, c]` to Python
        st.builds(Subscript, inner, st.lists(inner.filter(is_no_tuple), min_size=1, max_size=2).map(tuple)),
        st.builds(List, several),
        st.builds(Tuple, several),
        st.builds(Dict, st.lists(st.tuples(inner, inner), max_size=2).map(tuple)),
    )


EXPRESSIONS = st.recursive(LEAVES, grow, max_leaves=14)


def read(node: ast.expr) -> Expression:
    """The tree that Python's own parser says a text is."""
    match node:
        case ast.Name(name):
            return Name(name)
        case ast.Constant(str() as value):
            return Text(value)
        case ast.Constant(None):
            return NONE
        case ast.Constant(int() | float() as value):
            return Number(value)
        case ast.UnaryOp(operator, operand):
            return Unary(SPELLED[type(operator)], read(operand))
        case ast.BinOp(left, operator, right):
            return Binary(SPELLED[type(operator)], read(left), read(right))
        case ast.Compare(left, [operator], [right]):
            return Binary(SPELLED[type(operator)], read(left), read(right))
        case ast.Attribute(value, name):
            return Attribute(read(value), name)
        case ast.Call(function, args, keywords):
            named = tuple((k.arg or "", read(k.value)) for k in keywords)
            return Call(read(function), tuple(map(read, args)), named)
        case ast.Subscript(value, ast.Tuple(items)):
            return Subscript(read(value), tuple(map(read, items)))
        case ast.Subscript(value, item):
            return Subscript(read(value), (read(item),))
        case ast.List(items):
            return List(tuple(map(read, items)))
        case ast.Tuple(items):
            return Tuple(tuple(map(read, items)))
        case ast.Dict(keys, values):
            return Dict(tuple((read(k), read(v)) for k, v in zip(keys, values, strict=True) if k is not None))
    raise AssertionError(ast.dump(node))


def plain(expression: Expression) -> Expression:
    """`expression` as a parser sees it, which knows nothing of layout and quotes."""
    match expression:
        case Text(value) | RawText(value):
            return Text(value)
        case Unary(operator, operand):
            return Unary(operator, plain(operand))
        case Binary(operator, left, right):
            return Binary(operator, plain(left), plain(right))
        case Attribute(value, name):
            return Attribute(plain(value), name)
        case Call(function, args, kwargs):
            named = tuple((key, plain(value)) for key, value in kwargs)
            return Call(plain(function), tuple(map(plain, args)), named)
        case Subscript(value, items):
            return Subscript(plain(value), tuple(map(plain, items)))
        case List(items):
            return List(tuple(map(plain, items)))
        case Tuple(items):
            return Tuple(tuple(map(plain, items)))
        case Dict(pairs):
            return Dict(tuple((plain(key), plain(value)) for key, value in pairs))
        case Filled(value) | Rows(value) | Noted(value):
            return plain(value)
        case _:
            return expression


@given(EXPRESSIONS)
def test_printed_expressions_are_read_back(expression: Expression) -> None:
    assert read(ast.parse(print_expression(expression), mode="eval").body) == plain(expression)


def test_every_kind_of_expression_has_a_text() -> None:
    fields: dict[type, Expression] = {
        Name: A, Number: Number(1), Text: Text("t"), RawText: RawText("t"), Joined: Joined((Text("t"),)),
        Formula: Formula("a + 1"), Unary: Unary("-", A), Binary: Binary("+", A, B), Attribute: Attribute(A,
        "b"),
        Call: Call(A), Subscript: Subscript(A, (B,)), List: List(()), Tuple: Tuple(()), Dict: Dict(()),
        Filled: Filled(Tuple(())), Rows: Rows(List(())), Noted: Noted(A, "why"),
    }  # fmt: skip
    assert set(fields) == set(get_args(Expression))
    for expression in fields.values():
        ast.parse(print_expression(expression), mode="eval")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (Binary("-", A, Binary("-", B, C)), "a - (b - c)"),
        (Binary("-", Binary("-", A, B), C), "a - b - c"),
        (Binary("*", Binary("+", A, B), C), "(a + b) * c"),
        (Binary("<", Binary("&", A, B), C), "a & b < c"),
        (Binary("<", Binary("<", A, B), C), "(a < b) < c"),
        (Binary("*", Number(-2), A), "-2 * a"),
        (Unary("not", Binary("==", A, B)), "not (a == b)"),
        (Unary("~", A), "~a"),
        (Attribute(Binary("+", A, B), "data"), "(a + b).data"),
        (method(Number(1), "to"), "(1).to()"),
        (call("f", A, key=B), "f(a, key=b)"),
        (Subscript(A, (EVERYTHING, NONE)), "a[:, None]"),
        (Tuple((A,)), "(a,)"),
        (Binary("<=", Formula("a + 1"), B), "a + 1 <= b"),
        (Binary("*", Formula("a + 1"), B), "(a + 1) * b"),
        (Text('say "hi"\n'), '"say \\"hi\\"\\n"'),
        (Text("it's", "'"), '"it\'s"'),
        (number(float("-inf")), 'float("-inf")'),
    ],
)
def test_parentheses_and_literals(expression: Expression, text: str) -> None:
    assert print_expression(expression) == text


ITEMS = st.lists(EXPRESSIONS, max_size=12).map(tuple)
KEYWORDS = st.lists(st.tuples(st.sampled_from("xyz"), EXPRESSIONS), unique_by=lambda pair: pair[0]).map(tuple)
LAID_OUT: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Filled, st.builds(Call, st.just(A), ITEMS, KEYWORDS)),
    st.builds(Filled, st.builds(Tuple, ITEMS)),
    st.builds(Rows, st.builds(Call, st.just(A), ITEMS, KEYWORDS)),
    st.builds(Rows, st.builds(List, ITEMS)),
    st.builds(
        Rows, st.builds(Tuple, st.lists(st.builds(Rows, st.builds(List, ITEMS)), max_size=3).map(tuple))
    ),
    st.builds(Rows, st.builds(Dict, st.lists(st.tuples(EXPRESSIONS, EXPRESSIONS), max_size=4).map(tuple))),
)


@given(LAID_OUT, st.booleans())
def test_what_is_laid_out_on_lines_means_the_same(value: Expression, noted: bool) -> None:
    written = Assign(("x",), Noted(value, "why") if noted else value)
    function = Function("f", (), (If(A, (written,)),))
    (definition,) = ast.parse(print_module([function])).body
    assert isinstance(definition, ast.FunctionDef) and isinstance(definition.body[0], ast.If)
    (assignment,) = definition.body[0].body
    assert isinstance(assignment, ast.Assign)
    assert read(assignment.value) == plain(value)


@given(st.lists(st.integers(10**3, 10**12), max_size=60))
def test_long_tuples_are_broken_and_keep_their_items(numbers: list[int]) -> None:
    text = print_module([Function("f", (), (Return((Filled(Tuple(tuple(map(Number, numbers)))),)),))])
    scope: dict[str, object] = {}
    exec(text, scope)
    function = scope["f"]
    assert callable(function) and function() == tuple(numbers)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_items_of_long_lists_fill_lines_too() -> None:
    names = List(tuple(Name(f"a_long_name_{k}") for k in range(20)))
    text = print_module([Do(Filled(call("f", A, names)))])
    assert max(map(len, text.splitlines())) <= WIDTH and len(text.splitlines()) == 6
    assert text.splitlines()[1].startswith("    a, [a_long_name_0, ")
    assert read(ast.parse(text, mode="eval").body) == call("f", A, names)


@given(TEXT)
def test_source_text_survives(text: str) -> None:
    scope: dict[str, str] = {}
    exec(print_module([Assign(("x",), RawText(text))]), scope)
    assert scope["x"] == text


@given(st.text(), st.booleans())
def test_docstrings_and_comments_do_not_end_early(text: str, wrapped: bool) -> None:
    body = (Docstring(text.replace("\0", "")), Comment(text, wrapped), Return((Number(7),)))
    scope: dict[str, object] = {}
    exec(print_module([Function("f", (), body)]).encode("utf-8", "replace"), scope)
    function = scope["f"]
    assert callable(function) and function() == 7


def test_neighbouring_deletes_are_one_and_empty_ones_none() -> None:
    body: list[Statement] = [Delete(("a",)), Delete(()), Delete(("b", "c")), Blank(), Delete(())]
    assert print_module(body) == "del a, b, c\n\n"
    many = print_module([Delete(tuple(f"a_long_name_{k}" for k in range(30)))])
    assert len(many.splitlines()) > 1 and max(map(len, many.splitlines())) <= WIDTH
    assert sum(len(node.targets) for node in ast.walk(ast.parse(many)) if isinstance(node, ast.Delete)) == 30


def test_long_comments_are_wrapped_if_they_may_be() -> None:
    text = print_module([Comment("word " * 60, wrapped=True)])
    assert max(map(len, text.splitlines())) <= WIDTH
    kinds = {token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)}
    assert kinds <= {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}
    assert print_module([Comment("word " * 60)]) == f"# {'word ' * 60}".rstrip() + "\n"


def test_a_condition_may_take_several_lines() -> None:
    names = tuple(Name(f"a_long_name_{k}") for k in range(20))
    text = print_module([If(Unary("not", Filled(call("f", *names))), (Return(()),))])
    assert text.splitlines()[0] == "if not f(" and text.splitlines()[-2:] == ["):", "    return"]


def test_every_statement_is_printed() -> None:
    inner: tuple[Statement, ...] = (
        Docstring("Does it.\nAt length.\n"),
        If(A, (Do(call("g")),), (If(B, (Raise(call("Error", Text("no"))),), (Assign(("a", "b"), C),)),)),
        For("k", call("range", Number(3)), (Unpack(Tuple((A,)), B),)),
        While(Binary("<", A, B), (Comment("why"), Return((A, B)))),
        Function("h", (), ()),
    )
    text = print_module(
        [
            Docstring("What it is."),
            Import("torch"),
            Import("runtime", "rt", "package"),
            Verbatim("x = 1\ny = 2\n"),
            Assign(("s",), Rows(Joined((Text("one\n"), Text("two"))))),
            Assign(("n",), Rows(Tuple((Noted(A, "first"), B)))),
            Function("f", (Parameter("a"), Parameter("B", Attribute(Name("tl"), "constexpr"))), inner, (C,)),
        ]
    )
    assert (
        text
        == '''"""What it is."""
import torch
from package import runtime as rt
x = 1
y = 2
s = (
    "one\\n"
    "two"
)
n = (
    a,  # first
    b,
)
@c
def f(a, B: tl.constexpr):
    """Does it.
    At length.
    """
    if a:
        g()
    elif b:
        raise Error("no")
    else:
        a, b = c
    for k in range(3):
        (a,) = b
    while a < b:
        # why
        return a, b
    def h():
        pass
'''
    )
    ast.parse(text)
