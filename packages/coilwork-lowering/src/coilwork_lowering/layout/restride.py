"""What depends on a value's strides, and what its views become when these change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from coilwork_lowering.facts.alias_analysis import written_operands
from coilwork_lowering.facts.fx_nodes import owner_of, readers_of, reads_anywhere, views_of
from coilwork_lowering.layout.formats import Size
from coilwork_lowering.layout.products import is_product


def dependence_on_strides(node: torch.fx.Node) -> str:
    """Why `node` must keep its strides for those who read it, directly or through views; empty if it need
    not.
    """
    owner = owner_of(node)
    for reader in readers_of(node):
        if reader.op == "output":
            return "returned to the caller"
        if any(owner_of(written) is owner for written in written_operands(reader)):
            return "written to"
        if not (reads_anywhere(reader) or is_product(reader)):
            return f"read by {reader.name}, which depends on strides"
    return ""


def views_over(
    node: torch.fx.Node, value: torch.Tensor, mode: AbstractContextManager[object]
) -> Mapping[torch.fx.Node, torch.Tensor] | None:
    """Fake tensors of `node`, given as `value`, and of all its views; None if a view cannot be had without a
    copy.
    """
    values = {node: value}
    with mode:
        for view in views_of(node):
            given = torch.fx.map_arg(view.args, lambda n: values.get(n, n.meta.get("val")))
            named = torch.fx.map_arg(view.kwargs, lambda n: values.get(n, n.meta.get("val")))
            call: Any = view.target
            try:
                values[view] = call(*given, **named)
            except (RuntimeError, ValueError):
                # this view cannot be had without a copy; which error says so depends on torch's version
                return None
    return values


def set_value(node: torch.fx.Node, value: torch.Tensor) -> None:
    """Let the metadata of `node` say `value`."""
    node.meta["val"] = value
    node.meta.pop("tensor_meta", None)


def row_major(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides of dense rows."""
    below: Size = 1
    strides: list[Size] = []
    for size in reversed(shape):
        strides.append(below)
        below = size * below
    return tuple(reversed(strides))
