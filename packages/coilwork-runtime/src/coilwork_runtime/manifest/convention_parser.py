"""The calling convention of a program, read from text: what is done around a call, row by row.

`coilwork_ir.calling_convention` writes the text and says what each role means; `calling_convention.py`
applies the rows. This module knows no tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from itertools import takewhile
from types import MappingProxyType
from typing import Final, NamedTuple


class Act(IntEnum):
    """The acts of rows; the native interpreter has the same numbers (`executor/native/call/roles.hpp`)."""

    ALIGNED = 0
    RESOLVED = 1
    SET = 2
    STRIDED = 3
    DONATED = 4
    NUMBER = 5
    CONSTANT = 6
    DETACHED = 7
    COUNTED = 8
    VIEW = 9
    IS = 10
    MARKED = 11
    CREATED = 12
    SHOWN = 13
    MADE = 14
    INSTEAD = 15
    BEFORE = 16


class Place(IntEnum):
    """The places of values."""

    IN = 0
    OUT = 1
    HIDDEN = 2
    NOWHERE = 3


At = tuple[Place, int]
NOWHERE: Final[At] = (Place.NOWHERE, 0)


class Row(NamedTuple):
    """One row.

    Attributes:
        act: what is done.
        value: to which value.
        source: of which.
        flags: what further words say, bit by bit: of inputs `update`, `conjugate`; of a number: it is a bool;
            of views `unless view`; of what is shown `as view`; of marks `negated`, `conjugated`, `gradient`.
        name: of a way to make views, or of a callable.
        strides: of what is laid out; below zero, the order of its dimensions: -1 the innermost.
        constant: what a result is.
        takes, gives: values of a callable.
    """

    act: Act
    value: At = NOWHERE
    source: At = NOWHERE
    flags: int = 0
    name: str = ""
    strides: tuple[int, ...] = ()
    constant: bool | float = 0.0
    takes: tuple[At, ...] = ()
    gives: tuple[At, ...] = ()


class Roles(NamedTuple):
    """All rows of a convention, from the program outwards.

    Attributes:
        takes: how many inputs there are, as rows speak of them.
        gives: how many results the caller gets; -1: all.
        rows: the rows.
        kept: the inputs that rows ask for after the call.
        before: how many of the last rows make the inputs of what the caller gives.
    """

    takes: int
    gives: int
    rows: tuple[Row, ...]
    kept: tuple[int, ...]
    before: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The callables of Python that it needs."""
        return tuple(row.name for row in self.rows if row.act in (Act.MADE, Act.INSTEAD, Act.BEFORE))


_HEAD: Final = re.compile(r"takes (\d+)(?: gives (\d+))?")
_LINE: Final = re.compile(r"(in|out|hidden) (\d+) (.*)")
_CALL: Final = re.compile(r"call (\w+) (?:(instead|before)|takes (.*) gives (.*))")
_VALUE: Final = r"(in|out|hidden) (\d+)"
_PLACES: Final[Mapping[str, Place]] = MappingProxyType(
    {"in": Place.IN, "out": Place.OUT, "hidden": Place.HIDDEN}
)


def parse_roles(text: str) -> Roles:
    """Return the rows that `text` has.

    Raises:
        ValueError: it has another form.
    """
    first, *lines = text.splitlines() or [""]
    head = _HEAD.fullmatch(first)
    if head is None:
        raise ValueError(f"roles begin with how many values are taken, not with {first!r}")
    rows = tuple(_parse_row(line) for line in lines)
    takes = int(head[1])
    kept: dict[int, None] = {}
    before = len(list(takewhile(lambda row: row.act is Act.BEFORE, reversed(rows))))
    if any(row.act is Act.BEFORE for row in rows[: len(rows) - before]):
        raise ValueError("a role speaks of inputs of the caller, who gives others")
    for row in rows:
        used = (row.value, row.source, *row.takes, *row.gives)
        if any(place is Place.IN and position >= takes for place, position in used):
            raise ValueError("a role speaks of an input that there is not")
        asked = (row.source, *row.takes, *((row.value,) if row.act is Act.SET else ()))
        kept.update((position, None) for place, position in asked if place is Place.IN)
    return Roles(takes, -1 if head[2] is None else int(head[2]), rows, tuple(kept), before)


