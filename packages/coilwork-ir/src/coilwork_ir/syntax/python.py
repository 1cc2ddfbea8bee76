"""The Python that kernels and modules are made of: a small subset as a tree, and its one printer.

Expressions are printed on one line, except where `Filled` or `Rows` lays them out. The printer sets
parentheses, lines, literals and modules.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, assert_never

# ---- Trees ----


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
    """Return a call of a function that has a name of its own."""
    return Call(Name(name), args, tuple(kwargs.items()))


def method(value: Expression, name: str, *args: Expression, **kwargs: Expression) -> Call:
    """`value.name(...)`."""
    return Call(Attribute(value, name), args, tuple(kwargs.items()))


def number(value: int | float) -> Expression:
    """Return a literal; non-finite floats become `float("inf")` and the like."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return Call(Name("float"), (Text(repr(value)),))
    return Number(value)


# ---- Printer ----


WIDTH: Final = 110
INDENT: Final = "    "
# How strongly operators bind. Comparisons do not chain here.
_STRENGTH: Final[Mapping[str, int]] = {
    "<": 2, "<=": 2, ">": 2, ">=": 2, "==": 2, "!=": 2,
    "|": 3, "^": 4, "&": 5, "<<": 6, ">>": 6,
    "+": 7, "-": 7, "*": 8, "/": 8, "//": 8, "%": 8,
}  # fmt: skip
_NOT: Final = 1
_COMPARISON: Final = 2
_SUM: Final = 7
_PREFIX: Final = 9
_ATOM: Final = 10


def print_module(statements: Iterable[Statement]) -> str:
    """Return the statements as a file, which ends in a newline."""
    lines: list[str] = []
    _add_suite(statements, "", lines)
    return "\n".join(lines) + "\n"


def print_expression(expression: Expression) -> str:
    """`expression` on one line, with the parentheses it needs and no others."""
    return _TEXTS[type(expression)](expression)


def _operand(expression: Expression, least: int) -> str:
    """Return an operand that has to bind at least as strongly as `least`."""
    if type(expression) is Name:
        return expression.id
    text = print_expression(expression)
    if type(expression) in _ATOMS:
        return text
    return text if _strength(expression) >= least else f"({text})"


def _strength(expression: Expression) -> int:
    match expression:
        case Binary(operator):
            return _STRENGTH[operator]
        case Number():
            # negative ones have a minus, and `1.real` would begin like a fraction
            return _PREFIX
        case Unary(operator):
            return _NOT if operator == "not" else _PREFIX
        case Formula():
            return _SUM
        case Filled(value) | Rows(value) | Noted(value):
            return _strength(value)
        case _:
            return _ATOM


def _binary(binary: Binary) -> str:
    strength = _STRENGTH[binary.operator]
    # a comparison beside a comparison would chain, so neither side may be one
    least = strength + 1 if strength == _COMPARISON else strength
    return f"{_operand(binary.left, least)} {binary.operator} {_operand(binary.right, strength + 1)}"


def _unary(unary: Unary) -> str:
    space = " " if unary.operator == "not" else ""
    return f"{unary.operator}{space}{_operand(unary.operand, _PREFIX)}"


def _call(call: Call) -> str:
    return f"{_operand(call.function, _ATOM)}({', '.join(_arguments(call.args, call.kwargs))})"


def _arguments(args: Iterable[Expression], kwargs: Iterable[tuple[str, Expression]]) -> list[str]:
    return [*map(print_expression, args), *(f"{key}={print_expression(v)}" for key, v in kwargs)]


def _list(items: Iterable[Expression]) -> str:
    return ", ".join(map(print_expression, items))


def _tuple(items: Sequence[Expression]) -> str:
    return f"({print_expression(items[0])},)" if len(items) == 1 else f"({_list(items)})"


def _dict(pairs: Iterable[tuple[Expression, Expression]]) -> str:
    return f"{{{', '.join(f'{print_expression(key)}: {print_expression(v)}' for key, v in pairs)}}}"


def _text(text: Text) -> str:
    return repr(text.value) if text.quote == "'" else f'"{_escape(text.value)}"'


