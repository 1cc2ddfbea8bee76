"""Results that are Python's numbers, in their own types: a program returns tensors and integers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from coilwork_ir.calling_convention import OutputRole, Value


def number_roles(gm: torch.fx.GraphModule) -> Iterator[OutputRole]:
    """The roles of results of `gm` that are booleans, floats or constants."""
    (items,) = gm.graph.output_node().args
    listed: Sequence[Any] = items if isinstance(items, list | tuple) else (items,)
    for position, item in enumerate(listed):
        at = Value("out", position)
        value = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
        if isinstance(item, bool | float):
            yield OutputRole(value=at, kind="constant", number=item)
        elif isinstance(value, bool | torch.SymBool):
            yield OutputRole(value=at, kind="number", number=bool)
        elif isinstance(value, float | torch.SymFloat):
            yield OutputRole(value=at, kind="number", number=float)
