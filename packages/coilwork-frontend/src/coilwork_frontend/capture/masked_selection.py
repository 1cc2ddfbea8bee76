"""Elements chosen by a mask of more places than there are elements: `torch.masked_select(x, mask)` of a row by a matrix.

Eager broadcasts both. Torch's fake tensors take the number of elements of `x` for the most that may be chosen, a bound that
does not hold, and that the compiled program is held to. Of an `x` that was broadcast before, it does.
"""

from __future__ import annotations

import operator
from typing import Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.sizes import are_equal_sizes

_FUNCTIONS: Final = (torch.masked_select, torch.ops.aten.masked_select.default)


def broadcast_selections(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, broadcast what such a mask chooses from."""
    changed = False
    for node in list(gm.graph.nodes):
        if not _selects(node):
            continue
        operands = tuple(node.all_input_nodes)
        shapes = [one.meta["example_value"].shape for one in operands]
        if len(shapes) != 2 or are_equal_sizes(*shapes):
            continue
        with gm.graph.inserting_before(node):
            both = gm.graph.call_function(torch.broadcast_tensors, operands)
            parts = [gm.graph.call_function(operator.getitem, (both, k)) for k in range(2)]
        for operand, part in zip(operands, parts, strict=True):
            node.replace_input_with(operand, part)
        changed = True
    if changed:
        gm.recompile()


def _selects(node: fx.Node) -> bool:
    return node.target == "masked_select" if node.op == "call_method" else node.target in _FUNCTIONS
