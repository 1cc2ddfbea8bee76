"""`squeeze` of a dimension whose size is known when the program runs.

Torch captures it as a dimension that stays, and everything behind it accordingly. Where the size turns out to
be 1, eager drops the dimension: the captured graph holds for all other sizes, and asserts them. Whoever runs
it does what it was captured from where the assertion fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from coilwork_ir.graph_marks import SQUEEZED_ONE
from coilwork_lowering.torch_compat.sizes import is_from_data, surely

aten: Final = torch.ops.aten
_SQUEEZES: Final = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
_ASSERTION: Final = aten._assert_scalar.default


def squeeze_decompositions() -> dict[Any, Callable[..., Any]]:
    """`squeeze` as it is, behind the assertion."""
    return dict.fromkeys(_SQUEEZES, _squeeze)


def _squeeze(value: torch.Tensor, dims: int | Sequence[int] | None = None) -> Any:
    for size in _find_squeezed(value, dims):
        if not surely(size != 1):
            _ASSERTION(size != 1, SQUEEZED_ONE)
    return NotImplemented


def _find_squeezed(value: torch.Tensor, dims: int | Sequence[int] | None = None) -> list[torch.SymInt]:
    """The sizes from data that `squeeze` is asked to drop if they are 1."""
    chosen = range(value.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    sizes: list[Any] = [value.shape[k] for k in chosen if value.dim() > 0]
    return [size for size in sizes if is_from_data(size)]


def asserts_squeezed_size(node: torch.fx.Node) -> bool:
    """Tell if `node` is that assertion."""
    return node.target is _ASSERTION and node.args[1] == SQUEEZED_ONE


def finds_squeezed_size(node: torch.fx.Node) -> bool:
    """Tell whether `node` is that assertion, or calls a graph that holds it."""
    whole = node.graph.owning_module
    if whole is None or node.op != "call_function":
        return False
    called = (
        whole.get_submodule(str(given.target)) for given in node.all_input_nodes if _is_graph(whole, given)
    )
    return asserts_squeezed_size(node) or any(
        finds_squeezed_size(inner)
        for part in called
        if isinstance(part, torch.fx.GraphModule)
        for inner in part.graph.nodes
    )


def _is_graph(whole: torch.nn.Module, given: torch.fx.Node) -> bool:
    return given.op == "get_attr" and isinstance(getattr(whole, str(given.target), None), torch.nn.Module)


def drop_squeezed_sizes(backward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`backward`, changed in place: what the forward graph has asserted before needs no second assertion."""
    for node in backward.graph.nodes:
        if asserts_squeezed_size(node):
            backward.graph.erase_node(node)
    return backward
