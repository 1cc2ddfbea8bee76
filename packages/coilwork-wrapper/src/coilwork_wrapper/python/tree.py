"""The little of Python's syntax that generated modules need, as values, and its one printer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

INDENT: Final = "    "
WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Line:
    """One simple statement."""

    text: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment on lines of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Blank:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A compound statement: `header:` and an indented body."""

    header: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Docstring:
    """A triple-quoted string statement."""

    text: str


@dataclass(frozen=True, slots=True)
class SourceText:
    """`name = r'''…'''`: source text of a kernel, verbatim."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Rows:
    """`name = (` one row per line `)`: a tuple too long for one line; `opening` and `closing` surround the rows."""

    opening: str
    rows: tuple[str, ...]
    closing: str


Statement: TypeAlias = Line | Remark | Blank | Suite | Docstring | SourceText | Rows


def print_module(statements: Iterable[Statement]) -> str:
    """Text of a module."""
    return "\n".join(line for statement in statements for line in _lines(statement, "")) + "\n"


def _lines(statement: Statement, indent: str) -> Iterator[str]:
    match statement:
        case Line(text):
            yield indent + text
        case Remark(text):
            for line in text.splitlines():
                yield f"{indent}# {line}".rstrip()
        case Blank():
            yield ""
        case Suite(header, body):
            yield f"{indent}{header}:"
            for inner in body:
                yield from _lines(inner, indent + INDENT)
        case Docstring(text):
            escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
            first, *rest = escaped.splitlines()
            yield f'{indent}"""{first}'
            for line in rest:
                yield f"{indent}{line}".rstrip()
            yield f'{indent}"""'
        case SourceText(name, text):
            yield f"{indent}{name} = {_verbatim(text)}"
        case Rows(opening, rows, closing):
            yield indent + opening
            for row in rows:
                yield indent + INDENT + row
            yield indent + closing


def _verbatim(text: str) -> str:
    """A raw string literal, unless its quotes would end it early."""
    if "'''" in text or text.endswith(("\\", "'")):
        return repr(text)
    return f"r'''{text}'''"
