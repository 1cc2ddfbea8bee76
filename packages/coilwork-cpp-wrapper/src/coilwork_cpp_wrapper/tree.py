"""The little of C++'s syntax that emitted programs need, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Name:
    """An identifier, possibly qualified, or a literal that prints as itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Real:
    """A `double` literal."""

    value: float


@dataclass(frozen=True, slots=True)
class Words:
    """A string literal."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """`function(arguments)`; `function` may be `object.method`."""

    function: str
    arguments: tuple[Code, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`; left-associative."""

    operator: str
    left: Code
    right: Code


@dataclass(frozen=True, slots=True)
class Braces:
    """`{items}`."""

    items: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Element:
    """`base[index]`."""

    base: str
    index: int


@dataclass(frozen=True, slots=True)
class Member:
    """`object.name`."""

    object: Code
    name: str


Code: TypeAlias = Name | Number | Real | Words | Call | Binary | Braces | Element | Member


@dataclass(frozen=True, slots=True)
class Declare:
    """`type name = value;`; without a value default-initialised."""

    type: str
    name: str
    value: Code | None = None


@dataclass(frozen=True, slots=True)
class DeclareArray:
    """`type name[size];`, or with `items` `type name[] = {items};`."""

    type: str
    name: str
    size: int = 0
    items: tuple[Code, ...] = ()


@dataclass(frozen=True, slots=True)
class Assign:
    """`target = value;`."""

    target: Code
    value: Code


@dataclass(frozen=True, slots=True)
class Do:
    """`expression;`."""

    expression: Code


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment on lines of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """`head { body }`; an empty head gives a bare scope."""

    head: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """`if (condition) { then } else { otherwise }`."""

    condition: Code
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """`break;` or `return value;`."""

    word: str
    value: Code | None = None


Statement: TypeAlias = Declare | DeclareArray | Assign | Do | Remark | Block | If | Leave


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition under a comment."""

    head: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Text that is C++ already: the preamble, declarations."""

    text: str


Item: TypeAlias = Function | Verbatim
