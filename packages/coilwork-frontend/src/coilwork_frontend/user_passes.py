"""Run the user's own passes, before or after the joint graph is partitioned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_frontend.errors import PassError

GraphPass = Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]
"""A pass changes a graph in place, or returns another one with the same inputs and outputs."""


def name_of(item: Any) -> str:
    """Return the name of a pass or rewrite in messages."""
    name = getattr(item, "name", None) or getattr(item, "__qualname__", None)
    return name if isinstance(name, str) else type(item).__qualname__


def find_uuid(item: Any) -> str | None:
    """Return the `uuid` of a pass or rewrite, an attribute or a method; `None` if there is none.

    It differs between passes, and between versions of a pass.
    """
    uuid = getattr(item, "uuid", None)
    uuid = uuid() if callable(uuid) else uuid
    return str(uuid) if isinstance(uuid, str | bytes | int) and uuid not in ("", b"") else None


def make_key_text(items: Sequence[Any]) -> str:
    """Return names and uuids of passes or rewrites as text for a cache key."""
    return repr([(name_of(item), find_uuid(item)) for item in items])


def list_unkeyed(items: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of passes or rewrites without a uuid; graphs that they change are not cached."""
    return tuple(name_of(item) for item in items if find_uuid(item) is None)


def run_passes(
    gm: torch.fx.GraphModule,
    passes: Sequence[GraphPass],
    *,
    where: str,
    complete_values: Callable[[torch.fx.GraphModule], object],
) -> torch.fx.GraphModule:
    """Run `passes` on `gm`, one after the other, and return the last graph.

    `where` names the graph in messages. `complete_values` computes fake values for nodes that a pass has
    made.

    Raises:
        PassError: a pass fails, or its result is no graph with as many inputs and outputs as before.
    """
    for graph_pass in passes:
        gm = _run(gm, graph_pass, where, complete_values)
    return gm


def _run(
    gm: torch.fx.GraphModule,
    graph_pass: GraphPass,
    where: str,
    complete_values: Callable[[torch.fx.GraphModule], object],
) -> torch.fx.GraphModule:
    name, before = name_of(graph_pass), _count_ends(gm)
    try:
        returned = graph_pass(gm)
        result = gm if returned is None else returned
        if isinstance(result, torch.fx.GraphModule):
            result.graph.lint()
            complete_values(result)
            result.recompile()
    # a pass is the user's code, which may raise anything
    except Exception as error:
        raise PassError(
            "pass-failed",
            f"pass {name} failed on the {where} graph",
            reason=f"{type(error).__name__}: {error}",
            remedy="correct the pass, or leave it out",
        ) from error
    if not isinstance(result, torch.fx.GraphModule):
        raise PassError(
            "pass-result",
            f"pass {name} returned a {type(result).__name__} for the {where} graph",
            remedy="return a GraphModule, or nothing if the graph was changed in place",
        )
    after = _count_ends(result)
    if after != before:
        raise PassError(
            "pass-result",
            f"pass {name} changed the inputs or outputs of the {where} graph",
            reason=f"{before[0]} inputs and {before[1]} outputs became {after[0]} and {after[1]}",
        )
    return result


def _count_ends(gm: torch.fx.GraphModule) -> tuple[int, int]:
    """Return the numbers of inputs and outputs."""
    (returned,) = gm.graph.output_node().args
    outputs = len(returned) if isinstance(returned, list | tuple) else 1
    return sum(node.op == "placeholder" for node in gm.graph.nodes), outputs
