"""Mappings: how a kernel runs, as a list of directives; and versions, one mapping for each kind of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

from coilwork_ir.index import Expr, add_all, as_expr, as_int, evaluate, find_bounds, maximum, provably_le
from coilwork_ir.kernels.nodes import Kernel
from coilwork_ir.mapping.arithmetic import Choose, Limit
from coilwork_ir.mapping.directive import Directive, Open

D = TypeVar("D", bound=Directive)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nest:
    """One loop nest of a kernel that has several: the stores, by number, or the check, that it does, and how
    it runs.

    Attributes:
        stores: numbers of the kernel's stores, in the order in which they happen at a point.
        check: number of the kernel's check; None where it stores.
        directives: of this nest alone.
    """

    stores: tuple[int, ...] = ()
    check: int | None = None
    directives: tuple[Directive, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """A list of directives that says how a kernel runs; what it computes is the kernel's to say.

    Attributes:
        directives: of the whole kernel.
        nests: its loop nests in the order in which they run; none where the kernel is one.
    """

    directives: tuple[Directive, ...] = ()
    nests: tuple[Nest, ...] = ()

    def find(self, kind: type[D]) -> D | None:
        """Return the first directive of class `kind` of the whole kernel."""
        directive = self._first.get(kind)
        assert directive is None or isinstance(directive, kind)
        return directive

    @cached_property
    def _first(self) -> dict[type[Directive], Directive]:
        """The first directive of each class."""
        return {type(d): d for d in reversed(self.directives)}

    @property
    def open_numbers(self) -> tuple[Open, ...]:
        """Its numbers that are not chosen, each once."""
        every = (*self.directives, *(d for nest in self.nests for d in nest.directives))
        return tuple(dict.fromkeys(number for d in every for number in d.open_numbers))

    @property
    def is_closed(self) -> bool:
        """True if every number is chosen: a generator writes it, a launcher launches it."""
        return not self.open_numbers

    @property
    def first_choice(self) -> Mapping:
        """The mapping with the first value of each open number: the best guess."""
        return self.close({number.name: number.values[0] for number in self.open_numbers})

    def close(self, chosen: MappingOf[str, int]) -> Mapping:
        """Return the mapping with the numbers that `chosen` names; its limits go once no number is open.

        Raises:
            ValueError: a number has no such value, or one of the limits does not allow all of them together.
        """
        for number in self.open_numbers:
            if number.name in chosen and chosen[number.name] not in number.values:
                raise ValueError(f"?{number.name} is none of {', '.join(map(str, number.values))}")
        if not self.allows(chosen):
            raise ValueError(f"{dict(chosen)} breaks a limit of the mapping")
        numbers = dict(chosen)
        closed = Mapping(
            directives=tuple(d.close(numbers) for d in self.directives),
            nests=tuple(
                replace(nest, directives=tuple(d.close(numbers) for d in nest.directives))
                for nest in self.nests
            ),
        )
        if closed.open_numbers:
            return closed
        kept = tuple(d for d in closed.directives if not isinstance(d, Limit | Choose))
        return replace(closed, directives=kept)

    def allows(self, chosen: MappingOf[str, int]) -> bool:
        """Tell if no limit of which all numbers are `chosen` is broken by them."""
        for directive in self.directives:
            if isinstance(directive, Limit):
                names = {symbol.name for symbol in directive.left.free_symbols | directive.right.free_symbols}
                if names <= chosen.keys() and evaluate(directive.left, chosen) > evaluate(
                    directive.right, chosen
                ):
                    return False
        ways: dict[tuple[str, ...], bool] = {}
        for way in find_all(self.directives, Choose):
            ways[way.names] = ways.get(way.names, False) or way.allows(chosen)
        return all(ways.values())


def find(directives: Iterable[Directive], kind: type[D]) -> D | None:
    """Return the first of `directives` that is of class `kind`."""
    for directive in directives:
        if isinstance(directive, kind):
            return directive
    return None


def find_all(directives: Iterable[Directive], kind: type[D]) -> Iterator[D]:
    """Return those of `directives` that are of class `kind`."""
    return (d for d in directives if isinstance(d, kind))


# Versions


@dataclass(frozen=True, slots=True)
class Condition:
    """`left <= right`, or `left == right`, of expressions over a kernel's sizes."""

    left: Expr
    relation: Literal["<=", "=="]
    right: Expr

    @property
    def distance(self) -> Expr:
        """0 where the condition holds, and more where it does not."""
        difference = self.left - self.right
        if self.relation == "<=":
            return maximum(difference, as_expr(0))
        least = find_bounds(difference).lo
        # of a remainder, itself
        return difference if least is not None and least >= 0 else maximum(difference, -1 * difference)


@dataclass(frozen=True, slots=True)
class Guard:
    """The sizes that a version is for: those for which all `conditions` hold."""

    conditions: tuple[Condition, ...]

    @property
    def distance(self) -> Expr:
        """An expression over sizes that is 0 where the guard holds, and more where it does not."""
        distance = add_all([as_expr(0), *(c.distance for c in self.conditions)])
        # where a guard never holds, how far off it is does not matter, and may be more than 64 bits hold
        return as_expr(1) if provably_le(1, distance) else distance

    def holds(self, sizes: MappingOf[str, int]) -> bool:
        """Tell if the guard holds for these sizes."""
        return evaluate(self.distance, sizes) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One mapping, and the sizes that it is for; None: all."""

    guard: Guard | None
    mapping: Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The mappings of a kernel, most particular first; the last is for all sizes.

    Attributes:
        kernel: its name.
        target: the kind of device.
        versions: the first whose guard holds is taken.
    """

    kernel: str
    target: str
    versions: tuple[Version, ...]

    @property
    def general(self) -> Mapping:
        """The mapping for all sizes."""
        return self.versions[-1].mapping

    def choose(self, sizes: MappingOf[str, int]) -> Mapping:
        """Return the mapping for these sizes."""
        return next(v.mapping for v in self.versions if v.guard is None or v.guard.holds(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """A kernel, or a piece that a generator made of one, and how it runs in the text that was written."""

    kernel: Kernel
    versions: Versions


def make_single_version(kernel: str, target: str, mapping: Mapping) -> Versions:
    """One mapping for all sizes."""
    return Versions(kernel=kernel, target=target, versions=(Version(guard=None, mapping=mapping),))


def find_divisor(condition: Condition) -> tuple[Expr, int] | None:
    """Return the size and the number of a condition `size % number == 0`."""
    if condition.relation != "==" or as_int(condition.right) != 0:
        return None
    for size in condition.left.free_symbols:
        for number in (2, 4, 8, 16, 32, 64, 128):
            if condition.left is size % number:
                return size, number
    return None
