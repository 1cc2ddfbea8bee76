"""Nested values: their leaves, and how they are nested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

TreeSpec = pytree.TreeSpec


def tensors_in(values: object) -> list[torch.Tensor]:
    """Every tensor in nested `values`, in torch's order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Nested `values` with each tensor replaced by `function` of it."""
    mapped: tuple[Any, ...] = pytree.tree_map_only(torch.Tensor, function, values)
    return mapped


def leaves_of(values: object) -> list[Any]:
    """Everything in nested `values` that is no container, in torch's order."""
    return list(pytree.tree_leaves(values))


def nesting_of(values: object) -> TreeSpec:
    """How `values` are nested."""
    return pytree.tree_structure(values)


def nested_like(leaves: list[Any], nesting: TreeSpec) -> Any:
    """`leaves`, in torch's order, nested as `nesting` says."""
    return pytree.tree_unflatten(leaves, nesting)


def map_leaves(function: Callable[[Any], Any], values: Any) -> Any:
    """Nested `values` with each leaf replaced by `function` of it."""
    return pytree.tree_map(function, values)
