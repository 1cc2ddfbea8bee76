"""The functions of ours that nodes of a program's FX graph call: checks, conditionals and loops.

No operator of torch's says the same. Each is marked as having effects, so dead-code elimination keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect


@has_side_effect
def check_size(lhs: int, relation: str, rhs: int, message: str) -> None:
    """Check that `lhs relation rhs` holds; `relation` is `eq`, `ne`, `lt` or `le`.

    Raises:
        RuntimeError: it does not; the text is `message`.
    """
    holds = {"eq": lhs == rhs, "ne": lhs != rhs, "lt": lhs < rhs, "le": lhs <= rhs}[relation]
    if not holds:
        raise RuntimeError(message)


@has_side_effect
def run_branch(
    predicate: torch.Tensor,
    then: Callable[..., Sequence[Any]],
    otherwise: Callable[..., Sequence[Any]],
    operands: Sequence[Any],
    sizes: Sequence[int],
) -> Sequence[Any]:
    """Return the results of one of two graphs; both take the `sizes` of the surroundings last."""
    return then(*operands, *sizes) if predicate.item() else otherwise(*operands, *sizes)


@has_side_effect
def run_loop(
    condition: Callable[..., Sequence[Any]],
    body: Callable[..., Sequence[Any]],
    carried: Sequence[Any],
    extra: Sequence[Any],
) -> Sequence[Any]:
    """Return the carried values after the last iteration; `extra` includes the sizes of the surroundings."""
    values = tuple(carried)
    while condition(*values, *extra)[0].item():
        values = tuple(body(*values, *extra))
    return values


@has_side_effect
def run_rounds(
    rounds: int,
    body: Callable[..., Sequence[Any]],
    carried: Sequence[Any],
    extra: Sequence[Any],
    sizes: Sequence[int],
) -> Sequence[Any]:
    """Return the carried values after `rounds` iterations; `sizes` are those of the surroundings."""
    values = tuple(carried)
    for number in range(rounds):
        values = tuple(body(*values, *extra, number, *sizes))
    return values


@has_side_effect
def hold(*tensors: torch.Tensor) -> None:
    """Do nothing: this is the last use of `tensors`, whose memory operators have used until now."""
