"""Control flow and checks of sizes as functions that nodes of an emitted graph call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def check_size(lhs: int, relation: str, rhs: int, message: str) -> None:
    """Raise RuntimeError(message) unless `lhs relation rhs` holds."""
    holds = {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}[relation]
    if not holds:
        raise RuntimeError(message)


def run_branch(
    predicate: torch.Tensor,
    then: Callable[..., Sequence[Any]],
    otherwise: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    sizes: Sequence[int],
) -> Sequence[Any]:
    """Results of one of two graphs; `sizes` are those of the surroundings, which both take last."""
    return then(*operands, *sizes) if predicate.item() else otherwise(*operands, *sizes)


def run_loop(
    condition: Callable[..., Sequence[Any]],
    body: Callable[..., Sequence[Any]],
    carried: Sequence[Any],
    extra: Sequence[Any],
) -> Sequence[Any]:
    """The carried values after the last iteration; `extra` includes the sizes of the surroundings."""
    values = tuple(carried)
    while condition(*values, *extra)[0].item():
        values = tuple(body(*values, *extra))
    return values
