"""Calls of whose results torch's fake tensors tell another shape than eager gives: they are said in other
words.

`torch.masked_select(x, mask)` of a row by a matrix chooses from more places than the row has elements. Eager
broadcasts both. Fake tensors take the number of elements of `x` for the most that may be chosen, a bound that
does not hold, and that the compiled program is held to. Of an `x` that was broadcast before, it does.

`torch.nansum(x, dim=[])` sums over all dimensions. Fake tensors sum over none, which a gradient is held to.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.sizes import are_equal_sizes

aten: Final = torch.ops.aten
_SELECTIONS: Final = (torch.masked_select, aten.masked_select, aten.masked_select.default)
_SUMS: Final = frozenset(
    {
        *(torch.nansum, aten.nansum, aten.nansum.default),
        *(torch.nanmean, aten.nanmean, aten.nanmean.default),
    }
)
_METHODS: Final = frozenset({"nansum", "nanmean"})


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
    return node.target == "masked_select" if node.op == "call_method" else node.target in _SELECTIONS


def sum_over_all(gm: fx.GraphModule) -> None:
    """Let sums of Dynamo's graph `gm` over a list of no dimensions, in place, be over all dimensions."""
    changed = False
    for node in gm.graph.nodes:
        if not _skips_nan(node):
            continue
        args, kwargs = (_with_all(given) for given in (dict(enumerate(node.args)), node.kwargs))
        changed |= args != dict(enumerate(node.args)) or kwargs != node.kwargs
        node.args, node.kwargs = tuple(args.values()), kwargs
    if changed:
        gm.recompile()


def _skips_nan(node: fx.Node) -> bool:
    return node.target in _METHODS if node.op == "call_method" else node.target in _SUMS


def _with_all(arguments: dict[Any, Any]) -> dict[Any, Any]:
    """The arguments, with `None`, which stands for all, in the place of a list of no dimensions."""
    return {
        name: None if name in (1, "dim") and _is_empty(given) else given for name, given in arguments.items()
    }


def _is_empty(given: object) -> bool:
    return isinstance(given, list | tuple) and not given
