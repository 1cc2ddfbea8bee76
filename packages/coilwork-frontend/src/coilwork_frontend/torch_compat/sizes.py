"""Facts about symbolic sizes. No function here adds a guard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    ShapeEnv,
    free_unbacked_symbols,
    statically_known_true,
)


def are_equal_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell if two shapes are known to be equal, however they are written."""
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other))


def has_sizes_from_data(captured: torch.fx.GraphModule) -> bool:
    """Tell if a tensor in Dynamo's graph, or in a nested one, has an unbacked size."""
    parts = [part for part in captured.modules() if isinstance(part, torch.fx.GraphModule)]
    values = [node.meta.get("example_value") for part in parts for node in part.graph.nodes]
    sizes: list[Any] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return any(isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size)) for size in sizes)


def has_guard_on_unified_size(captured: torch.fx.GraphModule) -> bool:
    """Tell if there is a guard on a size that torch unified with an unbacked one."""
    values = [node.meta.get("example_value") for node in captured.graph.nodes]
    sizes: list[Any] = [
        size
        for value in values
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
        if isinstance(size, torch.SymInt)
    ]
    if not sizes:
        return False
    env = sizes[0].node.shape_env
    replaced = [new for old, new in env.replacements.items() if free_unbacked_symbols(old)]
    unified = {symbol for new in replaced for symbol in new.free_symbols}
    return any(unified & guard.expr.free_symbols for guard in env.guards)


def list_symbol_facts(environment: ShapeEnv) -> list[str]:
    """Return the guards, assertions and replacements of symbols in `environment`, as sorted texts."""
    facts = {str(fact) for fact in environment.get_axioms()}
    return sorted(facts | {f"{old} = {new}" for old, new in environment.replacements.items()})


def list_traced_values(values: Iterable[object]) -> dict[object, int]:
    """Return the numbers that torch's symbols in `values`, tensors' sizes and numbers, were traced with.

    Unbacked symbols are left out.
    """
    traced: dict[object, int] = {}
    for value in values:
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.backed_var_to_val
                names = size.node.expr.free_symbols
                numbers = {name: known[name] for name in names - traced.keys() if name in known}
                # a ragged size, of rows that differ in length, was traced with none
                traced |= {name: int(one) for name, one in numbers.items() if getattr(one, "is_number", True)}
    return traced


def hint_of(size: torch.SymInt) -> int | None:
    """Return the size in the call that is traced; None if it is unbacked."""
    hint = size.node.hint
    return int(hint) if isinstance(hint, int) else None


def is_unequal(condition: object, size: torch.SymInt, number: int) -> bool:
    """Tell if `condition` is the expression `size != number`."""
    left: Any = condition
    right: Any = size != number
    are_symbolic = isinstance(left, torch.SymBool) and isinstance(right, torch.SymBool)
    return are_symbolic and bool(left.node.expr == right.node.expr)


def is_same_size(one: int | torch.SymInt, other: int | torch.SymInt) -> bool:
    """Tell if two sizes are one number, or one expression."""
    first, second = (getattr(getattr(size, "node", None), "expr", size) for size in (one, other))
    return bool(first == second)


def is_from_data(size: int | torch.SymInt) -> bool:
    """Tell if a size is unbacked: only run-time data decides it."""
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def asks_for_data(error: Exception) -> bool:
    """Tell if torch raised `error` as it asked for a number that only run-time data decides."""
    return isinstance(error, GuardOnDataDependentSymNode)


def find_symbols(value: object, *, plain: bool = False) -> set[object]:
    """Return torch's symbols in a number, in a tensor's sizes, strides and offset, or in a list of these.

    With `plain`, only symbols that are a size, or the number itself: whoever gets `value` can read them off.
    """
    if isinstance(value, list | tuple):
        return {symbol for one in value for symbol in find_symbols(one, plain=plain)}
    if isinstance(value, torch.Tensor):
        numbers: list[Any] = list(value.shape)
        if value.layout == torch.strided and not plain:
            numbers += [*value.stride(), value.storage_offset()]
        return {symbol for one in numbers for symbol in find_symbols(one, plain=plain)}
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return set()
    expression = value.node.expr
    return set(expression.free_symbols) if not plain or expression.is_Symbol else set()
