"""Positions of equal elements: torch leaves open which of them it gives, and in which order, unless asked for
a stable sort.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from integration_tests.operators.database import Sample

# Operators that take a tensor and give values and their positions, or positions alone: which argument is the
# dimension.
WITHOUT_ORDER: Final[Mapping[str, int]] = MappingProxyType(
    {"argsort": 1, "kthvalue": 2, "median": 1, "nanmedian": 1, "sort": 1, "topk": 2}
)


def settled(compiled: Any, eager: Any, sample: Sample, dimension: int) -> Any:
    """`compiled`, (values, positions) or positions, with eager's positions where its own point at elements
    equal to those.

    `dimension` is the argument that names the dimension.
    """
    if sample.keywords.get("stable"):
        return compiled
    if isinstance(compiled, tuple) and isinstance(eager, tuple):
        # results may have names
        both = len(compiled) == len(eager) == 2
        return (compiled[0], _settled(compiled[1], eager[1], sample, dimension)) if both else compiled
    # a tensor alone holds positions if it has one for each element, and is a median otherwise
    alone = isinstance(compiled, Tensor) and compiled.shape == sample.arguments[0].shape
    return _settled(compiled, eager, sample, dimension) if alone else compiled


def _settled(ours: Any, theirs: Any, sample: Sample, dimension: int) -> Any:
    if not isinstance(ours, Tensor) or theirs.dtype is not torch.int64 or ours.dtype is not torch.int64:
        return ours
    source, dim = sample.arguments[0], _dimension(sample, dimension)
    if dim is None or ours.shape != theirs.shape or not ours.numel():
        return ours
    mine, its = ours, theirs
    if ours.dim() < source.dim():
        mine, its = ours.unsqueeze(dim), theirs.unsqueeze(dim)
    length = source.shape[dim] if source.dim() else 1
    if not _distinct(mine, dim) or mine.min() < 0 or mine.max() >= length:
        return ours
    alike = torch.isclose(source.gather(dim, mine), source.gather(dim, its), rtol=0, atol=0, equal_nan=True)
    positions = torch.empty_strided(ours.shape, ours.stride(), dtype=ours.dtype, device=ours.device)
    return positions.copy_(torch.where(alike.reshape(ours.shape), theirs, ours))


def _dimension(sample: Sample, argument: int) -> int | None:
    """The dimension; `None` without one, where a result is one number and no position."""
    given = sample.arguments[argument] if len(sample.arguments) > argument else sample.keywords.get("dim", -1)
    return given if isinstance(given, int) and not isinstance(given, bool) else None


def _distinct(positions: Tensor, dim: int) -> bool:
    if not positions.dim():
        return True
    ordered = positions.sort(dim).values
    return bool((ordered.diff(dim=dim) > 0).all())
