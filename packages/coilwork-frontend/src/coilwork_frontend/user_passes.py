"""Passes of the user's own: callables that change a graph, before the joint graph is partitioned or behind
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_frontend.errors import PassError

GraphPass = Callable[[torch.fx.GraphModule], torch.fx.GraphModule | None]
"""Changes a graph in place, or returns another one with the same inputs and outputs."""


def name_of(item: Any) -> str:
    """Return what messages call a pass or rewrite."""
    name = getattr(item, "name", None) or getattr(item, "__qualname__", None)
    return name if isinstance(name, str) else type(item).__qualname__


def uuid_of(item: Any) -> str | None:
    """Return what tells a pass or rewrite from others and from its own earlier versions; `None` if it does
    not say.

    That is its attribute `uuid`, or what its method `uuid` returns.
    """
    found = getattr(item, "uuid", None)
    found = found() if callable(found) else found
    return str(found) if isinstance(found, str | bytes | int) and found not in ("", b"") else None


def keys_of(items: Sequence[Any]) -> str:
    """Names and uuids as text for a cache key."""
    return repr([(name_of(item), uuid_of(item)) for item in items])


def list_unkeyed(items: Sequence[Any]) -> tuple[str, ...]:
    """Names of those that have no uuid: what they help to compile is not cached."""
    return tuple(name_of(item) for item in items if uuid_of(item) is None)


def run_passes(
    gm: torch.fx.GraphModule,
    passes: Sequence[GraphPass],
    *,
    where: str,
    complete_values: Callable[[torch.fx.GraphModule], object],
) -> torch.fx.GraphModule:
    """`gm` after all `passes`, one after the other. `where` tells messages which graph it is.

    `complete_values` gives nodes that a pass has made the fake values of their results.

    Raises:
        PassError: a pass fails, or what it makes is no graph with as many inputs and outputs as before.
    """
    for one in passes:
        gm = _run(gm, one, where, complete_values)
    return gm


def _run(
    gm: torch.fx.GraphModule,
    one: GraphPass,
    where: str,
    complete_values: Callable[[torch.fx.GraphModule], object],
) -> torch.fx.GraphModule:
    name, before = name_of(one), _ends(gm)
    try:
        result = one(gm)
        made = gm if result is None else result
        if isinstance(made, torch.fx.GraphModule):
            made.graph.lint()
            complete_values(made)
            made.recompile()
    # a pass is the user's code, which may raise anything
    except Exception as error:
        raise PassError(
            "pass-failed",
            f"pass {name} failed on the {where} graph",
            reason=f"{type(error).__name__}: {error}",
            remedy="correct the pass, or leave it out",
        ) from error
    if not isinstance(made, torch.fx.GraphModule):
        raise PassError(
            "pass-result",
            f"pass {name} returned a {type(made).__name__} for the {where} graph",
            remedy="return a GraphModule, or nothing if the graph was changed in place",
        )
    if _ends(made) != before:
        raise PassError(
            "pass-result",
            f"pass {name} changed the inputs or outputs of the {where} graph",
            reason=f"{before[0]} inputs and {before[1]} outputs became {_ends(made)[0]} and {_ends(made)[1]}",
        )
    return made


def _ends(gm: torch.fx.GraphModule) -> tuple[int, int]:
    """Numbers of inputs and outputs."""
    (returned,) = gm.graph.output_node().args
    outputs = len(returned) if isinstance(returned, list | tuple) else 1
    return sum(node.op == "placeholder" for node in gm.graph.nodes), outputs
