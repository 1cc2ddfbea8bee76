"""Gluon, Triton's dialect in which each block of a kernel has a layout: who of the threads holds what.

Statements that are written for Triton are Gluon once blocks that they make from nothing have a layout
(`lay_out_blocks`): positions along tiles, and constants. What is computed from them has the same.
`store_in_layout` stores blocks by other threads than those that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Call,
    Do,
    Expression,
    List,
    Name,
    Number,
    Statement,
)


def gl(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of the function `name` of Gluon's language."""
    return Call(Attribute(Name("gl"), name), args, tuple(kwargs.items()))


def hopper(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """A call of `name`, perhaps in a module, of what Gluon has for NVIDIA's Hopper."""
    function: Expression = Name("hopper")
    for part in name.split("."):
        function = Attribute(function, part)
    return Call(function, args, tuple(kwargs.items()))


def lay_out_blocks(
    statements: Sequence[Statement], axes: Mapping[str, int], layout: Expression
) -> tuple[Statement, ...]:
    """`statements` with `layout`, one of two axes, for blocks that they make from nothing. `axes` are those
    of positions, by the names of blocks' extents.
    """

    def lay_out(node: Any) -> Any:
        function = node.function if isinstance(node, Call) else None
        if not isinstance(function, Attribute) or function.value != Name("tl"):
            return node
        if function.name == "arange":
            last = node.args[-1]
            assert isinstance(last, Name)
            across = Number(1 - axes[last.id])
            return gl("arange", *node.args, layout=gl("SliceLayout", across, layout))
        if function.name == "full":
            extents = node.args[0]
            is_scalar = isinstance(extents, List) and not extents.items
            return gl("full", *node.args, **({} if is_scalar else {"layout": layout}))
        return node

    return tuple(_rewrite(statement, lay_out) for statement in statements)


def store_in_layout(
    statements: Sequence[Statement], positions: Sequence[Statement], layout: Expression
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]] | None:
    """`statements` whose stores are of values in `layout`, at places that copies of `positions` say; and the
    copies. None if something else says where a value is stored.
    """
    moved = {one.targets[0]: f"{one.targets[0]}_stored" for one in positions if isinstance(one, Assign)}
    local = {name for one in statements if isinstance(one, Assign) for name in one.targets}

    found: list[Statement] = []
    for one in statements:
        stored = _find_store(one)
        if stored is None:
            found.append(one)
            continue
        pointer, value, *mask = stored.args
        if any(name in local for part in (pointer, *mask) for name in _iterate_names(part)):
            return None
        places = [_rename_uses(part, moved) for part in (pointer, *mask)]
        value = gl("convert_layout", value, layout)
        found.append(Do(replace(stored, args=(places[0], value, *places[1:]))))
    return tuple(found), rename(positions, moved)


def rename(statements: Sequence[Statement], names: Mapping[str, str]) -> tuple[Statement, ...]:
    """`statements` with other names of variables, where `names` has some."""
    return tuple(_rename_targets(_rename_uses(one, names), names) for one in statements)


def keep_used(lines: Sequence[Statement], after: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return the `lines` whose values later lines, or `after`, use."""
    used = {name for one in after for name in _iterate_names(one)}
    kept: list[Statement] = []
    for one in reversed(lines):
        if not isinstance(one, Assign) or any(name in used for name in one.targets):
            kept.append(one)
            used |= set(_iterate_names(one))
    return tuple(reversed(kept))


def _find_store(statement: Statement) -> Call | None:
    value = statement.value if isinstance(statement, Do) else None
    is_store = isinstance(value, Call) and value.function == Attribute(Name("tl"), "store")
    return value if isinstance(value, Call) and is_store else None


def _rename_uses(node: Any, names: Mapping[str, str]) -> Any:
    def change(part: Any) -> Any:
        return Name(names[part.id]) if isinstance(part, Name) and part.id in names else part

    return _rewrite(node, change)


def _rename_targets(statement: Statement, names: Mapping[str, str]) -> Statement:
    if not isinstance(statement, Assign):
        return statement
    return replace(statement, targets=tuple(names.get(name, name) for name in statement.targets))


def _iterate_names(node: Any) -> Iterator[str]:
    if isinstance(node, Name):
        yield node.id
    elif isinstance(node, tuple):
        for part in node:
            yield from _iterate_names(part)
    elif is_dataclass(node):
        for field in fields(node):
            yield from _iterate_names(getattr(node, field.name))


def _rewrite(node: Any, change: Callable[[Any], Any]) -> Any:
    """`node` of a syntax tree with `change` for each node, operands first."""
    if isinstance(node, tuple):
        return tuple(_rewrite(part, change) for part in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    parts = {field.name: _rewrite(getattr(node, field.name), change) for field in fields(node)}
    return change(replace(node, **parts))
