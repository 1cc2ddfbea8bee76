"""`addcmul` and `addcdiv` by a number: Dynamo writes them out, whatever types they are of.

Eager refuses to divide integers so and to multiply truth values, and cuts a fraction off that multiplies
integers. What Dynamo wrote is put together again for these types, before anything looks at the graph. It is
told from what a user writes by the place in the source: calls that a user writes one in another have places
of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

_FMA: Final = "prims.fma.default"


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A call that was written out: `given` plus `value` times what `product`, of two operands, computes.

    `parts` are the nodes that compute the summand, the product last.
    """

    given: Any
    product: fx.Node
    value: Any
    parts: tuple[fx.Node, ...]


def restore_scaled_products(gm: fx.GraphModule) -> None:
    """Put `addcmul` and `addcdiv` of integers and truth values back into Dynamo's graph `gm`, in place."""
    changed = False
    for node in list(gm.graph.nodes):
        found = _written_out(node)
        if found is None or not _differs_in_eager(found):
            continue
        name = "addcdiv" if found.product.target is torch.div else "addcmul"
        is_in_place = node.target == "copy_"
        with gm.graph.inserting_before(node):
            target: Any = f"{name}_" if is_in_place else getattr(torch, name)
            make = gm.graph.call_method if is_in_place else gm.graph.call_function
            made = make(target, (found.given, *found.product.args), {"value": found.value})
        made.meta.update(node.meta)
        node.replace_all_uses_with(made)
        for part in (node, *found.parts):
            if not part.users:
                gm.graph.erase_node(part)
        changed = True
    if changed:
        gm.recompile()


def _written_out(node: fx.Node) -> _Scaled | None:
    """The parts of a call that Dynamo wrote out in nodes of which `node` is the last; None of others."""
    summand = node.args[1] if len(node.args) == 2 else None
    if not isinstance(summand, fx.Node):
        return None
    if node.op == "call_method" and node.target == "copy_" and _is_fma(summand):
        product, value, given = summand.args
    elif node.target is torch.add and summand.target is torch.mul and len(summand.args) == 2:
        given, (product, value) = node.args[0], summand.args
    else:
        return None
    if not isinstance(product, fx.Node) or product.target not in (torch.mul, torch.div):
        return None
    parts = (summand, product)
    if given is not node.args[0] or len(product.args) != 2 or product.kwargs:
        return None
    trace = node.meta.get("stack_trace")
    if not trace or any(part.meta.get("stack_trace") != trace for part in parts):
        return None
    return _Scaled(given, product, value, parts)


def _is_fma(node: fx.Node) -> bool:
    """Tell if `node` calls the multiply-add that Dynamo writes, for which torch has no function."""
    return str(node.target) == _FMA


def _differs_in_eager(found: _Scaled) -> bool:
    """Tell if eager computes integers, or would have to."""
    operands = found.product.args if found.product.target is torch.div else (found.given,)
    values = [one.meta.get("example_value") if isinstance(one, fx.Node) else one for one in operands]
    return all(
        isinstance(one, Tensor) and not one.is_floating_point() and not one.is_complex() for one in values
    )
