"""Products whose large results the backward computes again, chunk by chunk, instead of reading all of them.

The logits of a language model are the example. The scheduler computes such a product in chunks, in both
halves, if only point-by-point code, reductions and further products read it, so nothing as large is in memory
at any time. The price is one more product in the backward, which only results that are a considerable part
of the device's memory are worth (`recomputed_bytes` of the machine model).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.machine.model import Products
from coilwork_ir.operators import find_info
from coilwork_lowering.aten_layouts.formats import estimate_bytes
from coilwork_lowering.facts.fx_nodes import get_packet_name, is_pointwise, is_reduction, is_view
from coilwork_lowering.joint.recompute import find_forward_nodes

# Values with a smaller part of the product's elements are of rows or columns.
_LARGE: Final = 0.5


def recompute_large_products(
    gm: torch.fx.GraphModule, *, num_fwd_outputs: int, find_model: FindModel = find_like_model
) -> tuple[torch.fx.Node, ...]:
    """Mark large products of `gm`, a joint graph, and what is computed from them point by point, to be
    computed again in its backward; returns the products.

    Products that the user decided on are left alone. So are those that somebody needs as a whole.
    """
    forward = find_forward_nodes(gm, num_fwd_outputs)
    marked: list[torch.fx.Node] = []
    for node in gm.graph.nodes:
        if node not in forward or not is_large_product(node, find_model, _get_least_recomputed_bytes):
            continue
        values = find_large_values(node, forward)
        again = [value for value in values if value in forward]
        is_read_later = any(user not in forward for value in again for user in value.users)
        if not is_read_later or any("recompute" in value.meta for value in (node,)):
            continue
        for value in again:
            value.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        marked.append(node)
    return tuple(marked)


def _get_least_recomputed_bytes(figures: Products) -> int:
    return figures.recomputed_bytes


def is_large_product(
    node: torch.fx.Node, find_model: FindModel, find_least: Callable[[Products], int]
) -> bool:
    """Tell if `node` multiplies two matrices, and its result is large by itself, in bytes by the figure that
    is `find_least`, and beside its factors.
    """
    roles = find_info(get_packet_name(node.target)).product if node.op == "call_function" else None
    value = node.meta.get("val")
    if roles is None or not isinstance(value, torch.Tensor) or not _is_static_matrix(value):
        return False
    operands = [operand.meta.get("val") for operand in node.all_input_nodes]
    factors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if not all(_is_static(factor) for factor in factors):
        return False
    figures = find_model(str(value.device)).products
    read = sum(estimate_bytes(factor) for factor in factors)
    return estimate_bytes(value) >= max(find_least(figures), figures.chunked_share * read)


def _is_static(value: torch.Tensor) -> bool:
    return all(type(size) is int for size in value.shape)


def _is_static_matrix(value: torch.Tensor) -> bool:
    return value.dim() == 2 and value.dtype.is_floating_point and _is_static(value)


def find_large_values(product: torch.fx.Node, forward: frozenset[torch.fx.Node]) -> tuple[torch.fx.Node, ...]:
    """Return `product`, and the values as large that are computed from it; none if one is needed as a whole,
    by a product of the forward for one, or beside others that are as large.
    """
    size = product.meta["val"].numel()

    def is_large(node: torch.fx.Node) -> bool:
        value = node.meta.get("val")
        return isinstance(value, torch.Tensor) and value.numel() >= _LARGE * size

    found: dict[torch.fx.Node, None] = {product: None}
    for value in _grow(found):
        for user in value.users:
            info = find_info(get_packet_name(user.target))
            if info.is_filled:
                # only the shape is read
                continue
            if is_large(user) and (is_pointwise(user) or is_view(user)):
                if any(is_large(at) and _is_in_memory(at) for at in user.all_input_nodes if at not in found):
                    return ()
                found[user] = None
            elif not is_reduction(user) and (info.product is None or user in forward):
                return ()
    return tuple(found)


def _is_in_memory(node: torch.fx.Node) -> bool:
    """Tell if `node` is an input, or the result of another product."""
    return node.op == "placeholder" or find_info(get_packet_name(node.target)).product is not None


def _grow(found: dict[torch.fx.Node, None]) -> Iterator[torch.fx.Node]:
    """Return each of `found` once, those that are added meanwhile included."""
    done = 0
    while done < len(found):
        value = tuple(found)[done]
        done += 1
        yield value
