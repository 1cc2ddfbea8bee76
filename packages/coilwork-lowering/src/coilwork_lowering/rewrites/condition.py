"""Side conditions: named predicates over what a pattern captured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.torch_compat.sizes import surely


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A predicate with a name, for reports and tests."""

    name: str
    holds: Callable[[Match], bool]


def same_dtype(*names: str) -> Condition:
    """The captured tensors have one element type."""
    return Condition(
        name=f"same dtype: {', '.join(names)}",
        holds=lambda match: len({match.value(name).dtype for name in names if name in match.captures}) <= 1,
    )


def dtype_among(name: str, *dtypes: torch.dtype) -> Condition:
    """The captured tensor is of one of `dtypes`."""
    return Condition(
        name=f"dtype of {name} among {', '.join(str(d).removeprefix('torch.') for d in dtypes)}",
        holds=lambda match: match.value(name).dtype in dtypes,
    )


def has_rank(name: str, *ranks: int) -> Condition:
    """The captured tensor has one of so many dimensions."""
    return Condition(name=f"rank of {name} in {ranks}", holds=lambda match: match.value(name).dim() in ranks)


def equals(name: str, wanted: complex) -> Condition:
    """The captured argument is this number; booleans are none."""

    def holds(match: Match) -> bool:
        found = match.captures[name]
        return isinstance(found, int | float) and not isinstance(found, bool) and found == wanted

    return Condition(name=f"{name} == {wanted}", holds=holds)


def is_number(name: str) -> Condition:
    """The captured argument is a number of Python, known now."""
    return Condition(
        name=f"{name} is a number", holds=lambda match: type(match.captures[name]) in (int, float)
    )


def like_result(name: str) -> Condition:
    """The captured tensor has the type, shape, strides and device of what the match computes."""

    def holds(match: Match) -> bool:
        return looks_like(match.value(name), match.result)

    return Condition(name=f"{name} is like the result", holds=holds)


def looks_like(found: Any, wanted: Any, *, strides: bool = True) -> bool:
    """Tell if two fake tensors surely have type, shape, device and strides in common. Adds no guard."""
    if not isinstance(found, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return False
    if (found.dtype, found.device, found.layout) != (wanted.dtype, wanted.device, wanted.layout):
        return False
    if not same_sizes(found.shape, wanted.shape):
        return False
    return not strides or found.layout != torch.strided or _same_strides(found, wanted)


def same_sizes(found: Any, wanted: Any) -> bool:
    """Tell if two lists of sizes are surely equal. Adds no guard."""
    return len(found) == len(wanted) and all(surely(a == b) for a, b in zip(found, wanted, strict=True))


def _same_strides(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    # nobody steps along a dimension of one element
    return all(
        surely(size == 1) or surely(a == b)
        for size, a, b in zip(wanted.shape, found.stride(), wanted.stride(), strict=True)
    )
