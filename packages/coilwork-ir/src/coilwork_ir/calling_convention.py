"""The calling convention of a program as data: rows that say how values come to it and go to its caller.

A program reads memory and gives memory. What a caller's value is besides, marked, unaligned, a view, a
number, one object with another, is a role. Rows stand in the order of application, from the program
outwards: what is done before the call is done from the last row to the first, and what is done after it from
the first to the last. Their text has a line each, which whoever runs programs reads:

    takes 3 gives 2
    in 0 aligned update
    in 1 resolved
    out 0 number bool
    hidden 0 is out 1
    out 1 view of hidden 0 as DEFAULT

A value that is neither taken nor given is `hidden`: the base of a view that the caller does not see.

`Boundary` is what the frontend knows of inputs and results beyond the graph; the scheduler and the memory
planner count on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

# ---- Roles ----


Side = Literal["in", "out", "hidden"]
InputKind = Literal["aligned", "resolved", "set", "strided", "donated"]
OutputKind = Literal[
    "number", "constant", "detached", "counted", "view", "is", "shown", "marked", "created", "strided"
]
CallKind = Literal["made", "instead", "before"]


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """An input, a result, or what neither is, by its position."""

    side: Side
    position: int

    def __str__(self) -> str:
        return f"{self.side} {self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRole:
    """A way in which an input comes to the program.

    Attributes:
        value: the input.
        kind: `aligned`: a copy, if it does not start at a multiple of 16 bytes; `resolved`: a copy, if
            torch's marks say that memory holds other numbers; `set`: after the call, to `source`; `strided`:
            laid out anew, if it lies otherwise; `donated`: its memory is the program's.
        is_update: the program writes it, so what a copy holds goes back.
        is_conjugate: it was captured as a conjugate, which the program takes into account.
        source: the result that it is set to.
        strides: of what is laid out; below zero, the order of its dimensions: -1 the innermost, without gaps.
    """

    value: Value
    kind: InputKind
    is_update: bool = False
    is_conjugate: bool = False
    source: Value | None = None
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.value.side != "in" or (self.source is not None) != (self.kind == "set"):
            raise ValueError(f"{self.value} cannot be {self.kind!r} so")

    def __str__(self) -> str:
        words: list[str] = [self.kind]
        words += ["update"] if self.is_update else []
        words += ["conjugate"] if self.is_conjugate else []
        words += [] if self.source is None else [f"to {self.source}"]
        return " ".join([*words, *map(str, self.strides)])


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRole:
    """A way in which a result goes to the caller.

    Attributes:
        value: the result, or a hidden value that is made of one.
        kind: `number`: of type `number`, read from what the program gives; `constant`: `number` itself;
            `detached`: no view, if the program gives one; `counted`: writes to it are counted with those to
            `source`, without one apart; `view` of `source`, which may be the value itself; `is`: the same
            object as `source`; `shown`: memory of `source`, of inference mode or not like that; `marked`: a
            view with torch's `marks`; `created`: takes writes as a view that was made in the way of
            `creation`; `strided`: laid out anew, if it lies otherwise.
        source: what it is made of.
        creation: torch's name of how a view is made; empty: as it comes.
        is_unless_view: a view is left as it is.
        is_view: what is shown is a view, though none of `source`.
        number: the type of a number, or the constant.
        marks: torch's bits: negated, conjugated.
        is_gradient: a marked view may show what it is a view of.
        strides: of what is laid out, as those of an input.
    """

    value: Value
    kind: OutputKind
    source: Value | None = None
    creation: str = ""
    is_unless_view: bool = False
    is_view: bool = False
    number: type[bool] | type[float] | bool | float | None = None
    marks: tuple[bool, bool] = (False, False)
    is_gradient: bool = False
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        needs_source = self.kind in ("view", "is", "shown")
        if self.value.side == "in" or (needs_source and self.source is None):
            raise ValueError(f"{self.value} cannot be {self.kind!r} so")
        if self.source is not None and not (needs_source or self.kind == "counted"):
            raise ValueError(f"{self.value}, which is {self.kind!r}, is made of nothing")
        if (self.number is not None) != (self.kind in ("number", "constant")):
            raise ValueError(f"{self.value} is a number or it is not")

    def __str__(self) -> str:
        made = f" as {self.creation}" if self.creation else ""
        match self.kind:
            case "number":
                return f"number {'bool' if self.number is bool else 'float'}"
            case "constant":
                return f"constant {self.number!r}"
            case "counted":
                return "counted apart" if self.source is None else f"counted with {self.source}"
            case "view":
                return f"view of {self.source}{' unless view' * self.is_unless_view}{made}"
            case "is":
                return f"is {self.source}"
            case "shown":
                return f"shown of {self.source}{' as view' * self.is_view}"
            case "marked":
                names = zip(("negated", "conjugated"), self.marks, strict=True)
                words = [*(name for name, is_set in names if is_set), *["gradient"] * self.is_gradient]
                return " ".join(["marked", *words])
            case "created":
                return f"created{made}"
            case _:
                return " ".join([self.kind, *map(str, self.strides)])


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRole:
    """A callable of Python around the call, by name: for what no role of one value says.

    Attributes:
        kind: `made`: it makes the values of `gives` of those of `takes`, after the call; `instead`: it is
            called in place of the program, and of the rows before this one, while torch transforms calls;
            `before`: it makes the inputs that the program and the rows before this one speak of, of the list
            of what the caller gives, which it empties. Outside of it there are only rows of its kind.
        name: of the callable, which is handed over with the rows.
    """

    kind: CallKind
    name: str
    takes: tuple[Value, ...] = ()
    gives: tuple[Value, ...] = ()

    def __str__(self) -> str:
        if self.kind in ("instead", "before"):
            return f"{self.name} {self.kind}"
        return f"{self.name} takes {', '.join(map(str, self.takes))} gives {', '.join(map(str, self.gives))}"


Role = InputRole | OutputRole | CallRole


@dataclass(frozen=True, slots=True, kw_only=True)
class CallingConvention:
    """The roles of all inputs and results of a call.

    Attributes:
        takes: how many inputs there are, as rows speak of them.
        gives: how many of the program's results the caller gets: the first; `None`: all.
        rows: the roles, in order of application from the program outwards.
    """

    takes: int
    gives: int | None = None
    rows: tuple[Role, ...] = ()

    def __post_init__(self) -> None:
        hidden: set[Value] = set()
        is_outside = False
        for row in self.rows:
            is_before = isinstance(row, CallRole) and row.kind == "before"
            if is_outside and not is_before:
                raise ValueError(f"{row} speaks of inputs of the caller, who gives others")
            is_outside = is_before
            used = _values_used(row)
            if any(value.side == "in" and value.position >= self.takes for value in used):
                raise ValueError(f"{row} speaks of an input that there is not")
            target = row.value if isinstance(row, OutputRole) and row.kind == "is" else None
            if any(value.side == "hidden" and value not in hidden for value in used if value != target):
                raise ValueError(f"{row} is made of what is made later")
            if target is not None and target.side == "hidden":
                hidden.add(target)

    @property
    def inputs(self) -> tuple[tuple[InputRole, ...], ...]:
        """The roles of each input; one that comes as it is has none."""
        inputs = [row for row in self.rows if isinstance(row, InputRole)]
        return tuple(tuple(row for row in inputs if row.value.position == k) for k in range(self.takes))

    def add(self, *rows: Role) -> CallingConvention:
        """This with further rows, around those there are."""
        if not rows:
            return self
        return CallingConvention(takes=self.takes, gives=self.gives, rows=(*self.rows, *rows))

    def wrap(self, outer: CallingConvention) -> CallingConvention:
        """This with `outer` around it."""
        gives = self.gives if outer.gives is None else outer.gives
        return CallingConvention(takes=outer.takes, gives=gives, rows=(*self.rows, *outer.rows))

    def __str__(self) -> str:
        head = f"takes {self.takes}" if self.gives is None else f"takes {self.takes} gives {self.gives}"
        lines = [f"call {row}" if isinstance(row, CallRole) else f"{row.value} {row}" for row in self.rows]
        return "\n".join([head, *lines]) + "\n"


def _values_used(row: Role) -> tuple[Value, ...]:
    if isinstance(row, CallRole):
        return (*row.takes, *row.gives)
    return (row.value,) if row.source is None else (row.value, row.source)


# ---- Promises of callers ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The promises of a program's caller.

    Attributes:
        aligned: inputs that kernels may take to start at multiples of 16 bytes, as the program sees to.
        updated: others, which the program overwrites, and whose alignment its caller sees to.
        donated: inputs whose memory the program may have.
        likely: values of size symbols by name, for costs only.
        marked_results: so many of the first results may come back as negated or conjugated; None: all.
    """

    aligned: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    donated: tuple[str, ...] = ()
    likely: tuple[tuple[str, int], ...] = ()
    marked_results: int | None = 0

    def nest(self) -> Boundary:
        """Return the boundary of a nested graph: its inputs are not aligned, and none is donated."""
        return replace(self, aligned=(), updated=(), donated=(), marked_results=0)


NOTHING_KNOWN: Final = Boundary()
"""That of a graph of which nobody says anything."""
