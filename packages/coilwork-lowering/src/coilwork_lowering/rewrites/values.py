"""Fake values of nodes that came without: those that users' passes make."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch import fx

from coilwork_lowering.torch_compat.fakes import mode_among


def complete_values(gm: fx.GraphModule) -> int:
    """Give every call of `gm` without `meta["val"]` one, in place; returns how many.

    Each is computed from its operands' in their fake tensor mode. A call that is there already keeps its
    value: a pass that gives it other operands, with another result, has to delete it.
    """
    mode = mode_among(node.meta.get("val") for node in gm.graph.nodes)
    made = 0
    for node in gm.graph.nodes:
        if node.op != "call_function" or "val" in node.meta or not callable(node.target):
            continue
        args: Any = fx.map_arg(node.args, _value)
        kwargs: Any = fx.map_arg(node.kwargs, _value)
        with nullcontext() if mode is None else mode:
            node.meta["val"] = node.target(*args, **kwargs)
        made += 1
    return made


def _value(node: fx.Node) -> Any:
    return node.meta["val"]
