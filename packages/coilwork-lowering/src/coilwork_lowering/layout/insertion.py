"""New calls in a captured graph."""

from __future__ import annotations

from typing import Any

import torch

from coilwork_lowering.facts.origins import inherit_metadata


def insert_call(
    graph: torch.fx.Graph,
    before: torch.fx.Node,
    like: torch.fx.Node,
    target: Any,
    args: tuple[Any, ...],
    value: torch.Tensor,
    kwargs: dict[str, Any] | None = None,
) -> torch.fx.Node:
    """A call of `target` in front of `before`, with the origin of `like`; `value` is its fake result."""
    with graph.inserting_before(before):
        made = graph.call_function(target, args, kwargs or {})
    made.meta.update(inherit_metadata(like))
    made.meta["val"] = value
    return made
