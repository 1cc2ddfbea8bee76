"""What a rewrite looks for: small trees of calls, with names for what stands at their leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Any node of the graph, captured as `name`. Of one name, all occurrences must be one node."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """An argument that is no node: a number, a type, a list of sizes; captured as `name`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """A list of nodes, captured as `name`: the operands of `cat`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of any of `ops`.

    Attributes:
        ops: operators as the vocabulary spells them, of which any will do.
        arguments: pairs of a parameter's name and the pattern for its argument. Parameters that are not named
            must have their defaults.
        commutes: two parameters that may also stand the other way round.
        shared: the call may have readers outside of the match; it then stays in the graph. Others must not:
            what they compute would be computed twice. Of the root of a pattern it says nothing.
        named: captures the call's result, so that other places of the pattern can ask for the same one;
            empty: it does not.
    """

    ops: tuple[str, ...]
    arguments: tuple[tuple[str, Pattern], ...]
    commutes: tuple[str, str] | None = None
    shared: bool = False
    named: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Either:
    """The first of `options` that fits, with what surrounds it."""

    options: tuple[Pattern, ...]


Pattern: TypeAlias = Tensor | Value | Items | Call | Either


def tensor(name: str) -> Tensor:
    """Any node, captured as `name`."""
    return Tensor(name=name)


def value(name: str) -> Value:
    """Any argument that is no node, captured as `name`."""
    return Value(name=name)


def items(name: str) -> Items:
    """A list of nodes, captured as `name`."""
    return Items(name=name)


def either(*options: Pattern) -> Either:
    """The first of `options` that fits."""
    return Either(options=options)


def call(
    ops: str,
    *,
    commutes: tuple[str, str] | None = None,
    shared: bool = False,
    named: str = "",
    **arguments: Pattern,
) -> Call:
    """A call of one of the operators in `ops`, separated by spaces."""
    pairs = tuple(arguments.items())
    return Call(ops=tuple(ops.split()), arguments=pairs, commutes=commutes, shared=shared, named=named)


def roots_of(pattern: Pattern) -> Iterator[Call]:
    """The calls that may be the outermost of `pattern`."""
    match pattern:
        case Call():
            yield pattern
        case Either(options=options):
            for option in options:
                yield from roots_of(option)
        case _:
            return


def names_in(pattern: Pattern) -> Iterator[str]:
    """Names that some match of `pattern` captures; some more than once."""
    match pattern:
        case Tensor() | Value() | Items():
            yield pattern.name
        case Call(arguments=arguments, named=named):
            if named:
                yield named
            for _, inner in arguments:
                yield from names_in(inner)
        case Either(options=options):
            for option in options:
                yield from names_in(option)