def _parse_row(line: str) -> Row:
    call = _CALL.fullmatch(line)
    if call is not None:
        if call[2]:
            return Row(Act.INSTEAD if call[2] == "instead" else Act.BEFORE, name=call[1])
        return Row(Act.MADE, name=call[1], takes=_parse_values(call[3]), gives=_parse_values(call[4]))
    one = _LINE.fullmatch(line)
    if one is not None:
        value = _PLACES[one[1]], int(one[2])
        for pattern, make in _INPUTS if value[0] is Place.IN else _OUTPUTS:
            words = pattern.fullmatch(one[3])
            if words is not None:
                return make(value, words)
    raise ValueError(f"{line!r} is no role")


def _parse_values(text: str) -> tuple[At, ...]:
    matches = [re.fullmatch(_VALUE, word) for word in text.split(", ")] if text else []
    if not all(matches):
        raise ValueError(f"{text!r} are no values")
    return tuple((_PLACES[one[1]], int(one[2])) for one in matches if one is not None)


def _bits(*is_set: object) -> int:
    return sum(1 << k for k, one in enumerate(is_set) if one)


def _constant(text: str) -> bool | float:
    return text == "True" if text in ("True", "False") else float(text)


def _strides(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


_Make = Callable[[At, "re.Match[str]"], Row]
_STRIDED: Final[tuple[re.Pattern[str], _Make]] = (
    re.compile(r"strided((?: -?\d+)*)"),
    lambda value, m: Row(Act.STRIDED, value, strides=_strides(m[1])),
)
_INPUTS: Final[tuple[tuple[re.Pattern[str], _Make], ...]] = (
    (
        re.compile(r"aligned( update)?( conjugate)?"),
        lambda value, m: Row(Act.ALIGNED, value, flags=_bits(m[1], m[2])),
    ),
    (
        re.compile(r"resolved( update)?( conjugate)?"),
        lambda value, m: Row(Act.RESOLVED, value, flags=_bits(m[1], m[2])),
    ),
    (re.compile(rf"set to {_VALUE}"), lambda value, m: Row(Act.SET, value, (_PLACES[m[1]], int(m[2])))),
    (re.compile("donated"), lambda value, m: Row(Act.DONATED, value)),
    _STRIDED,
)
_OUTPUTS: Final[tuple[tuple[re.Pattern[str], _Make], ...]] = (
    (
        re.compile("number (?:(bool)|float)"),
        lambda value, m: Row(Act.NUMBER, value, flags=_bits(m[1])),
    ),
    (
        re.compile(r"constant (\S+)"),
        lambda value, m: Row(Act.CONSTANT, value, constant=_constant(m[1])),
    ),
    (
        re.compile(rf"shown of {_VALUE}( as view)?"),
        lambda value, m: Row(Act.SHOWN, value, (_PLACES[m[1]], int(m[2])), flags=_bits(m[3])),
    ),
    (re.compile("detached"), lambda value, m: Row(Act.DETACHED, value)),
    (
        re.compile(rf"counted (?:apart|with {_VALUE})"),
        lambda value, m: Row(Act.COUNTED, value, (_PLACES[m[1]], int(m[2])) if m[1] else NOWHERE),
    ),
    (
        re.compile(rf"view of {_VALUE}( unless view)?(?: as (\w+))?"),
        lambda value, m: Row(Act.VIEW, value, (_PLACES[m[1]], int(m[2])), flags=_bits(m[3]), name=m[4] or ""),
    ),
    (re.compile(rf"is {_VALUE}"), lambda value, m: Row(Act.IS, value, (_PLACES[m[1]], int(m[2])))),
    (
        re.compile(r"marked( negated)?( conjugated)?( gradient)?"),
        lambda value, m: Row(Act.MARKED, value, flags=_bits(m[1], m[2], m[3])),
    ),
    (re.compile(r"created as (\w+)"), lambda value, m: Row(Act.CREATED, value, name=m[1])),
    _STRIDED,
)
