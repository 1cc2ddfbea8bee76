"""The one printer of C++: parentheses, lines and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.syntax.cpp import (
    Assign,
    Binary,
    Braces,
    Break,
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
)

# Higher binds tighter; C++ [expr].
_STRENGTH: Final[Mapping[str, int]] = {
    "*": 13, "/": 13, "%": 13, "+": 12, "-": 12, "<<": 11, ">>": 11, "<": 10, "<=": 10, ">": 10, ">=": 10,
    "==": 9, "!=": 9, "&": 8, "^": 7, "|": 6, "&&": 5, "||": 4,
}  # fmt: skip
_SELECT: Final = 3
_PREFIX: Final = 14
_POSTFIX: Final = 15
# Beside each other and in comparisons, these are read right by everybody.
_FAMILIAR: Final = frozenset("+-*/")


@dataclass(frozen=True, slots=True, kw_only=True)
class CppPrinter:
    """Prints C++.

    Attributes:
        clear: put parentheses where C++ needs none but readers may go astray, as around `a % b` in `(a % b) *
            c`.
        width: statements that are longer, and call something, have an argument per line; None: no limit.
    """

    clear: bool = False
    width: int | None = None

    def source(self, source: Source) -> str:
        """The whole file, ending in a newline."""
        lines = list(_comment(source.heading, ""))
        for item in source.items:
            lines.append("")
            match item:
                case Verbatim(text):
                    lines.append(text.strip("\n"))
                case Struct(name, fields):
                    lines += [f"struct {name} {{", *(f"  {field};" for field in fields), "};"]
                case Function(head, parameters, body, comment):
                    lines += _comment(comment, "")
                    lines += [f"{head}({', '.join(parameters)}) {{", *self._body(body, "  "), "}"]
        return "\n".join(lines) + "\n"

    def code(self, code: Code) -> str:
        """`code`, with the parentheses it needs."""
        return self._code(code)[0]

    def _code(self, code: Code) -> tuple[str, int]:
        """Text and binding strength."""
        match code:
            case Name(text):
                return text, _POSTFIX
            case Literal(text):
                return text, _PREFIX if text.startswith("-") else _POSTFIX
            case Unary(operator, operand):
                # `--a` is an operator of its own
                inner = self._bracket_below(operand, _POSTFIX if operator == "-" else _PREFIX)
                return operator + inner, _PREFIX
            case Binary(operator, left, right):
                level = _STRENGTH[operator]
                shown = (
                    f"{self._side(left, operator, level)} {operator} {self._side(right, operator, level + 1)}"
                )
                return shown, level
            case Select(condition, then, otherwise):
                parts = [self._bracket_below(part, _SELECT + 1) for part in (condition, then, otherwise)]
                return f"{parts[0]} ? {parts[1]} : {parts[2]}", _SELECT
            case Call(function, arguments):
                return f"{function}({self._list(arguments)})", _POSTFIX
            case Braces(items):
                return f"{{{self._list(items)}}}", _POSTFIX
            case Element(base, offset):
                return f"{self._bracket_below(base, _POSTFIX)}[{self.code(offset)}]", _POSTFIX
            case Member(base, name):
                return f"{self._bracket_below(base, _POSTFIX)}.{name}", _POSTFIX

    def _list(self, codes: Iterable[Code]) -> str:
        return ", ".join([self.code(code) for code in codes])

    def _bracket_below(self, code: Code, level: int) -> str:
        text, own = self._code(code)
        return text if own >= level else f"({text})"

    def _side(self, code: Code, operator: str, level: int) -> str:
        text, own = self._code(code)
        if own < level or (self.clear and isinstance(code, Binary) and _may_confuse(code.operator, operator)):
            return f"({text})"
        return text

    def _body(self, statements: Iterable[Statement], pad: str) -> Iterator[str]:
        for statement in statements:
            yield from self._statement(statement, pad)

    def _statement(self, statement: Statement, pad: str) -> Iterator[str]:
        match statement:
            case Comment(text):
                yield from _comment(text, pad)
            case Declare(kind, name, value):
                yield f"{pad}{kind} {name};" if value is None else f"{pad}{kind} {name} = {self.code(value)};"
            case DeclareArray(kind, name, size, items, alignment):
                aligned = f"alignas({alignment}) " if alignment else ""
                shown = f"[] = {{{self._list(items)}}}" if items else f"[{size}]"
                yield f"{pad}{aligned}{kind} {name}{shown};"
            case Assign(target, value, operator):
                yield f"{pad}{self.code(target)} {operator} {self.code(value)};"
            case Do(expression):
                yield from self._effect(expression, pad)
            case Return(value):
                yield f"{pad}return;" if value is None else f"{pad}return {self.code(value)};"
            case Break():
                yield f"{pad}break;"
            case If(condition, then, otherwise):
                yield from self._block(f"if ({self.code(condition)}) {{", then, pad, closed=not otherwise)
                if otherwise:
                    yield from self._block("} else {", otherwise, pad)
            case For(v, begin, end, body, step, simd):
                if simd:
                    yield f"{pad}#pragma omp simd"
                advance = f"++{v}" if step == 1 else f"{v} += {step}"
                head = f"for (i64 {v} = {self.code(begin)}; {v} < {self.code(end)}; {advance}) {{"
                yield from self._block(head, body, pad)
            case While(condition, body):
                yield from self._block(f"while ({self.code(condition)}) {{", body, pad)
            case Scope(body):
                yield from self._block("{", body, pad)

    def _block(self, head: str, body: Iterable[Statement], pad: str, *, closed: bool = True) -> Iterator[str]:
        yield pad + head
        yield from self._body(body, f"{pad}  ")
        if closed:
            yield f"{pad}}}"

    def _effect(self, expression: Code, pad: str) -> Iterator[str]:
        text = f"{pad}{self.code(expression)};"
        is_long = self.width is not None and len(text) > self.width
        if not is_long or not isinstance(expression, Call) or len(expression.arguments) < 2:
            yield text
            return
        yield f"{pad}{expression.function}("
        *first, last = [self.code(a) for a in expression.arguments]
        for argument in first:
            yield f"{pad}    {argument},"
        yield f"{pad}    {last});"


def _comment(text: str, pad: str) -> Iterator[str]:
    # a backslash at its end would pull the next line into the comment
    return (f"{pad}// {line}".rstrip(" \\") for line in text.splitlines())


def _may_confuse(inner: str, outer: str) -> bool:
    """True for operators that mean what they should beside each other, but not to every reader."""
    if inner == outer:
        return False
    return inner not in _FAMILIAR or not (outer in _FAMILIAR or _STRENGTH[outer] in (9, 10))
