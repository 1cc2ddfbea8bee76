"""The one printer of `tree` values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from coilwork_cpp_wrapper.tree import (
    Assign,
    Binary,
    Block,
    Braces,
    Call,
    Code,
    Declare,
    DeclareArray,
    Do,
    Element,
    Function,
    If,
    Item,
    Leave,
    Member,
    Name,
    Number,
    Real,
    Remark,
    Statement,
    Verbatim,
    Words,
)

WIDTH: Final = 110
# Higher binds tighter; C++ [expr].
_PRECEDENCE: Final[Mapping[str, int]] = {
    "*": 7, "/": 7, "%": 7, "+": 6, "-": 6, "<": 5, "<=": 5, "==": 4, "!=": 4, "&&": 3, "||": 2,
}  # fmt: skip
_PRIMARY: Final = 9
_PREFIX: Final = 8
_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "?": "\\?",
}


def code_text(code: Code) -> str:
    """`code` as C++."""
    return _code(code)[0]


def _code(code: Code) -> tuple[str, int]:
    match code:
        case Name(text):
            return text, _PRIMARY
        case Number(value):
            return _integer(value), _PREFIX if value < 0 else _PRIMARY
        case Real(value):
            return real_text(value), _PREFIX
        case Words(text):
            return string_text(text), _PRIMARY
        case Call(function, arguments):
            return f"{function}({', '.join(code_text(a) for a in arguments)})", _PRIMARY
        case Braces(items):
            return "{" + ", ".join(code_text(i) for i in items) + "}", _PRIMARY
        case Element(base, index):
            return f"{base}[{index}]", _PRIMARY
        case Member(base, name):
            text, own = _code(base)
            return f"{text if own == _PRIMARY else f'({text})'}.{name}", _PRIMARY
        case Binary(operator, left, right):
            level = _PRECEDENCE[operator]
            return f"{_at_least(left, level)} {operator} {_at_least(right, level + 1)}", level


def _at_least(code: Code, level: int) -> str:
    text, own = _code(code)
    return text if own >= level else f"({text})"


def _integer(value: int) -> str:
    if value == -(1 << 63):
        return "INT64_MIN"  # its digits alone do not fit the type
    return str(value) if -(1 << 31) < value < (1 << 31) else f"{value}LL"


def real_text(value: float) -> str:
    """A `double` literal; infinities and nan have none, so compiler builtins stand for them."""
    if math.isnan(value):
        return '__builtin_nan("")' if math.copysign(1.0, value) > 0 else '-__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return repr(value)


def string_text(text: str) -> str:
    """A string literal, in UTF-8; control characters become spaces."""
    return '"' + "".join(_ESCAPES.get(c, c if c.isprintable() else " ") for c in text) + '"'


def _statement(statement: Statement, depth: int) -> Iterator[str]:
    pad = "  " * depth
    match statement:
        case Declare(kind, name, value):
            yield f"{pad}{kind} {name};" if value is None else f"{pad}{kind} {name} = {code_text(value)};"
        case DeclareArray(kind, name, size, items):
            shown = f"[] = {code_text(Braces(items))}" if items else f"[{size}]"
            yield f"{pad}{kind} {name}{shown};"
        case Assign(target, value):
            yield f"{pad}{code_text(target)} = {code_text(value)};"
        case Do(expression):
            yield from _wrapped(expression, pad)
        case Remark(text):
            # A backslash at its end would pull the next line into the comment.
            yield from (f"{pad}// {line}".rstrip(" \\") for line in text.splitlines())
        case Block(head, body):
            yield f"{pad}{head} {{" if head else f"{pad}{{"
            yield from _body(body, depth + 1)
            yield f"{pad}}}"
        case If(condition, then, otherwise):
            yield f"{pad}if ({code_text(condition)}) {{"
            yield from _body(then, depth + 1)
            if otherwise:
                yield f"{pad}}} else {{"
                yield from _body(otherwise, depth + 1)
            yield f"{pad}}}"
        case Leave(word, value):
            yield f"{pad}{word};" if value is None else f"{pad}{word} {code_text(value)};"


def _wrapped(expression: Code, pad: str) -> Iterator[str]:
    """A call that is too long for a line has one argument per line."""
    text = f"{pad}{code_text(expression)};"
    if len(text) <= WIDTH or not isinstance(expression, Call) or len(expression.arguments) < 2:
        yield text
        return
    yield f"{pad}{expression.function}("
    *first, last = [code_text(a) for a in expression.arguments]
    for argument in first:
        yield f"{pad}    {argument},"
    yield f"{pad}    {last});"


def _body(statements: Iterable[Statement], depth: int) -> Iterator[str]:
    for statement in statements:
        yield from _statement(statement, depth)


def print_unit(heading: str, items: Iterable[Item]) -> str:
    """A translation unit under a comment."""
    lines = [f"// {line}".rstrip(" \\") for line in heading.splitlines()]
    for item in items:
        lines.append("")
        match item:
            case Verbatim(text):
                lines.append(text.strip("\n"))
            case Function(head, parameters, body, comment):
                lines += [f"// {line}".rstrip(" \\") for line in comment.splitlines()]
                lines += [f"{head}({', '.join(parameters)}) {{", *_body(body, 1), "}"]
    return "\n".join(lines) + "\n"
