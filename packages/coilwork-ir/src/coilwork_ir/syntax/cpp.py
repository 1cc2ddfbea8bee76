"""The C++ that kernels and programs are made of: a small subset as a tree, and its one printer.

Types are written as text (`"float"`, `"const i64"`); everything else is a node. The printer sets parentheses,
lines and files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

# ---- Trees ----


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier, possibly qualified, or a keyword that stands for a value: `rt::none`, `nullptr`."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal, spelled in C++; `integer`, `real` and `string` spell values. Negative ones bind like a unary
    minus.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """A prefix operator: `-`, `~`, `!`, `&`, `*`."""

    operator: str
    operand: Code


@dataclass(frozen=True, slots=True)
class Binary:
    """An infix operator; left-associative."""

    operator: str
    left: Code
    right: Code


@dataclass(frozen=True, slots=True)
class Select:
    """`condition ? then : otherwise`."""

    condition: Code
    then: Code
    otherwise: Code


@dataclass(frozen=True, slots=True)
class Call:
    """A function call, or with a type's name a conversion: `i64(x)`; `function` may be `object.method`."""

    function: str
    arguments: tuple[Code, ...] = ()


@dataclass(frozen=True, slots=True)
class Braces:
    """`{items}`."""

    items: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Element:
    """`base[offset]`."""

    base: Code
    offset: Code


@dataclass(frozen=True, slots=True)
class Member:
    """`object.name`."""

    object: Code
    name: str


Code: TypeAlias = Name | Literal | Unary | Binary | Select | Call | Braces | Element | Member


@dataclass(frozen=True, slots=True)
class Comment:
    """`// text`, one line per line of the text."""

    text: str


@dataclass(frozen=True, slots=True)
class Declare:
    """`type name = value;`, or without a value `type name;`."""

    type: str
    name: str
    value: Code | None = None


@dataclass(frozen=True, slots=True)
class DeclareArray:
    """`type name[size];`, or with `items` `type name[] = {items};`. `alignment` is in bytes, 0 for the type's
    own.
    """

    type: str
    name: str
    size: int = 0
    items: tuple[Code, ...] = ()
    alignment: int = 0


@dataclass(frozen=True, slots=True)
class Assign:
    """`target = value;`, or with `operator` `+=` and so on."""

    target: Code
    value: Code
    operator: str = "="


@dataclass(frozen=True, slots=True)
class Do:
    """An expression for its effect."""

    expression: Code


@dataclass(frozen=True, slots=True)
class Return:
    """`return value;`."""

    value: Code | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """`break;`."""


@dataclass(frozen=True, slots=True)
class If:
    """`if (condition) { then }`, and `else { otherwise }` if there is anything."""

    condition: Code
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class For:
    """`for (i64 variable = begin; variable < end; variable += step) { body }`; `simd`: iterations are
    independent.
    """

    variable: str
    begin: Code
    end: Code
    body: tuple[Statement, ...]
    step: int = 1
    simd: bool = False


@dataclass(frozen=True, slots=True)
class While:
    """`while (condition) { body }`."""

    condition: Code
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """`{ body }`."""

    body: tuple[Statement, ...]


Statement: TypeAlias = (
    Comment | Declare | DeclareArray | Assign | Do | Return | Break | If | For | While | Scope
)


@dataclass(frozen=True, slots=True)
class Function:
    """`head(parameters) { body }` under a comment; `head` is the linkage, the return type and the name."""

    head: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct of plain fields, each spelled `type name`."""

    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text that is C++ already: a preamble, declarations."""

    text: str


Item: TypeAlias = Function | Struct | Verbatim


@dataclass(frozen=True, slots=True)
class Source:
    """A file: a comment at its head, then `items` in order."""

    heading: str
    items: tuple[Item, ...]


ZERO: Final = Literal("0")
ONE: Final = Literal("1")
_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\\\",
    '"': '\\"',
    "\n": "\\n",
    "\t": "\\t",
    "\r": "\\r",
    "?": "\\?",
}


def integer(value: int) -> Literal:
    """`value`, an `int` where it fits and a `long long` elsewhere."""
    if value == -(1 << 63):
        return Literal("INT64_MIN")  # its digits alone do not fit the type
    return Literal(str(value) if abs(value) < 1 << 31 else f"{value}LL")


def real(value: float) -> Literal:
    """`value` as a `double`; infinities and nan have no literals, so compiler builtins stand for them."""
    if math.isnan(value):
        return Literal('__builtin_nan("")' if math.copysign(1.0, value) > 0 else '-__builtin_nan("")')
    if math.isinf(value):
        return Literal("__builtin_inf()" if value > 0 else "-__builtin_inf()")
    return Literal(repr(value))


def string(text: str) -> Literal:
    """`text` as a string in UTF-8; control characters become spaces."""
    return Literal('"' + "".join(_ESCAPES.get(c, c if c.isprintable() else " ") for c in text) + '"')


def element(base: str, number: int) -> Element:
    """`base[number]` of the array called `base`."""
    return Element(Name(base), Literal(str(number)))


def is_atomic(code: Code) -> bool:
    """Tell if a second use of `code` costs nothing."""
    return isinstance(code, Name | Literal)


def list_called(items: Iterable[Item]) -> frozenset[str]:
    """Names of all functions that the functions among `items` call."""
    functions: set[str] = set()
    codes = _codes(s for item in items if isinstance(item, Function) for s in item.body)
    while codes:
        code = codes.pop()
        if isinstance(code, Call):
            functions.add(code.function)
        codes.extend(_operands(code))
    return frozenset(functions)


def is_mentioned(name: Name, body: Iterable[Statement]) -> bool:
    """Tell if an expression in `body` mentions `name`."""
    codes = _codes(body)
    while codes:
        code = codes.pop()
        if code == name:
            return True
        codes.extend(_operands(code))
    return False


def _codes(body: Iterable[Statement]) -> list[Code]:
    """Return the expressions that stand in `body`, also in loops and branches."""
    codes: list[Code] = []
    statements = list(body)
    while statements:
        match statements.pop():
            case Declare(value=value) | Return(value=value):
                codes.extend(() if value is None else (value,))
            case DeclareArray(items=items):
                codes.extend(items)
            case Assign(target=target, value=value):
                codes.extend((target, value))
            case Do(expression=value):
                codes.append(value)
            case If(condition=value, then=then, otherwise=otherwise):
                codes.append(value)
                statements.extend((*then, *otherwise))
            case For(begin=begin, end=end, body=inner):
                codes.extend((begin, end))
                statements.extend(inner)
            case While(condition=value, body=inner):
                codes.append(value)
                statements.extend(inner)
            case Scope(body=inner):
                statements.extend(inner)
            case Comment() | Break():
                pass
    return codes


def _operands(code: Code) -> tuple[Code, ...]:
    match code:
        case Name() | Literal():
            return ()
        case Unary(operand=operand) | Member(object=operand):
            return (operand,)
        case Binary(left=left, right=right):
            return left, right
        case Select(condition=condition, then=then, otherwise=otherwise):
            return condition, then, otherwise
        case Call(arguments=operands) | Braces(items=operands):
            return operands
        case Element(base=base, offset=offset):
            return base, offset


# ---- Printer ----


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
        """Return the whole file, ending in a newline."""
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
