"""The one printer of `tree` values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from coilwork_cpp.text.tree import (
    Assign,
    Binary,
    Call,
    Code,
    Comment,
    Declare,
    DeclareArray,
    Do,
    Element,
    For,
    Function,
    If,
    Literal,
    Name,
    Return,
    Scope,
    Select,
    Source,
    Statement,
    Struct,
    Unary,
)

# Higher binds tighter; C++ [expr].
_PRECEDENCE: Final[Mapping[str, int]] = {
    "*": 13, "/": 13, "%": 13, "+": 12, "-": 12, "<<": 11, ">>": 11, "<": 10, "<=": 10, ">": 10, ">=": 10,
    "==": 9, "!=": 9, "&": 8, "^": 7, "|": 6, "&&": 5, "||": 4,
}  # fmt: skip
_SELECT: Final = 3
_PREFIX: Final = 14
_POSTFIX: Final = 15
# Mixing these without parentheses compiles but misleads.
_CLEAR: Final = frozenset("+-*/")


def code_text(code: Code) -> str:
    """`code` as C++."""
    return _code(code)[0]


def _code(code: Code) -> tuple[str, int]:
    match code:
        case Name(text=text):
            return text, _POSTFIX
        case Literal(text=text):
            return text, _PREFIX if text.startswith("-") else _POSTFIX
        case Unary(operator=operator, operand=operand):
            inner = _at_least(operand, _POSTFIX if operator == "-" else _PREFIX)
            return operator + inner, _PREFIX
        case Binary(operator=operator, left=left, right=right):
            level = _PRECEDENCE[operator]
            return f"{_side(left, operator, level)} {operator} {_side(right, operator, level + 1)}", level
        case Select(condition=condition, then=then, otherwise=otherwise):
            parts = [_at_least(part, _SELECT + 1) for part in (condition, then, otherwise)]
            return f"{parts[0]} ? {parts[1]} : {parts[2]}", _SELECT
        case Call(function=function, arguments=arguments):
            return f"{function}({', '.join(code_text(a) for a in arguments)})", _POSTFIX
        case Element(base=base, offset=offset):
            return f"{_at_least(base, _POSTFIX)}[{code_text(offset)}]", _POSTFIX


def _at_least(code: Code, level: int) -> str:
    text, own = _code(code)
    return text if own >= level else f"({text})"


def _side(code: Code, operator: str, level: int) -> str:
    text, own = _code(code)
    if own < level:
        return f"({text})"
    if not isinstance(code, Binary) or code.operator == operator:
        return text
    if code.operator in _CLEAR and (operator in _CLEAR or _PRECEDENCE[operator] in (9, 10)):
        return text
    return f"({text})"


def _statement(statement: Statement, depth: int) -> Iterable[str]:
    pad = "  " * depth
    match statement:
        case Comment(text=text):
            yield from (f"{pad}// {line}".rstrip() for line in text.splitlines())
        case Declare(type=kind, name=name, value=None):
            yield f"{pad}{kind} {name};"
        case Declare(type=kind, name=name, value=value) if value is not None:
            yield f"{pad}{kind} {name} = {code_text(value)};"
        case DeclareArray(type=kind, name=name, size=size):
            yield f"{pad}alignas(64) {kind} {name}[{size}];"
        case Assign(target=target, value=value, operator=operator):
            yield f"{pad}{code_text(target)} {operator} {code_text(value)};"
        case Do(expression=expression):
            yield f"{pad}{code_text(expression)};"
        case Return(value=value):
            yield f"{pad}return;" if value is None else f"{pad}return {code_text(value)};"
        case If(condition=condition, body=body):
            yield f"{pad}if ({code_text(condition)}) {{"
            yield from _body(body, depth + 1)
            yield f"{pad}}}"
        case For(variable=v, begin=begin, end=end, body=body, step=step, simd=simd):
            if simd:
                yield f"{pad}#pragma omp simd"
            advance = f"++{v}" if step == 1 else f"{v} += {step}"
            yield f"{pad}for (i64 {v} = {code_text(begin)}; {v} < {code_text(end)}; {advance}) {{"
            yield from _body(body, depth + 1)
            yield f"{pad}}}"
        case Scope(body=body):
            yield f"{pad}{{"
            yield from _body(body, depth + 1)
            yield f"{pad}}}"


def _body(statements: Iterable[Statement], depth: int) -> Iterable[str]:
    for statement in statements:
        yield from _statement(statement, depth)


def source_text(source: Source) -> str:
    """The whole file, ending in a newline."""
    lines = [f"// {line}".rstrip() for line in source.heading.splitlines()]
    for declaration in source.declarations:
        lines += ["", declaration.strip("\n")]
    for item in source.items:
        lines.append("")
        match item:
            case Struct(name=name, fields=fields):
                lines += [f"struct {name} {{", *(f"  {field};" for field in fields), "};"]
            case Function(head=head, parameters=parameters, body=body, comment=comment):
                lines += [f"// {line}".rstrip() for line in comment.splitlines()]
                lines += [f"{head}({', '.join(parameters)}) {{", *_body(body, 1), "}"]
    return "\n".join(lines) + "\n"
