"""The C++ that kernels and programs are made of, as values: a small subset of the language.

`cpp_printer.py` prints it. Types are written as text (`"float"`, `"const i64"`); everything else is a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias


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
    """True where a second use of `code` costs nothing."""
    return isinstance(code, Name | Literal)


def list_called(items: Iterable[Item]) -> frozenset[str]:
    """Names of all functions that the functions among `items` call."""
    found: set[str] = set()
    codes = _codes(s for item in items if isinstance(item, Function) for s in item.body)
    while codes:
        code = codes.pop()
        if isinstance(code, Call):
            found.add(code.function)
        codes.extend(_operands(code))
    return frozenset(found)


def _codes(body: Iterable[Statement]) -> list[Code]:
    """The expressions that stand in `body`, also in loops and branches."""
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
