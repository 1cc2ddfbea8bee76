"""Find saved values whose strides the forward graph may choose.

Only the backward graph reads them, and it is compiled after the forward graph, for the strides that this one
reports. A value keeps its captured strides where an operator of the backward graph reads strides: one that
runs as a call, or returns its operand's memory.
"""

from __future__ import annotations

from typing import Any

import torch

from coilwork_ir.fx_metadata import FREE_STRIDES
from coilwork_ir.operators import find_target_info
from coilwork_ir.saved_layouts import SAVED_LAYOUT, SavedLayout, find_order
from coilwork_lowering.aten_layouts.formats import is_same_size
from coilwork_lowering.facts.alias_analysis import list_mutated_operands
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.registry import RULES
from coilwork_lowering.torch_compat.operators import Overload, get_schema
from coilwork_lowering.torch_compat.sizes import is_from_data


def free_saved_strides(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    *,
    num_fwd_outputs: int,
    lowering: LoweringOptions,
) -> int:
    """Mark the values that `forward` saves and that nothing in `backward` reads the strides of; their number.

    Sizes may be open, but not from data. Autograd carries strides as numbers; how values of open sizes lie,
    which have no gaps, both halves find in the `SavedLayout` that is put into them here.
    """
    results = forward.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    returned = {node for node in results[:num_fwd_outputs] if isinstance(node, torch.fx.Node)}
    inputs = {node.name: node for node in backward.graph.nodes if node.op == "placeholder"}
    count = 0
    for node in results[num_fwd_outputs:]:
        if not isinstance(node, torch.fx.Node) or node.op != "call_function" or node in returned:
            continue
        reader = inputs.get(node.name)
        if reader is None or not _has_known_strides(node.meta.get("val")) or _reads_strides(reader, lowering):
            continue
        node.meta[FREE_STRIDES] = True
        node.meta[SAVED_LAYOUT] = reader.meta[SAVED_LAYOUT] = SavedLayout()
        count += 1
    return count


def has_free_strides(node: Any) -> bool:
    """Tell if `node` of a forward graph is marked."""
    return isinstance(node, torch.fx.Node) and bool(node.meta.get(FREE_STRIDES))


def _has_known_strides(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    if all(type(number) is int for number in value.stride()):
        return True
    is_known = not any(map(is_from_data, (*value.shape, *value.stride())))
    return is_known and find_order(value.shape, value.stride(), is_same_size) is not None


def _reads_strides(node: torch.fx.Node, lowering: LoweringOptions) -> bool:
    """Tell if a user of `node`, or of a view of it, depends on how it lies in memory."""
    for user in node.users:
        if user.op == "output":
            continue
        name = str(user.target)
        if not isinstance(user.target, Overload) or name not in RULES:
            return True
        if (
            find_target_info(name).reads_strides
            or lowering.falls_back(name)
            or node in list_mutated_operands(user)
        ):
            return True
        formals = get_schema(user.target).arguments
        is_view = any(formal.alias_info is not None for formal in formals)
        names = {formal.name for formal in formals}
        # strides of a view, or bits of a neighbour
        if is_view and ("stride" in names or "dtype" in names):
            return True
        if is_view and _reads_strides(user, lowering):
            return True
    return False
