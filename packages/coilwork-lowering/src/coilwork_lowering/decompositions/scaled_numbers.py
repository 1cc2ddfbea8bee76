"""Sums with a number that is scaled: `torch.add(x, n, alpha=a)`, where `n` is a symbol.

AOTAutograd computes with such numbers in tensors of no dimensions, and rewrites the sum without its `alpha`.
So the number is scaled before the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

aten: Final = torch.ops.aten
# A boolean or complex one is eager's to refuse.
_FACTORS: Final = (int, float, torch.SymInt, torch.SymFloat)


def scaled_number_decompositions() -> dict[Any, Callable[..., Any]]:
    """For sums and differences; those of anything but a scaled symbol are left alone."""
    return {operator: partial(_written_out, operator) for operator in (aten.add.Tensor, aten.sub.Tensor)}


def _written_out(operator: Callable[..., Any], value: Any, other: Any, *, alpha: Any = None) -> Any:
    """Without an `alpha`, which is then none of these factors: this is called for the sum that it
    makes, too.
    """
    if not isinstance(other, torch.SymFloat) or type(alpha) not in _FACTORS:
        return NotImplemented
    return operator(value, other * alpha)
