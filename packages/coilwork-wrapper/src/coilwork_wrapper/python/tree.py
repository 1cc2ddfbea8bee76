"""The little of Python's syntax that generated modules need, as values, and its one printer."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

INDENT: Final = "    "
WIDTH: Final = 110


@dataclass(frozen=True, slots=True)
class Line:
    """One simple statement."""

    text: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One simple statement with a list in brackets: `opening item, item closing`, on as many lines as it takes.

    `opening` ends and `closing` starts with a bracket. `single` items are followed by a comma, as a tuple of one is.
    """

    opening: str
    items: tuple[str, ...]
    closing: str
    single: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """`del name, …`. Neighbours are printed as one."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment on lines of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class Blank:
    """An empty line."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A compound statement: `header:` and an indented body. A header that is a listing closes with `):`."""

    header: str | Listing
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
    """`opening`, one row per line, `closing`: a tuple too long for one line; the rows are statements' texts or listings."""

    opening: str
    rows: tuple[str | Listing | Rows, ...]
    closing: str


Statement: TypeAlias = Line | Listing | Delete | Remark | Blank | Suite | Docstring | SourceText | Rows


def print_module(statements: Sequence[Statement]) -> str:
    """Text of a module."""
    return "\n".join(_block(statements, "")) + "\n"


def _block(statements: Sequence[Statement], indent: str) -> Iterator[str]:
    for kind, group in groupby(statements, key=type):
        if kind is Delete:
            names = [name for one in group if isinstance(one, Delete) for name in one.names]
            yield from _delete(names, indent)
        else:
            for statement in group:
                yield from _lines(statement, indent)


def _lines(statement: Statement, indent: str) -> Iterator[str]:
    match statement:
        case Line(text):
            yield indent + text
        case Listing():
            yield from _listing(statement, indent)
        case Delete(names):
            yield from _delete(names, indent)
        case Remark(text):
            yield from _remark(text, indent)
        case Blank():
            yield ""
        case Suite(header, body):
            yield from _lines(header, indent) if isinstance(header, Listing) else (f"{indent}{header}:",)
            yield from _block(body, indent + INDENT)
        case Docstring(text):
            escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
            first, *rest = escaped.splitlines() or [""]
            if not rest and not first.endswith('"'):
                yield f'{indent}"""{first}"""'
                return
            yield f'{indent}"""{first}'
            for line in rest:
                yield f"{indent}{line}".rstrip()
            yield f'{indent}"""'
        case SourceText(name, text):
            yield f"{indent}{name} = {_verbatim(text)}"
        case Rows(opening, rows, closing):
            yield indent + opening
            for row in rows:
                if isinstance(row, str):
                    yield indent + INDENT + row
                else:
                    yield from _lines(row, indent + INDENT)
            yield indent + closing


def _listing(listing: Listing, indent: str) -> Iterator[str]:
    comma = "," if listing.single and len(listing.items) == 1 else ""
    whole = f"{indent}{listing.opening}{', '.join(listing.items)}{comma}{listing.closing}"
    if len(whole) <= WIDTH or not listing.items:
        yield whole
        return
    yield indent + listing.opening
    yield from _filled(listing.items, indent + INDENT)
    yield indent + listing.closing


def _filled(items: Iterable[str], indent: str) -> Iterator[str]:
    line = ""
    for item in items:
        if line and len(indent) + len(line) + len(item) + 2 > WIDTH:
            yield indent + line
            line = ""
        line += f"{' ' if line else ''}{item},"
    yield indent + line


def _delete(names: Sequence[str], indent: str) -> Iterator[str]:
    line = ""
    for name in names:
        if line and len(indent) + len(line) + len(name) + 2 > WIDTH:
            yield indent + line
            line = ""
        line += f", {name}" if line else f"del {name}"
    if line:
        yield indent + line


def _remark(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        shown = "".join(c if c.isprintable() else " " for c in line).rstrip()
        room = max(WIDTH - len(indent) - 2, len(INDENT) + 1)
        pieces = textwrap.wrap(
            shown, room, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False
        )
        for piece in pieces or [""]:
            yield f"{indent}# {piece}".rstrip()


def _verbatim(text: str) -> str:
    """A raw string literal, unless it would not spell `text`: Python ends it early or reads line ends as newlines."""
    if "'''" in text or text.endswith(("\\", "'")) or not _plain(text):
        return repr(text)
    return f"r'''{text}'''"


def _plain(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable()
