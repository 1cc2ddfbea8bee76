"""Which nodes of an ATen graph generated code computes where they are read, whatever the strides of what they
read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.torch_compat.operators import Overload, schema_of


def operator(target: Any) -> str:
    """`"mm"` of an ATen or prims operator, `""` of anything else."""
    if isinstance(target, Overload) and target.namespace in ("aten", "prims"):
        return schema_of(target).name.split("::")[-1]
    return ""


def is_view(node: torch.fx.Node) -> bool:
    """Tell if `node` is its first operand's memory under another layout."""
    return node.op == "call_function" and find_info(operator(node.target)).is_view


def is_computed(node: torch.fx.Node) -> bool:
    """Tell if each element of `node` is computed from a few of its operands'."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, Overload) or not operator(target):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags or schema_of(target).is_mutable:
        return False
    return torch.Tag.pointwise in target.tags or find_info(operator(target)).is_elementwise


def is_reduced(node: torch.fx.Node) -> bool:
    """Tell whether `node` is a reduction, or a choice of elements."""
    return node.op == "call_function" and find_info(operator(node.target)).is_reduction


def reads_anywhere(node: torch.fx.Node) -> bool:
    """Tell whether generated code reads the operands of `node`, in place and with any strides; or only their
    shapes.
    """
    return is_computed(node) or is_reduced(node) or find_info(operator(node.target)).is_filled


def owner_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory `node` views: itself if it is no view."""
    while is_view(node) and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def views_of(owner: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Views of `owner`, each before the views of it."""
    open_nodes = [owner]
    while open_nodes:
        for user in open_nodes.pop().users:
            if is_view(user):
                open_nodes.append(user)
                yield user


def readers_of(owner: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Return what reads `owner`, through views of it as well; some more than once."""
    for node in (owner, *views_of(owner)):
        yield from (user for user in node.users if not is_view(user))
