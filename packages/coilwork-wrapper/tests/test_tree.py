"""The printer of generated modules: lines that fit, and literals and comments that mean what they should."""

from __future__ import annotations

import ast
import io
import tokenize

from hypothesis import given
from hypothesis import strategies as st

from coilwork_wrapper.python.tree import (
    WIDTH,
    Blank,
    Delete,
    Docstring,
    Line,
    Listing,
    Remark,
    SourceText,
    Statement,
    Suite,
    print_module,
)


@given(st.text())
def test_source_text_survives(text: str) -> None:
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    scope: dict[str, str] = {}
    exec(print_module([SourceText("x", encodable)]), scope)
    assert scope["x"] == encodable


@given(st.text())
def test_docstrings_and_remarks_do_not_end_early(text: str) -> None:
    suite = Suite("def f()", (Docstring(text.replace("\0", "")), Remark(text), Line("return 7")))
    scope: dict[str, object] = {}
    exec(print_module([suite]).encode("utf-8", "replace"), scope)
    function = scope["f"]
    assert callable(function) and function() == 7


@given(st.lists(st.integers(10**3, 10**12), max_size=60))
def test_long_listings_are_broken_and_keep_their_items(numbers: list[int]) -> None:
    text = print_module([Suite("if True", (Listing("x = (", tuple(map(str, numbers)), ")", single=True),))])
    scope: dict[str, object] = {}
    exec(text, scope)
    assert scope["x"] == tuple(numbers)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_neighbouring_deletes_are_one_and_empty_ones_none() -> None:
    body: list[Statement] = [Delete(("a",)), Delete(()), Delete(("b", "c")), Blank(), Delete(())]
    assert print_module(body) == "del a, b, c\n\n"
    many = print_module([Delete(tuple(f"a_long_name_{k}" for k in range(30)))])
    assert len(many.splitlines()) > 1 and max(map(len, many.splitlines())) <= WIDTH
    assert sum(len(node.targets) for node in ast.walk(ast.parse(many)) if isinstance(node, ast.Delete)) == 30


def test_long_remarks_are_wrapped() -> None:
    text = print_module([Remark("word " * 60)])
    assert max(map(len, text.splitlines())) <= WIDTH
    kinds = {token.type for token in tokenize.generate_tokens(io.StringIO(text).readline)}
    assert kinds <= {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER}


def test_a_header_may_be_a_listing() -> None:
    names = tuple(f"a_long_name_{k}" for k in range(20))
    text = print_module([Suite(Listing("if not f(", names, "):"), (Line("pass"),))])
    ast.parse(text)
    assert text.splitlines()[-2:] == ["):", "    pass"]
