"""Inputs whose memory only their own operators can read: oneDNN's tensors (`x.to_mkldnn()`), and those that
`torch.func.functionalize` wraps around a compiled function.

Torch's fake tensors show them as plain tensors, so nothing in a captured graph tells them apart; the real
inputs do. Torch's guards do, too: a graph that was compiled for others is never called with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from coilwork_frontend.errors import CoilworkFallbackWarning, CompileError
from coilwork_frontend.torch_compat.tensors import is_functional_wrapper
from coilwork_frontend.user_warnings import warn_user


def has_opaque_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Tell if a real input of Dynamo's graph lies in memory in another way than the graph says."""
    return bool(_opaque(gm, example_inputs))


def left_to_eager(gm: fx.GraphModule, example_inputs: Sequence[Any], *, strict: bool) -> Callable[..., Any]:
    """The captured graph as it is, with a warning that says which of its inputs are such tensors.

    Raises:
        CompileError: instead, with `strict`.
    """
    node, value = _opaque(gm, example_inputs)[0]
    error = _explain(node.name, value)
    if strict:
        raise error
    warn_user(f"a graph runs in eager mode: {error}", CoilworkFallbackWarning)
    return gm


def _explain(name: str, value: torch.Tensor) -> CompileError:
    if is_functional_wrapper(value):
        return CompileError(
            "opaque-input",
            f"input {name} is wrapped by torch.func.functionalize, which generated code cannot read",
            reason="torch cannot trace the gradients of a graph inside of it",
            remedy=(
                "call the compiled function without functionalize: the compiler does the same to its graph"
            ),
        )
    return CompileError(
        "opaque-input",
        f"input {name} has layout {value.layout}, which generated code cannot read",
        reason="torch captures it as a tensor with strides, which it does not have",
        remedy="call .to_dense() before the compiled function",
    )


def _opaque(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[tuple[fx.Node, torch.Tensor]]:
    found: list[tuple[fx.Node, torch.Tensor]] = []
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True):
        captured = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and isinstance(captured, torch.Tensor):
            is_opaque = value.layout != captured.layout or is_functional_wrapper(value)
            found += [(node, value)] if is_opaque else []
    return found