def _escape(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _raw(text: str) -> str:
    """Return a raw literal, unless it would not spell `text`: Python ends it early or reads line ends as
    newlines.
    """
    is_plain = text.replace("\n", "").replace("\t", "").isprintable()
    if not is_plain or "'''" in text or text.endswith(("\\", "'")):
        return repr(text)
    return f"r'''{text}'''"


# How each kind of expression is printed. Kernels are printed often: a look-up is what it costs to find out.
_TEXTS: Final[Mapping[type[Expression], Callable[[Any], str]]] = {
    Name: lambda name: name.id,
    Number: lambda number: repr(number.value),
    Text: _text,
    RawText: lambda text: _raw(text.value),
    Joined: lambda joined: f"({' '.join(map(_text, joined.parts))})",
    Formula: lambda formula: formula.text,
    Unary: _unary,
    Binary: _binary,
    Attribute: lambda attribute: f"{_operand(attribute.value, _ATOM)}.{attribute.name}",
    Call: _call,
    Subscript: lambda subscript: f"{_operand(subscript.value, _ATOM)}[{_list(subscript.items)}]",
    List: lambda display: f"[{_list(display.items)}]",
    Tuple: lambda display: _tuple(display.items),
    Dict: lambda display: _dict(display.items),
    Filled: lambda filled: print_expression(filled.value),
    Rows: lambda rows: print_expression(rows.value),
    Noted: lambda noted: print_expression(noted.value),
}


_LAID_OUT: Final = frozenset({Filled, Rows, Noted, Unary})
_ATOMS: Final = frozenset({Attribute, Call, Subscript, List, Tuple, Dict})
"""Expressions that no operator takes apart."""


def _add_suite(statements: Iterable[Statement], indent: str, lines: list[str]) -> None:
    deleted: list[str] = []
    for statement in statements:
        if isinstance(statement, Delete):
            deleted += statement.names
            continue
        if deleted:
            lines += _fill("del ", deleted, indent)
            deleted = []
        _add(statement, indent, lines)
    if deleted:
        lines += _fill("del ", deleted, indent)


def _add(statement: Statement, indent: str, lines: list[str]) -> None:
    match statement:
        case Assign(targets, value):
            _lay_out(f"{', '.join(targets)} = ", value, "", indent, lines)
        case Do(value):
            _lay_out("", value, "", indent, lines)
        case If(condition, then, otherwise):
            _add_block("if ", condition, then, indent, lines)
            while len(otherwise) == 1 and isinstance(otherwise[0], If):
                _add_block("elif ", otherwise[0].condition, otherwise[0].then, indent, lines)
                otherwise = otherwise[0].otherwise
            if otherwise:
                lines.append(f"{indent}else:")
                _add_suite(otherwise, indent + INDENT, lines)
        case For(variable, values, body):
            _add_block(f"for {variable} in ", values, body, indent, lines)
        case While(condition, body):
            _add_block("while ", condition, body, indent, lines)
        case Return(values):
            if len(values) == 1:
                _lay_out("return ", values[0], "", indent, lines)
            else:
                lines.append(f"{indent}return {_list(values)}".rstrip())
        case Comment(text, wrapped):
            lines += _comment(text, indent, wrapped=wrapped)
        case Blank():
            lines.append("")
        case Function():
            _add_function(statement, indent, lines)
        case Unpack(target, value):
            _lay_out("", target, f" = {print_expression(value)}", indent, lines)
        case Raise(value):
            lines.append(f"{indent}raise {print_expression(value)}")
        case Import(name, alias, package):
            source = f"from {package} " if package else ""
            lines.append(f"{indent}{source}import {name}{f' as {alias}' if alias else ''}")
        case Docstring(text):
            lines += _print_docstring(text, indent)
        case Verbatim(text):
            lines += text.splitlines()
        case Delete():
            _add_suite((statement,), indent, lines)
        case unreachable:
            assert_never(unreachable)


def _add_block(
    opening: str, condition: Expression, body: Iterable[Statement], indent: str, lines: list[str]
) -> None:
    _lay_out(opening, condition, ":", indent, lines)
    _add_suite(body, indent + INDENT, lines)


def _add_function(function: Function, indent: str, lines: list[str]) -> None:
    lines += [f"{indent}@{print_expression(decorator)}" for decorator in function.decorators]
    parameters = [_parameter(p) for p in function.parameters]
    header = f"{indent}def {function.name}({', '.join(parameters)}):"
    if len(header) <= WIDTH:
        lines.append(header)
    else:
        inner = indent + INDENT
        lines += [f"{indent}def {function.name}(", *(f"{inner}{p}," for p in parameters), f"{indent}):"]
    if function.body:
        _add_suite(function.body, indent + INDENT, lines)
    else:
        lines.append(f"{indent}{INDENT}pass")


def _parameter(parameter: Parameter) -> str:
    if parameter.annotation is None:
        return parameter.name
    return f"{parameter.name}: {print_expression(parameter.annotation)}"


def _lay_out(opening: str, expression: Expression, closing: str, indent: str, lines: list[str]) -> None:
    """Add `opening`, the expression and `closing`, on as many lines as they take."""
    if type(expression) not in _LAID_OUT:
        lines.append(f"{indent}{opening}{print_expression(expression)}{closing}")
        return
    match expression:
        case Filled(value):
            _lay_out_filled(opening, value, closing, indent, lines)
        case Rows(value):
            _lay_out_rows(opening, value, closing, indent, lines)
        case Noted(value, note):
            _lay_out(opening, value, closing, indent, lines)
            lines[-1] += f"  # {note}"
        case Unary("not", Filled() as operand):
            _lay_out(f"{opening}not ", operand, closing, indent, lines)
        case _:
            lines.append(f"{indent}{opening}{print_expression(expression)}{closing}")


def _lay_out_filled(opening: str, value: Call | Tuple, closing: str, indent: str, lines: list[str]) -> None:
    if isinstance(value, Call):
        head, args, kwargs, comma = f"{_operand(value.function, _ATOM)}(", value.args, value.kwargs, ""
    else:
        head, args, kwargs, comma = "(", value.items, (), "," if len(value.items) == 1 else ""
    pieces: list[str] = []
    for arg in args:
        if type(arg) is List:
            pieces += _pieces(arg)
        else:
            pieces.append(print_expression(arg))
    pieces += _arguments((), kwargs)
    whole = f"{indent}{opening}{head}{', '.join(pieces)}{comma}){closing}"
    if len(whole) <= WIDTH or not pieces:
        lines.append(whole)
        return
    lines.append(f"{indent}{opening}{head}")
    lines += _fill("", pieces, indent + INDENT, trailing=True)
    lines.append(f"{indent}){closing}")


def _pieces(argument: List) -> list[str]:
    """Texts that give `argument` when joined by commas: the items of a long list may stand on
    several lines.
    """
    if not argument.items:
        return [print_expression(argument)]
    pieces = [print_expression(item) for item in argument.items]
    pieces[0] = f"[{pieces[0]}"
    pieces[-1] = f"{pieces[-1]}]"
    return pieces


def _lay_out_rows(
    opening: str, value: Call | List | Tuple | Dict | Joined, closing: str, indent: str, lines: list[str]
) -> None:
    rows: list[tuple[str, Expression]]
    head, tail = "(", ")"
    match value:
        case Call(function, args, kwargs):
            head = f"{_operand(function, _ATOM)}("
            rows = [*(("", arg) for arg in args), *((f"{key}=", v) for key, v in kwargs)]
        case List(items):
            head, tail = "[", "]"
            rows = [("", item) for item in items]
        case Tuple(items) | Joined(items):
            rows = [("", item) for item in items]
        case Dict(pairs):
            head, tail = "{", "}"
            rows = [(f"{print_expression(key)}: ", v) for key, v in pairs]
    if not rows:
        lines.append(f"{indent}{opening}{head}{tail}{closing}")
        return
    comma = "" if isinstance(value, Joined) else ","
    lines.append(f"{indent}{opening}{head}")
    for start, row in rows:
        _lay_out(start, row, comma, indent + INDENT, lines)
    lines.append(f"{indent}{tail}{closing}")


def _fill(opening: str, items: Sequence[str], indent: str, *, trailing: bool = False) -> Iterator[str]:
    """Lines of `items`, separated by commas. `trailing`: each line ends in one, else each has `opening`."""
    line = ""
    for item in items:
        if line and len(indent) + len(line) + len(item) + 2 > WIDTH:
            yield indent + line
            line = ""
        if trailing:
            line += f"{' ' if line else ''}{item},"
        else:
            line += f", {item}" if line else f"{opening}{item}"
    if line:
        yield indent + line


def _comment(text: str, indent: str, *, wrapped: bool) -> Iterator[str]:
    for line in text.splitlines() or [""]:
        shown = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
        pieces = [shown]
        room = max(WIDTH - len(indent) - 2, len(INDENT) + 1)
        if wrapped and len(shown) > room:
            pieces = textwrap.wrap(
                shown.rstrip(),
                room,
                subsequent_indent=INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )
        for piece in pieces or [""]:
            yield f"{indent}# {piece}".rstrip()


def _print_docstring(text: str, indent: str) -> Iterator[str]:
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    # a quotation mark right before the closing ones would be read as one of them
    first, *rest = (f"{escaped}\n" if escaped.endswith('"') else escaped).split("\n")
    if not rest:
        yield f'{indent}"""{first}"""'
        return
    yield f'{indent}"""{first}'
    for line in rest[:-1]:
        yield f"{indent}{line}".rstrip()
    yield f'{indent}{rest[-1]}"""'
