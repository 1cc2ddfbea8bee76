"""Read what torch's `flex_attention` is told, and its functions of one score as functions of all scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
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
# Where the gradients of captured tensors begin among the results of a function's derivative: behind those of
# the score and of its position.
CAPTURED: Final = 5

# Scores for which an operator without a batching rule may be called one by one.
_MOST_CALLS: Final = 64


class UnbatchedOperatorError(RuntimeError):
    """A function of scores calls an operator that torch can only call once for each score."""


@contextmanager
def limit_calls(shape: Sequence[Any]) -> Iterator[None]:
    """Within, torch calls no operator once for each of the scores of `shape`, unless these are few.

    `vmap` does so with operators that have no batching rule, and each call becomes a node of the graph. Only
    one thread traces at a time, so the setting, which is the process's, may be changed.

    Raises:
        UnbatchedOperatorError: it would have to.
    """
    functorch: Any = torch._C._functorch
    if all(isinstance(size, int) for size in shape) and prod(shape) <= _MOST_CALLS:
        yield
        return
    before = functorch._is_vmap_fallback_enabled()
    functorch._set_vmap_fallback_enabled(False)
    try:
        yield
    except RuntimeError as cause:
        if "vmap fallback" not in str(cause):
            raise
        operator = str(cause).partition(" ")[0] or "an operator"
        raise UnbatchedOperatorError(
            f"{operator} has no batching rule: torch would call it once for each of {list(shape)} scores; "
            "register one with torch.library.register_vmap"
        ) from cause
    finally:
        functorch._set_vmap_fallback_enabled(before)


def is_sum_of_terms(node: torch.fx.Node) -> bool:
    """Tell if `node` adds terms up at indices, as a function's derivative does for a captured tensor: a call
    with the tensor's shape, the indices and the terms.
    """
    return node.target is torch.ops.flex_lib.zeros_and_scatter.default


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
    results: Sequence[int] = (0,),
) -> torch.fx.GraphModule:
    """Return the graph of `function` at all places of `[batch, heads, rows, keys]` scores, of which it is
    asked for these `results`.

    `function` takes a score if `numbers` is at least 1, four positions, the gradient of what it returns if
    `numbers` is 2, and `given`. The graph takes `numbers` tensors of all scores, the four positions as lines,
    and the tensors and numbers among `given`.

    Raises:
        UnbatchedOperatorError: it calls an operator that torch cannot batch.
    """
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    batched = use_batched_casts(function)

    def choose(*args: Any) -> Any:
        found = batched(*args)
        return tuple(found[number] for number in results) if isinstance(found, list | tuple) else found

    over = _vmap_for_bhqkv(
        choose, prefix=(0,) * (numbers > 0), suffix=(0,) * (numbers > 1) + (None,) * len(given)
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
    with limit_calls(shape):
        graph = trace_call(call, [*made, *given], mode)
    module = graph.owning_module
    return torch.fx.GraphModule({} if module is None else module, graph)


def attend_with_cap(
    query: torch.Tensor,
    key: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    inner: float,
    cap: float,
) -> torch.Tensor:
    """`flex_attention` whose scores are `cap * tanh(inner * score)`, plus a `mask` of their shape."""
    from torch._higher_order_ops.flex_attention import flex_attention
    from torch.nn.attention.flex_attention import _create_empty_block_mask

    def change(score: Any, b: Any, h: Any, q: Any, k: Any, *captured: Any) -> Any:
        found = cap * torch.tanh(score * inner)
        return found + captured[0][b, h, q, k] if captured else found

    blocks = _create_empty_block_mask(query, key).as_tuple()
    captured = () if mask is None else (mask,)
    result, *_ = flex_attention(query, key, values, change, blocks, scale, {}, captured, ())
    # a matrix product's result was dense
    return result.contiguous()
