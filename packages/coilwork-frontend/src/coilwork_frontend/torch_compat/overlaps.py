"""Tensors in the same memory, as AOTAutograd sees them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C._dynamo.guards import compute_overlapping_tensors


def overlapping(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Positions of `tensors`, all in one storage, that have an element in common with another one."""
    return set(compute_overlapping_tensors(list(tensors), symbolic=False))
