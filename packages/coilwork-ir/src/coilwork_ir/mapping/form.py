"""The text forms of directives: one template for printing and parsing, so that both agree by construction.

A template is a line such as `loop {ranges:names} by {by:number} [stages {stages:number}] [{backward:flag}]`.
Words stand for themselves. `{field:kind}` is a field of the dataclass; kinds are

- `names`: names of ranges, arguments or values, separated by commas
- `name`: one of them
- `number`: closed or open (`numbers.py`); `numbers`: several, separated by commas
- `whole`: an integer that is never open; `wholes`: several, separated by commas
- `expr`: an index expression over open numbers, in backquotes
- `flag`: the field's own name if it is true, nothing if it is false
- anything else: one of the words that it lists, `{to:program|warp|thread}`

What stands between brackets is left out if its fields have their defaults; it begins with a word or is a
flag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from coilwork_ir.index import Expr, format_expr, symbol
from coilwork_ir.mapping.numbers import format_number, parse_number
from coilwork_ir.text.reader import Reader

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_TOKEN: Final = re.compile(r"\[|\]|\{(\w+):([^}]+)\}|[^\s\[\]{}]+")


@dataclass(frozen=True, slots=True)
class Word:
    """A word that stands for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a field."""

    field: str
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    """A part that is left out where its fields have their defaults."""

    items: tuple[Word | Slot, ...]


Item: TypeAlias = Word | Slot | Group


@cache
def parse_template(template: str) -> tuple[Item, ...]:
    """The items of `template`; the first one is the directive's keyword."""
    found: list[Item] = []
    group: list[Word | Slot] | None = None
    for token in _TOKEN.finditer(template):
        match token[0]:
            case "[":
                group = []
            case "]":
                assert group is not None, template
                found.append(Group(tuple(group)))
                group = None
            case _:
                item = Slot(token[1], token[2]) if token[1] else Word(token[0])
                (found if group is None else group).append(item)
    return tuple(found)


def print_form(template: str, value: Any) -> str:
    """The text of the dataclass `value` by `template`."""
    defaults = {f.name: f.default for f in fields(value)} if "[" in template else {}

    def shown(item: Word | Slot) -> str:
        if isinstance(item, Word):
            return item.text
        field = getattr(value, item.field)
        if item.kind == "flag":
            return item.field if field else ""
        return _PRINTERS.get(item.kind, str)(field)

    parts: list[str] = []
    for item in parse_template(template):
        if isinstance(item, Group):
            slots = [part for part in item.items if isinstance(part, Slot)]
            if any(getattr(value, slot.field) != defaults[slot.field] for slot in slots):
                parts += map(shown, item.items)
        else:
            parts.append(shown(item))
    return " ".join(part for part in parts if part)


def read_form(template: str, reader: Reader) -> dict[str, Any]:
    """The fields that `reader` spells by `template`, whose keyword has been read; those left out are not
    among them.
    """
    found: dict[str, Any] = {}
    for item in parse_template(template)[1:]:
        if not isinstance(item, Group):
            _read_item(item, reader, found)
            continue
        first, *rest = item.items
        lead = first.text if isinstance(first, Word) else first.field
        if not reader.accept(lead):
            continue
        if isinstance(first, Slot):
            found[first.field] = True
        for part in rest:
            _read_item(part, reader, found)
    return found


def _read_item(item: Word | Slot, reader: Reader, found: dict[str, Any]) -> None:
    if isinstance(item, Word):
        reader.expect(item.text)
    elif item.kind in _READERS:
        found[item.field] = _READERS[item.kind](reader)
    else:
        found[item.field] = reader.choice(tuple(item.kind.split("|")), f"the {item.field}")


def _print_list(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda values: ", ".join(map(show, values))


def _read_list(read: Callable[[Reader], Any]) -> Callable[[Reader], tuple[Any, ...]]:
    def apply(reader: Reader) -> tuple[Any, ...]:
        found = [read(reader)]
        while reader.accept(","):
            found.append(read(reader))
        return tuple(found)

    return apply


def _read_expr(reader: Reader) -> Expr:
    reader.expect("`")
    piece = reader.text[reader.at : reader.text.find("`", reader.at)]
    names = {name: symbol(name, lo=1) for name in _NAME.findall(piece) if name not in ("min", "max")}
    value = reader.index(names, "`")
    reader.expect("`")
    return value


_PRINTERS: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "names": _print_list(str),
        "number": format_number,
        "numbers": _print_list(format_number),
        "wholes": _print_list(str),
        "expr": lambda value: f"`{format_expr(value)}`",
    }
)
_READERS: Final[Mapping[str, Callable[[Reader], Any]]] = MappingProxyType(
    {
        "name": Reader.name,
        "names": _read_list(Reader.name),
        "number": parse_number,
        "numbers": _read_list(parse_number),
        "whole": Reader.integer,
        "wholes": _read_list(Reader.integer),
        "expr": _read_expr,
    }
)
