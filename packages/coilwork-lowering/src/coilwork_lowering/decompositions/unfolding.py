"""Windows of images side by side, and the sum of such: lowered as they are for floats, else as torch takes
them apart, by tables of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def unfold_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By overload; `table` holds torch's own."""
    aten = torch.ops.aten
    return {op: _decompose_other_types(table[op]) for op in (aten.im2col.default, aten.col2im.default)}


def _decompose_other_types(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(value: torch.Tensor, *rest: Any, **named: Any) -> Any:
        return NotImplemented if value.is_floating_point() else theirs(value, *rest, **named)

    return decompose
