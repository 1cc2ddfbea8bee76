"""Numbers of directives: closed ones, and open ones that a search may choose.

An open number has a name and the values that it may take, `?rows in 1 2 4 8`. Two open numbers of one name
are one choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coilwork_ir.text.reader import Reader


@dataclass(frozen=True, slots=True)
class Open:
    """A number that is not chosen yet: `name`, and the values that it may take, best guess first."""

    name: str
    values: tuple[int, ...]


Number: TypeAlias = int | Open


def format_number(number: Number) -> str:
    """`8`, or `?rows in 1 2 4 8`."""
    if isinstance(number, Open):
        return f"?{number.name} in {' '.join(map(str, number.values))}"
    return str(number)


def parse_number(reader: Reader) -> Number:
    """The number that `format_number` wrote."""
    if not reader.accept("?"):
        return reader.integer()
    name = reader.name()
    reader.expect("in")
    values = [reader.integer()]
    while reader.text[reader.at : reader.at + 1].isdigit():
        values.append(reader.integer())
    return Open(name, tuple(values))


def values_of(number: Number) -> tuple[int, ...]:
    """Every value that `number` may take."""
    return number.values if isinstance(number, Open) else (number,)
