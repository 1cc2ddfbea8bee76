"""Results of interpreters that are tensors, all of them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def tensors_of(results: Iterable[object]) -> list[Tensor]:
    """Return `results`, of which each must be a tensor."""
    found = []
    for result in results:
        assert isinstance(result, Tensor), result
        found.append(result)
    return found
