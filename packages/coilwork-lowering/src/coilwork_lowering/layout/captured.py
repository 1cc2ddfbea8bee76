"""Which nodes depend on the strides that their operands were captured with, and which values share memory."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any, Final

import torch

from coilwork_ir.operators import find_info
from coilwork_lowering.torch_compat.operators import Overload, schema_of

_CUDNN: Final = "_cudnn_"


def keeps_captured_operands(target: Any) -> bool:
    """Tell if calls of `target` must get operands with the strides of capture.

    So do higher-order operators, whose nested graphs were traced with them; operators of other libraries,
    which may read memory as they like; attention kernels, chosen for the layout they were traced with; and
    what asks for strides.
    """
    if target is operator.getitem:
        return False
    if not isinstance(target, Overload) or target.namespace not in ("aten", "prims"):
        return True
    name = schema_of(target).name.split("::")[-1]
    return find_info(name).reads_strides or name.startswith(_CUDNN)


def has_fresh_sizes(target: Any) -> bool:
    """Tell if results depend on data: calling `target` again would make new symbols for the same sizes."""
    return isinstance(target, Overload) and (
        torch.Tag.dynamic_output_shape in target.tags or torch.Tag.data_dependent_output in target.tags
    )


def is_random(target: Any) -> bool:
    """Tell if `target` draws random numbers, which it deals out in order of memory."""
    return isinstance(target, Overload) and torch.Tag.nondeterministic_seeded in target.tags


def gathers_pixels(node: torch.fx.Node) -> bool:
    """Tell if a call reads whole pixels by computed positions, as upsampling does: `x[:, :, i, j]`, of the
    rank of `x`.
    """
    if not isinstance(node.target, Overload) or schema_of(node.target).name not in (
        "aten::index",
        "aten::_unsafe_index",
    ):
        return False
    source, listed, *_ = node.args
    if not isinstance(source, torch.fx.Node) or not isinstance(listed, list | tuple):
        return False
    rank = source.meta["val"].dim()
    positions = listed[2:]
    return (
        len(listed) == rank == node.meta["val"].dim()
        and rank in (4, 5)
        and listed[0] is listed[1] is None
        and all(isinstance(item, torch.fx.Node) for item in positions)
    )


def joins_images(node: torch.fx.Node) -> bool:
    """Tell whether a call concatenates tensors of four or five dimensions each."""
    if not isinstance(node.target, Overload) or schema_of(node.target).name != "aten::cat":
        return False
    rank = node.meta["val"].dim()
    return rank in (4, 5) and all(item.meta["val"].dim() == rank for item in node.all_input_nodes)


def takes_memory_format(target: Any) -> bool:
    """Tell if `target` can be told the layout of its result."""
    return isinstance(target, Overload) and any(
        a.name == "memory_format" for a in schema_of(target).arguments
    )


def output_memory(graph: torch.fx.Graph) -> Counter[torch.fx.Node]:
    """Nodes that made the memory of outputs, and how many different outputs each.

    Where these are two or more, a copy for each of them would part what shares memory.
    """
    return Counter(_owner(item) for item in dict.fromkeys(graph.output_node().all_input_nodes))


def _owner(node: torch.fx.Node) -> torch.fx.Node:
    """The node that made the memory that `node` views."""
    while node.op == "call_function":
        source = _viewed(node)
        if source is None:
            return node
        node = source
    return node


def _viewed(node: torch.fx.Node) -> torch.fx.Node | None:
    target, maker = node.target, node
    if target is operator.getitem:
        maker = node.all_input_nodes[0]
        target = maker.target
    if not isinstance(target, Overload):
        return None
    schema = schema_of(target)
    for position, formal in enumerate(schema.arguments):
        if formal.alias_info is not None and not formal.alias_info.is_write and position < len(maker.args):
            source = maker.args[position]
            return source if isinstance(source, torch.fx.Node) else None
    return None
