"""Where statements are collected while a kernel's body is built, and where new variables get their names."""

from __future__ import annotations

from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.syntax.python import Assign, Do, Expression, Name, Statement


class Writer:
    """One straight run of statements: the kernel's own level, or the inside of a loop."""

    def __init__(self, names: FreshNames, library: set[str]) -> None:
        self.statements: list[Statement] = []
        self.names = names
        self.library = library

    def inner(self) -> Writer:
        """A writer for the inside of a loop, with the same names."""
        return Writer(self.names, self.library)

    def bind(self, stem: str, value: Expression) -> Name:
        """Assign `value` to a new variable."""
        name = self.names.counted(stem)
        self.statements.append(Assign((name,), value))
        return Name(name)

    def bind_all(self, stems: tuple[str, ...], value: Expression) -> tuple[Name, ...]:
        """Unpack the tuple `value` into new variables."""
        found = tuple(self.names.counted(stem) for stem in stems)
        self.statements.append(Assign(found, value))
        return tuple(Name(n) for n in found)

    def assign(self, targets: tuple[Name, ...], value: Expression) -> None:
        """Assign to existing variables."""
        self.statements.append(Assign(tuple(t.id for t in targets), value))

    def do(self, value: Expression) -> None:
        """Evaluate for effect."""
        self.statements.append(Do(value))

    def device(self, name: str) -> Name:
        """The device function `name`, noted as used."""
        self.library.add(name)
        return Name(name)
