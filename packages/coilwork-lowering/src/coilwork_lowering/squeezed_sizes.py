"""`squeeze` of a dimension whose size is known when the program runs.

Torch captures it as a dimension that stays, and everything behind it accordingly. Where the size turns out to be 1, eager drops the
dimension: the captured graph holds for all other sizes, and asserts them. Whoever runs it does what it was captured from where the
assertion fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat import is_from_data, surely

aten: Final = torch.ops.aten
SQUEEZED_ONE: Final = "squeeze() of a size from data: it is 1, and the graph was captured for all others"
"""The message of the assertion."""


def squeeze_decompositions() -> dict[Any, Callable[..., Any]]:
    """`squeeze` as it is, behind the assertion."""
    return {aten.squeeze.default: _squeeze, aten.squeeze.dim: _squeeze, aten.squeeze.dims: _squeeze}


def _squeeze(value: torch.Tensor, dims: int | Sequence[int] | None = None) -> Any:
    chosen = range(value.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    for size in [value.shape[k] for k in chosen if value.dim() > 0]:
        if is_from_data(size) and not surely(size != 1):
            aten._assert_scalar.default(size != 1, SQUEEZED_ONE)
    return NotImplemented


def asserts_squeezed_size(node: torch.fx.Node) -> bool:
    """Whether `node` is that assertion."""
    return node.target is aten._assert_scalar.default and node.args[1] == SQUEEZED_ONE


def without_squeezed_sizes(backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`backward`, changed in place: what the forward graph has asserted before needs no second assertion."""
    for node in backward.graph.nodes:
        if asserts_squeezed_size(node):
            backward.graph.erase_node(node)
    return backward
