"""The names that exist at one point of a graph, schedule or program, and the memory they share."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Argument, Buffer, Constant, GraphInput, ListValue, Ref, references
from coilwork_ir.index import Expr
from coilwork_ir.verification.boxes import Box, add_box, is_whole
from coilwork_ir.verification.rules import Place, Rule

SCOPE_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "unique-name": Rule(
            "every buffer is defined once", "give the second buffer a name that is not in use yet"
        ),
        "defined-before-use": Rule(
            "a buffer is defined before it is used",
            "move the definition up, or declare the buffer as an input",
        ),
        "overwritten": Rule(
            "memory that was overwritten is not read under an older name",
            "read the buffer that took over the memory, or copy the old contents before they are overwritten",
        ),
        "unique-symbol": Rule(
            "in one scope a symbol's name stands for one symbol",
            "rename one of the symbols, or give both the same bounds",
        ),
        "symbol-declared": Rule(
            "index expressions use declared symbols and the ranges around them only",
            "declare the symbol, or make the range part of the node",
        ),
        "symbol-bound": Rule(
            "every declared symbol is an input, or stands alone in the shape or strides of an input",
            "pass the symbol as an integer input",
        ),
        "layout-rank": Rule(
            "a buffer has one stride per dimension", "give as many strides as there are dimensions"
        ),
    }
)


class Scope:
    """Definitions seen so far. Verifiers move one scope forward through the nodes; each name costs O(1)."""

    def __init__(self, outer: Scope | None = None) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.symbols: dict[str, Expr] = {} if outer is None else dict(outer.symbols)
        self._gone: dict[str, str] = {}
        self._memory: dict[str, list[str]] = {}  # names for the memory of a name, shared between those names
        self._filled: dict[str, tuple[Box, ...]] = {}  # of buffers that are not full yet

    def declare(self, value: Expr, place: Place) -> None:
        """A size symbol that has a value from here on."""
        if not value.is_symbol:
            place.fail("symbol-declared", f"{value!r} is not a symbol")
        known = self.symbols.setdefault(value.name, value)
        if known is not value:
            place.fail("unique-symbol", f"{value.name} was declared before, with other bounds")

    def define(self, buffer: Buffer, place: Place, *, shares: str | None = None) -> None:
        """`buffer` exists from here on; it is memory of the buffer `shares`, or memory of its own."""
        if buffer.name in self.buffers:
            place.fail("unique-name", f"%{buffer.name} is defined a second time")
        if len(buffer.shape) != len(buffer.strides):
            place.fail(
                "layout-rank",
                f"%{buffer.name} has {len(buffer.shape)} dimensions and {len(buffer.strides)} strides",
            )
        for expr in (*buffer.shape, *buffer.strides):
            self.check_symbols(expr, (), place)
        self.buffers[buffer.name] = buffer
        group = [] if shares is None else self._memory[shares]
        group.append(buffer.name)
        self._memory[buffer.name] = group

    def use(self, name: str, place: Place) -> Buffer:
        """The buffer `name`, which must be defined and hold what it is said to hold."""
        if name in self._filled:
            place.fail("unfilled", f"parts of %{name} hold nothing yet")
        return self.store_into(name, place)

    def fill(self, buffer: Buffer, before: str | None, box: Box | None) -> None:
        """`box` of `buffer` has been filled: the first part of it, or more of the memory called `before` so
        far.
        """
        known = () if before is None else self._filled.get(before)
        if known is None:
            return
        boxes = known if box is None else add_box(known, box)
        if not is_whole(boxes, buffer.shape):
            self._filled[buffer.name] = boxes

    def is_full(self, name: str) -> bool:
        """Tell if all elements of buffer `name` have values."""
        return name not in self._filled

    def store_into(self, name: str, place: Place) -> Buffer:
        """The buffer `name`, which must be defined, not overwritten, but need not be full."""
        buffer = self.buffers.get(name)
        if buffer is None:
            place.fail("defined-before-use", f"%{name} is not defined above")
        why = self._gone.get(name)
        if why is not None:
            place.fail("overwritten", f"the memory of %{name} {why}")
        return buffer

    def overwrite(self, old: Iterable[str], new: Iterable[Buffer], place: Place) -> None:
        """The memory of each `old` is from here on called by the matching buffer `new`, and by
        nothing else.
        """
        pairs = list(zip(old, new, strict=True))
        for source, buffer in pairs:
            for name in self._memory[source]:
                self._gone.setdefault(name, f"was taken over by %{buffer.name}")
            self._memory[source].clear()
        for source, buffer in pairs:
            self.define(buffer, place, shares=source)

    def shares(self, first: str, second: str) -> bool:
        """True if the two names are known to be names of one piece of memory."""
        return self._memory[first] is self._memory[second]

    def check_symbols(self, expr: Expr, local: Collection[Expr], place: Place) -> None:
        """`expr` uses only declared symbols and those in `local`."""
        for found in expr.free_symbols:
            if found in local:
                continue
            known = self.symbols.get(found.name)
            if known is None:
                place.fail("symbol-declared", f"{found.name} in {expr!r} is not declared")
            if known is not found:
                place.fail(
                    "unique-symbol",
                    f"{found.name} in {expr!r} has other bounds than the declared {found.name}",
                )

    def check_argument(self, argument: Argument, place: Place) -> None:
        """Buffers and symbols that a call's argument mentions exist."""
        for name in references(argument):
            self.use(name, place)
        for expr in _expressions(argument):
            self.check_symbols(expr, (), place)


def open_scope(
    symbols: Iterable[Expr],
    inputs: Iterable[GraphInput],
    constants: Iterable[Constant],
    place: Place,
    outer: Scope | None,
) -> Scope:
    """The scope on entry: declared symbols, inputs and constants. Shared with `outer` are its
    symbols only.
    """
    scope = Scope(outer)
    bound = set(scope.symbols.values())
    declared = tuple(symbols)
    for value in declared:
        scope.declare(value, place)
    for entry in inputs:
        if isinstance(entry, Expr):
            bound.update([entry] if entry.is_symbol else [])
        else:
            bound.update(e for e in (*entry.shape, *entry.strides) if e.is_symbol)
    for value in declared:
        if value not in bound:
            place.fail("symbol-bound", f"{value.name} stands alone in no input")
    for entry in inputs:
        if isinstance(entry, Expr):
            scope.check_symbols(entry, (), place)
        else:
            scope.define(entry, place)
    for constant in constants:
        scope.define(constant.buffer, place)
    return scope


def _expressions(argument: Argument) -> tuple[Expr, ...]:
    match argument:
        case Expr():
            return (argument,)
        case ListValue(items):
            return tuple(expr for item in items for expr in _expressions(item))
        case _:
            return ()


def buffer_of(value: object) -> str | None:
    """The buffer that a graph result names, or None for sizes and nothing."""
    return value.name if isinstance(value, Ref) else None
