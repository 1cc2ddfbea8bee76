"""Positions of equal elements: torch leaves open which of them it gives, and in which order."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from integration_tests.operators.database import Sample

# Operators that take a tensor and a number of elements along a dimension, and give values and their positions.
WITHOUT_ORDER: Final = frozenset({"topk"})


def settled(compiled: Any, eager: Any, sample: Sample) -> Any:
    """`compiled` (values, positions) with eager's positions where its own point at elements equal to those."""
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in (compiled, eager)):
        return compiled
    values, ours = compiled
    theirs = eager[1]
    if not isinstance(ours, Tensor) or (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return compiled
    source, dim = sample.arguments[0], _dimension(sample)
    length = source.shape[dim] if source.dim() else 1
    if not ours.numel() or not _distinct(ours, dim) or ours.min() < 0 or ours.max() >= length:
        return compiled
    alike = torch.isclose(
        source.gather(dim, ours), source.gather(dim, theirs), rtol=0, atol=0, equal_nan=True
    )
    positions = torch.empty_strided(ours.shape, ours.stride(), dtype=ours.dtype, device=ours.device)
    return values, positions.copy_(torch.where(alike, theirs, ours))


def _dimension(sample: Sample) -> int:
    given = sample.arguments[2] if len(sample.arguments) > 2 else sample.keywords.get("dim", -1)
    assert isinstance(given, int)
    return given


def _distinct(positions: Tensor, dim: int) -> bool:
    if not positions.dim():
        return True
    ordered = positions.sort(dim).values
    return bool((ordered.diff(dim=dim) > 0).all())
