"""The C++ that kernels are made of, as values: a small subset of the language, printed by `printer.py`.

Types are written as text (`"float"`, `"const i64"`); everything else is a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal, spelled in C++."""

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """A prefix operator: `-`, `~`, `!`, `&`, `*`."""

    operator: str
    operand: Code


@dataclass(frozen=True, slots=True)
class Binary:
    """An infix operator."""

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
    """A function call, or with a type's name a conversion: `i64(x)`."""

    function: str
    arguments: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Element:
    """`base[offset]`."""

    base: Code
    offset: Code


Code: TypeAlias = Name | Literal | Unary | Binary | Select | Call | Element


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
    """`type name[size];`, aligned to a cache line."""

    type: str
    name: str
    size: int


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
class If:
    """`if (condition) { body }`."""

    condition: Code
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`for (i64 variable = begin; variable < end; variable += step) { body }`; `simd`: iterations are independent."""

    variable: str
    begin: Code
    end: Code
    body: tuple[Statement, ...]
    step: int = 1
    simd: bool = False


@dataclass(frozen=True, slots=True)
class Scope:
    """`{ body }`."""

    body: tuple[Statement, ...]


Statement: TypeAlias = Comment | Declare | DeclareArray | Assign | Do | Return | If | For | Scope


@dataclass(frozen=True, slots=True)
class Function:
    """`head(parameters) { body }`; `head` is the linkage, the return type and the name."""

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
class Source:
    """A file: heading comment, verbatim declarations, then structs and functions in order."""

    heading: str
    declarations: tuple[str, ...]
    items: tuple[Struct | Function, ...]


ZERO = Literal("0")
ONE = Literal("1")


def is_atomic(code: Code) -> bool:
    """True where a second use of `code` costs nothing."""
    return isinstance(code, Name | Literal)


def called(source: tuple[Struct | Function, ...]) -> frozenset[str]:
    """Names of all functions that `source` calls."""
    found: set[str] = set()
    codes: list[Code] = []
    statements: list[Statement] = [s for item in source if isinstance(item, Function) for s in item.body]
    while statements:
        match statements.pop():
            case Declare(value=value) | Return(value=value):
                codes.extend(() if value is None else (value,))
            case Assign(target=target, value=value):
                codes.extend((target, value))
            case Do(expression=value):
                codes.append(value)
            case If(condition=value, body=body):
                codes.append(value)
                statements.extend(body)
            case For(begin=begin, end=end, body=body):
                codes.extend((begin, end))
                statements.extend(body)
            case Scope(body=body):
                statements.extend(body)
            case Comment() | DeclareArray():
                pass
    while codes:
        match codes.pop():
            case Call(function=name, arguments=arguments):
                found.add(name)
                codes.extend(arguments)
            case Unary(operand=operand):
                codes.append(operand)
            case Binary(left=left, right=right):
                codes.extend((left, right))
            case Select(condition=condition, then=then, otherwise=otherwise):
                codes.extend((condition, then, otherwise))
            case Element(base=base, offset=offset):
                codes.extend((base, offset))
            case Name() | Literal():
                pass
    return frozenset(found)
