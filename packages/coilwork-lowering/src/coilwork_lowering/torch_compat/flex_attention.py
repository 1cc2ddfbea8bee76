"""What torch's `flex_attention` is told, and its functions of one score as functions of all scores."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat.graphs import copy_graph, trace_call

# Where a block mask, flattened, has its lists: counts and indices of blocks of keys for blocks of rows, of
# full ones, and the same of rows for keys. From 2.12 on there are further entries behind them.
KEY_LISTS: Final = (2, 3)
FULL_KEY_LISTS: Final = (4, 5)
ROW_LISTS: Final = (6, 7)
FULL_ROW_LISTS: Final = (8, 9)
ROW_BLOCK: Final = -3
KEY_BLOCK: Final = -2
MASK: Final = -1


def use_batched_casts(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """`module` itself, or a copy whose casts torch can batch.

    AOTAutograd's graphs of gradients have `prims.convert_element_type`, for which `vmap` calls once for each
    score: millions of times.
    """
    cast = torch.ops.prims.convert_element_type.default
    if not any(node.target is cast for node in module.graph.nodes):
        return module
    graph = copy_graph(module.graph)
    for node in graph.find_nodes(op="call_function", target=cast):
        source, dtype = node.args
        node.target, node.args, node.kwargs = torch.ops.aten._to_copy.default, (source,), {"dtype": dtype}
    return torch.fx.GraphModule(module, graph)


def trace_over_scores(
    function: torch.fx.GraphModule,
    shape: Sequence[Any],
    given: Sequence[Any],
    *,
    numbers: int,
    device: torch.device,
    mode: AbstractContextManager[object] | None,
) -> torch.fx.GraphModule:
    """The graph of `function` at all places of `[batch, heads, rows, keys]` scores, of which it is asked for
    the first result.

    `function` takes a score if `numbers` is at least 1, four positions, the gradient of what it returns if
    `numbers` is 2, and `given`. The graph takes `numbers` tensors of all scores, the four positions as lines,
    and the tensors and numbers among `given`.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    batched = use_batched_casts(function)

    def first(*args: Any) -> Any:
        found = batched(*args)
        return found[0] if isinstance(found, list | tuple) else found

    over = _vmap_for_bhqkv(
        first, prefix=(0,) * (numbers > 0), suffix=(0,) * (numbers > 1) + (None,) * len(given)
    )

    def call(*values: Any) -> Any:
        scores, places, rest = values[:numbers], values[numbers : numbers + 4], values[numbers + 4 :]
        with TransformGetItemToIndex():
            return over(*scores[:1], *places, *scores[1:], *rest)

    def make() -> list[torch.Tensor]:
        scores = [torch.empty(tuple(shape), dtype=torch.float32, device=device) for _ in range(numbers)]
        return [*scores, *(torch.arange(0, size, device=device) for size in shape)]

    with nullcontext() if mode is None else mode:
        made = make()
    graph = trace_call(call, [*made, *given], mode)
    module = graph.owning_module
    return torch.fx.GraphModule({} if module is None else module, graph)
