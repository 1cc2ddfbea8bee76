"""Sizes that torch keeps open, and what it holds for true of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols, statically_known_true


def are_equal_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Tell if two shapes are known to be equal, however they are written; to ask adds no guard."""
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other))


def has_sizes_from_data(captured: torch.fx.GraphModule) -> bool:
    """Tell whether a tensor in Dynamo's graph, or in one nested in it, has a size that depends on values
    which only run time knows.
    """
    parts = [part for part in captured.modules() if isinstance(part, torch.fx.GraphModule)]
    values = [node.meta.get("example_value") for part in parts for node in part.graph.nodes]
    sizes: list[Any] = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    return any(isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size)) for size in sizes)


def guards_unified_sizes(captured: torch.fx.GraphModule) -> bool:
    """Tell if tracing has decided something by a size that torch put in the place of one from data."""
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
    taken = {symbol for new in replaced for symbol in new.free_symbols}
    return any(taken & guard.expr.free_symbols for guard in env.guards)


def list_symbol_facts(environment: ShapeEnv) -> list[str]:
    """Return what `environment` holds for true of its symbols (guards, assertions) and in whose places others
    stand, as sorted texts.
    """
    facts = {str(fact) for fact in environment.get_axioms()}
    return sorted(facts | {f"{old} = {new}" for old, new in environment.replacements.items()})


def list_traced_values(gm: torch.fx.GraphModule) -> dict[object, int]:
    """Torch's symbols in sizes of `gm`, and of what it is given, by the numbers that they were traced with.
    Adds no guard.

    Those that data decides are left out.
    """
    found: dict[object, int] = {}
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        sizes: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                known = size.node.shape_env.backed_var_to_val
                names = size.node.expr.free_symbols
                numbers = {name: known[name] for name in names - found.keys() if name in known}
                # a ragged size, of rows that differ in length, was traced with none
                found |= {name: int(one) for name, one in numbers.items() if getattr(one, "is_number", True)}
    return found


def hint_of(size: torch.SymInt) -> int | None:
    """The size in the call that is traced, which adds no guard; None if only run time knows."""
    found = size.node.hint
    return int(found) if isinstance(found, int) else None


def is_unequal(condition: object, size: torch.SymInt, number: int) -> bool:
    """Tell if `condition` is written as `size != number`. Adds no guard."""
    given: Any = condition
    written: Any = size != number
    both = isinstance(given, torch.SymBool) and isinstance(written, torch.SymBool)
    return both and bool(given.node.expr == written.node.expr)


def is_from_data(size: int | torch.SymInt) -> bool:
    """Tell if a size depends on values that only run time knows."""
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def symbols_of(value: object, *, plain: bool = False) -> set[object]:
    """Torch's symbols in a number, or in the sizes, strides and the place of a tensor, or in a list of these.

    With `plain`, those that a size, or the number itself, is: who is given `value` knows them.
    """
    if isinstance(value, list | tuple):
        return {symbol for one in value for symbol in symbols_of(one, plain=plain)}
    if isinstance(value, torch.Tensor):
        numbers: list[Any] = list(value.shape)
        if value.layout == torch.strided and not plain:
            numbers += [*value.stride(), value.storage_offset()]
        return {symbol for one in numbers for symbol in symbols_of(one, plain=plain)}
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return set()
    expression = value.node.expr
    return set(expression.free_symbols) if not plain or expression.is_Symbol else set()
