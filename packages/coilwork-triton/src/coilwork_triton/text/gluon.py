"""Gluon, Triton's dialect in which each block of a kernel has a layout: who of the threads holds what.

Statements that are written for Triton are Gluon once blocks that they make from nothing have a layout
(`lay_out_blocks`): positions along tiles, and constants. What is computed from them has the same.
`store_in_layout` stores blocks by other threads than those that hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from coilwork_triton.text.variables import iterate_names, rename, rename_within, rewrite


def gl(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """Return a call of the function `name` of Gluon's language."""
    return Call(Attribute(Name("gl"), name), args, tuple(kwargs.items()))


def hopper(name: str, *args: Expression, **kwargs: Expression) -> Call:
    """Return a call of `name`, perhaps in a module, of what Gluon has for NVIDIA's Hopper."""
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

    return tuple(rewrite(statement, lay_out) for statement in statements)


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
        if any(name in local for part in (pointer, *mask) for name in iterate_names(part)):
            return None
        value = gl("convert_layout", value, layout)
        pointer, *mask = (rename_within(part, moved) for part in (pointer, *mask))
        found.append(Do(replace(stored, args=(pointer, value, *mask))))
    return tuple(found), rename(positions, moved)


def _find_store(statement: Statement) -> Call | None:
    value = statement.value if isinstance(statement, Do) else None
    is_store = isinstance(value, Call) and value.function == Attribute(Name("tl"), "store")
    return value if isinstance(value, Call) and is_store else None
