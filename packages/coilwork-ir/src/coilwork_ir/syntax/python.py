"""The Python that kernels and modules are made of, as values: a small subset of the language.

`python_printer.py` prints it. Expressions are printed on one line, except where `Filled` or `Rows` lays them
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, a parameter, or a keyword that stands for a value, such as `None`."""

    id: str


@dataclass(frozen=True, slots=True)
class Number:
    """A finite literal; `number` spells infinities and NaN. A negative one binds like a unary minus."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal; `quote` says how it is quoted if it holds no quotation marks itself."""

    value: str
    quote: Literal['"', "'"] = '"'


@dataclass(frozen=True, slots=True)
class RawText:
    """A string literal of many lines, verbatim: source text."""

    value: str


@dataclass(frozen=True, slots=True)
class Joined:
    """`("one" "two")`: adjacent string literals, which are one string."""

    parts: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic on sizes, in the canonical text of `coilwork_ir.index`, which is Python; binds
    like a sum.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-operand`, `~operand`, `not operand`."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`; comparisons too, which do not chain."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Attribute:
    """`value.name`."""

    value: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """`function(*args, **kwargs)`."""

    function: Expression
    args: tuple[Expression, ...] = ()
    kwargs: tuple[tuple[str, Expression], ...] = ()


@dataclass(frozen=True, slots=True)
class Subscript:
    """`value[items]`; an item may be `EVERYTHING`, a bare colon."""

    value: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class List:
    """`[items]`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Tuple:
    """`(items)`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Dict:
    """`{key: value}`."""

    items: tuple[tuple[Expression, Expression], ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """A call or a tuple which, if too long for a line, has its items on as many lines as it takes.

    Items of lists among its items count as its own, so that they may stand on several lines, too.
    """

    value: Call | Tuple


@dataclass(frozen=True, slots=True)
class Rows:
    """A call or a display with each item on a line of its own, if it has any."""

    value: Call | List | Tuple | Dict | Joined


@dataclass(frozen=True, slots=True)
class Noted:
    """An expression with a comment behind it, at the end of its line."""

    value: Expression
    note: str


Expression: TypeAlias = (
    Name
    | Number
    | Text
    | RawText
    | Joined
    | Formula
    | Unary
    | Binary
    | Attribute
    | Call
    | Subscript
    | List
    | Tuple
    | Dict
    | Filled
    | Rows
    | Noted
)


@dataclass(frozen=True, slots=True)
class Assign:
    """`targets = value`; several targets unpack a tuple."""

    targets: tuple[str, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Unpack:
    """`(names) = value`, for any number of names."""

    target: Tuple | Filled
    value: Expression


@dataclass(frozen=True, slots=True)
class Do:
    """An expression evaluated for its effect: a store, an assertion."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Delete:
    """`del name, …`. Neighbours are printed as one."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Return:
    """`return values`."""

    values: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Raise:
    """`raise value`."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Import:
    """`import name as alias`, or `from package import name as alias`."""

    name: str
    alias: str = ""
    package: str = ""


@dataclass(frozen=True, slots=True)
class If:
    """`if condition: then`, and `else: otherwise` if there is anything."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class For:
    """`for variable in values: body`."""

    variable: str
    values: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class While:
    """`while condition: body`."""

    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`name`, or `name: annotation`."""

    name: str
    annotation: Expression | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function definition."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    decorators: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Docstring:
    """A triple-quoted string statement. Text that ends in a newline has the closing quotes on a line of their
    own.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Comment:
    """`# text`, one line per line of the text; `wrapped` ones take more where they are too long."""

    text: str
    wrapped: bool = False


@dataclass(frozen=True, slots=True)
class Blank:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Statements that are Python text already."""

    text: str


Statement: TypeAlias = (
    Assign
    | Unpack
    | Do
    | Delete
    | Return
    | Raise
    | Import
    | If
    | For
    | While
    | Function
    | Docstring
    | Comment
    | Blank
    | Verbatim
)

NONE: Final = Name("None")
EVERYTHING: Final = Name(":")


def call(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of a function that has a name of its own."""
    return Call(Name(name), args, tuple(kwargs.items()))


def method(value: Expression, name: str, *args: Expression, **kwargs: Expression) -> Call:
    """`value.name(...)`."""
    return Call(Attribute(value, name), args, tuple(kwargs.items()))


def number(value: int | float) -> Expression:
    """A literal; non-finite floats become `float("inf")` and the like."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return Call(Name("float"), (Text(repr(value)),))
    return Number(value)
