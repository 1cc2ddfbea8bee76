"""Sequences of steps as tables: passes over one immutable value, with reasons for each and for the order.

    PASSES = PassTable(
        passes=(Pass(name="inline", run=inline, why="values that are cheap to compute need no memory"), ...),
        order=(Before("inline", "split", "what is inlined into a reduction is split with it"), ...),
    )
    graph = PASSES.run(graph, settings, observe=trace)

`str(PASSES)` prints the table for people. A test of whoever has one asserts that `violations()` is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

Value = TypeVar("Value")
Context = TypeVar("Context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(Generic[Value, Context]):
    """One step: a function from a value to a value that leaves its argument as it is.

    Attributes:
        name: unique in its table; stable, as tests and traces name it.
        run: gets the value, and all else that it reads as the context. Returns the value itself if nothing
            changes.
        why: what is gained by it.
    """

    name: str
    run: Callable[[Value, Context], Value]
    why: str


@dataclass(frozen=True, slots=True)
class Before:
    """Pass `first` runs before pass `second`, because of `why`."""

    first: str
    second: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable(Generic[Value, Context]):
    """Passes in the order they run, and the reasons for that order.

    Attributes:
        passes: the rows.
        order: which pass comes before which; passes that follow each other need a reason.
    """

    passes: tuple[Pass[Value, Context], ...]
    order: tuple[Before, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the passes, in order."""
        return tuple(row.name for row in self.passes)

    def run(
        self,
        value: Value,
        context: Context,
        *,
        observe: Callable[[str, Value, Value], None] | None = None,
    ) -> Value:
        """Return the result of all passes on `value`, one after the other.

        `observe` is called after each pass with its name, its argument and its result: to verify it, or to
        print what changed.
        """
        for row in self.passes:
            changed = row.run(value, context)
            if observe is not None:
                observe(row.name, value, changed)
            value = changed
        return value

    def select(self, *names: str) -> PassTable[Value, Context]:
        """Return the table of the passes `names` alone, in this table's order.

        Raises:
            ValueError: a name is no pass's.
        """
        unknown = set(names) - set(self.names)
        if unknown:
            raise ValueError(f"there is no pass {min(unknown)}; passes: {', '.join(self.names)}")
        wanted = frozenset(names)
        return PassTable(
            passes=tuple(row for row in self.passes if row.name in wanted),
            order=tuple(row for row in self.order if {row.first, row.second} <= wanted),
        )

    def violations(self) -> tuple[str, ...]:
        """Names that stand twice, broken rows of `order`, and neighbours whose order has no reason."""
        place = {name: position for position, name in enumerate(self.names)}
        faults = [f"{name} runs twice" for name in place if self.names.count(name) > 1]
        for row in self.order:
            unknown = [name for name in (row.first, row.second) if name not in place]
            if unknown:
                faults.append(f"there is no pass {unknown[0]}")
            elif place[row.first] > place[row.second]:
                faults.append(f"{row.first} must run before {row.second}: {row.why}")
        pairs = {(row.first, row.second) for row in self.order}
        faults += [
            f"nothing says why {first} runs before {second}"
            for first, second in pairwise(self.names)
            if (first, second) not in pairs
        ]
        return tuple(faults)

    def __str__(self) -> str:
        lines: list[str] = []
        for number, row in enumerate(self.passes, 1):
            lines.append(f"{number}. {row.name}: {row.why}")
            lines += [f"   before {b.second}: {b.why}" for b in self.order if b.first == row.name]
        return "\n".join(lines)
