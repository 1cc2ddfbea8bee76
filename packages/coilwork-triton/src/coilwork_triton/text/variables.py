"""Variables of statements: which ones lines read and assign, and other names for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.syntax.python import Assign, For, If, Name, Statement, While


def rename(statements: Sequence[Statement], names: Mapping[str, str]) -> tuple[Statement, ...]:
    """`statements` with other names of variables, where `names` has some."""
    return tuple(rename_within(one, names) for one in statements)


def rename_within(node: Any, names: Mapping[str, str]) -> Any:
    """`node`, a statement or an expression, with other names of variables, where `names` has some."""

    def change(part: Any) -> Any:
        match part:
            case Name(name):
                return Name(names.get(name, name))
            case Assign(targets):
                return replace(part, targets=tuple(names.get(name, name) for name in targets))
            case For(variable):
                return replace(part, variable=names.get(variable, variable))
        return part

    return rewrite(node, change)


def rename_apart(statements: Sequence[Statement], others: Sequence[Statement]) -> tuple[Statement, ...]:
    """`statements` with new names for all variables that `others` assign, too.

    For the two branches of an `if`: Triton takes a variable that both assign for one value behind them, which
    must be of one type.
    """
    mine, theirs = (frozenset(iterate_assigned(lines)) for lines in (statements, others))
    fresh = FreshNames((*iterate_names(tuple(statements)), *iterate_names(tuple(others)), *mine, *theirs))
    return rename(statements, {name: fresh.close_to(name) for name in sorted(mine & theirs)})


def keep_used(lines: Sequence[Statement], after: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return the `lines` whose values later lines, or `after`, use."""
    used = {name for one in after for name in iterate_names(one)}
    kept: list[Statement] = []
    for one in reversed(lines):
        if not isinstance(one, Assign) or any(name in used for name in one.targets):
            kept.append(one)
            used |= set(iterate_names(one))
    return tuple(reversed(kept))


def iterate_assigned(statements: Sequence[Statement]) -> Iterator[str]:
    """Yield the variables that `statements`, and those inside of them, assign."""
    for one in statements:
        match one:
            case Assign(targets):
                yield from targets
            case For(variable, _, body):
                yield variable
                yield from iterate_assigned(body)
            case While(_, body):
                yield from iterate_assigned(body)
            case If(_, then, otherwise):
                yield from iterate_assigned((*then, *otherwise))


def iterate_names(node: Any) -> Iterator[str]:
    """Yield the names that a statement, an expression, or a tuple of them reads or calls."""
    if isinstance(node, Name):
        yield node.id
    elif isinstance(node, tuple):
        for part in node:
            yield from iterate_names(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from iterate_names(getattr(node, field.name))


def rewrite(node: Any, change: Callable[[Any], Any]) -> Any:
    """`node` of a syntax tree with `change` for each node, operands first."""
    if isinstance(node, tuple):
        return tuple(rewrite(part, change) for part in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {field.name: rewrite(getattr(node, field.name), change) for field in fields(node)}
    return change(replace(node, **parts))
