"""A small typed tree for the Triton Python that kernels are written in.

Only what generated kernels need. Nodes are values; `printer.py` is the one place where they become text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Name:
    """A variable or parameter."""

    id: str


@dataclass(frozen=True, slots=True)
class Number:
    """A finite literal. Infinities and NaN are calls of `float`; a negative one binds like a unary minus."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Text:
    """A string literal."""

    value: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-operand`, `~operand`."""

    operator: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Binary:
    """`left operator right`; comparisons too."""

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
class Index:
    """`value[items]`: indexing that inserts dimensions, as in `v[:, None]`. An item is `":"` or `"None"`."""

    value: Expression
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class List:
    """`[items]`."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Tuple:
    """`(items)`."""

    items: tuple[Expression, ...]


Expression: TypeAlias = Name | Number | Text | Unary | Binary | Attribute | Call | Index | List | Tuple


@dataclass(frozen=True, slots=True)
class Assign:
    """`targets = value`; several targets unpack a tuple."""

    targets: tuple[str, ...]
    value: Expression


@dataclass(frozen=True, slots=True)
class Do:
    """An expression evaluated for its effect: a store, an assertion."""

    value: Expression


@dataclass(frozen=True, slots=True)
class For:
    """`for variable in range(start, stop, step): body`; with `stages`, so many iterations are in flight at once."""

    variable: str
    start: Expression
    stop: Expression
    step: Expression
    body: tuple[Statement, ...]
    stages: Expression | None = None


@dataclass(frozen=True, slots=True)
class While:
    """`while condition: body`."""

    condition: Expression
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """`if condition: then`, and `else: otherwise` if there is anything."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Comment:
    """One line `# text`."""

    text: str


@dataclass(frozen=True, slots=True)
class Return:
    """`return values`, at the end of a device function."""

    values: tuple[Expression, ...]


Statement: TypeAlias = Assign | Do | For | While | If | Comment | Return


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter; `constexpr` ones are compile-time constants."""

    name: str
    constexpr: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A `@triton.jit` function; `doc` is its docstring's lines. Without `inline` it stays a function of its own."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]
    doc: tuple[str, ...] = ()
    inline: bool = True


@dataclass(frozen=True, slots=True)
class Library:
    """A `@triton.jit` function taken from `functions/` as it stands there."""

    source: str


@dataclass(frozen=True, slots=True)
class Module:
    """A source file: docstring lines, comment lines that follow it, functions."""

    doc: tuple[str, ...]
    notes: tuple[str, ...]
    functions: tuple[Function | Library, ...]


def tl(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of `triton.language`'s function `name`."""
    return Call(Attribute(Name("tl"), name), args, tuple(kwargs.items()))


def tl_name(name: str) -> Attribute:
    """`tl.name`: an element type or constant of `triton.language`."""
    return Attribute(Name("tl"), name)


def method(value: Expression, name: str, *args: Expression, **kwargs: Expression) -> Call:
    """`value.name(...)`."""
    return Call(Attribute(value, name), args, tuple(kwargs.items()))


def call(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of a function of the module itself."""
    return Call(Name(name), args, tuple(kwargs.items()))


def number(value: int | float) -> Expression:
    """A literal; non-finite floats become `float("inf")` and the like."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return Call(Name("float"), (Text(repr(value)),))
    return Number(value)


def binary(operator: str, left: Expression, right: Expression) -> Binary:
    """`left operator right`."""
    return Binary(operator, left, right)


def conjunction(conditions: tuple[Expression, ...]) -> Expression | None:
    """`a & b & …`, or None of none."""
    result: Expression | None = None
    for condition in conditions:
        result = condition if result is None else Binary("&", result, condition)
    return result
