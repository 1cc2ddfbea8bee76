"""Gradients of a loss that the forward computes beside the loss itself, up to a factor that comes later.

The logits of a language model are the example. All that the backward makes of them are two products and a
sum, the gradients of hidden states, weight and bias. These depend on what the backward is given, the loss's
own gradient, by one factor. So the forward computes them with 1 in its place, chunk by chunk, as the
scheduler computes products that only loops and further products read: logits are never in memory as a whole,
and no product is computed twice. What is kept are the sums, in f32, and the backward multiplies them by the
factor and rounds them once.

It costs the traffic of sums to which each chunk adds a part, a share of the time that falls with the number
of rows, and gradients of a loss that nobody asks for in the end. So it is done for large results of many rows
(`early_gradient_bytes` and `early_gradient_rows` of the machine model), where what is kept is less than what
would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.machine.model import Products
from coilwork_ir.operators import find_info
from coilwork_lowering.aten_layouts.formats import estimate_bytes
from coilwork_lowering.facts.fx_nodes import get_packet_name, insert_call, is_view
from coilwork_lowering.joint.halves import is_tangent
from coilwork_lowering.joint.large_products import find_large_values, is_large_product
from coilwork_lowering.joint.recompute import find_forward_nodes
from coilwork_lowering.torch_compat.partitioning import is_input_of_forward

_aten: Final = torch.ops.aten
_convert: Final = torch.ops.prims.convert_element_type.default
# f16 has no room for gradients that are not scaled yet.
_TYPES: Final = frozenset({torch.bfloat16, torch.float32})


def compute_gradients_early(
    gm: torch.fx.GraphModule, *, num_fwd_outputs: int, find_model: FindModel = find_like_model
) -> tuple[torch.fx.Node, ...]:
    """Have the forward of `gm`, a joint graph, compute what the backward makes of large products, but for a
    factor; returns the products.

    Left as they are: products that the user decided on, results that somebody needs as a whole, and losses
    whose gradients are no product of one number with something that the forward knows.
    """
    forward = find_forward_nodes(gm, num_fwd_outputs)
    found: list[torch.fx.Node] = []
    for product in list(gm.graph.nodes):
        if product not in forward or "recompute" in product.meta:
            continue
        if not is_large_product(product, find_model, _get_least_gradient_bytes):
            continue
        region = _find_region(product, forward)
        if region is None or not _pays(product, region, find_model):
            continue
        _move(gm, region)
        for value in region.large:
            if value in forward:
                _sum_chosen(value)
        for value in region.large:
            if value in forward and all(user in forward for user in value.users):
                # nobody computes it again now
                value.meta.pop("recompute", None)
        found.append(product)
    return tuple(found)


def _get_least_gradient_bytes(figures: Products) -> int:
    return figures.early_gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """The values that the backward computes of a large product.

    Attributes:
        large: the values as large as the product, of both halves.
        nodes: all of the backward that `ends` are computed from, in order, and these.
        ends: the results: products and sums.
        tangent: the number that the ends are a multiple of.
    """

    large: tuple[torch.fx.Node, ...]
    nodes: tuple[torch.fx.Node, ...]
    ends: tuple[torch.fx.Node, ...]
    tangent: torch.fx.Node


def _find_region(product: torch.fx.Node, forward: frozenset[torch.fx.Node]) -> _Region | None:
    """Return the region of `product`; None where the forward cannot compute it."""
    large = find_large_values(product, forward)
    later = [value for value in large if value not in forward]
    inside = _find_sources(later, forward)
    ends = tuple(dict.fromkeys(user for value in later for user in value.users if user not in inside))
    if not ends or not all(_is_end(end) for end in ends):
        return None
    inside |= _find_sources(list(ends), forward)
    ordered = [node for node in product.graph.nodes if node in inside]
    given = [node for node in ordered if node.op == "placeholder"]
    tangents = [node for node in given if is_tangent(node)]
    if not all(is_input_of_forward(node) for node in given if node not in tangents):
        return None
    if len(tangents) != 1 or tangents[0].meta["val"].numel() != 1:
        return None
    nodes = tuple(node for node in ordered if node.op != "placeholder")
    region = _Region(large=large, nodes=nodes, ends=ends, tangent=tangents[0])
    varying = _find_linear(region)
    return None if varying is None or not varying.issuperset(ends) else region


def _find_sources(nodes: list[torch.fx.Node], forward: frozenset[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return `nodes` and what they are computed from, but for what the forward computes."""
    found: set[torch.fx.Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node not in found and node not in forward:
            found.add(node)
            pending += node.all_input_nodes
    return found


def _is_end(node: torch.fx.Node) -> bool:
    """Tell if `node` is a product of two matrices or a sum, of a type whose sums are kept in f32."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in _TYPES:
        return False
    return bool(node.target in (_aten.mm.default, _aten.sum.dim_IntList))


def _find_linear(region: _Region) -> frozenset[torch.fx.Node] | None:
    """Return the nodes of `region` that are the tangent times something; None if another depends on it."""
    varying = {region.tangent}
    for node in region.nodes:
        if varying.isdisjoint(node.all_input_nodes) or find_info(get_packet_name(node.target)).is_filled:
            continue
        if not _keeps_factor(node, varying):
            return None
        varying.add(node)
    return frozenset(varying)


def _keeps_factor(node: torch.fx.Node, varying: set[torch.fx.Node]) -> bool:
    """Tell if `node`, which reads some of `varying`, has the factor that these have."""
    name, operands = get_packet_name(node.target), node.args
    places = [k for k, operand in enumerate(operands) if operand in varying]
    if len(places) != sum(operand in varying for operand in node.all_input_nodes):
        return False
    if is_view(node):
        return places == [0]
    match name:
        case "neg" | "sum" | "clone" | "convert_element_type" | "_to_copy":
            return places == [0]
        case "mul" | "mm" | "bmm":
            return len(places) == 1
        case "div":
            return places == [0] and "rounding_mode" not in node.kwargs
        case "add" | "sub":
            return all(k in places or _is_zero(operands[k]) for k in (0, 1))
        case "where":
            return 0 not in places and all(k in places or _is_zero(operands[k]) for k in (1, 2))
        case "scatter_add" | "scatter":
            return places == [3] and _is_zero(operands[0])
        case "constant_pad_nd" | "masked_fill":
            return places == [0] and (len(operands) < 3 or _is_zero(operands[2]))
        case _:
            return False


def _is_zero(operand: Any) -> bool:
    """Tell if `operand` is 0, or filled with zeros."""
    if not isinstance(operand, torch.fx.Node):
        return isinstance(operand, int | float) and operand == 0
    name = get_packet_name(operand.target)
    if name in ("scalar_tensor", "full", "full_like"):
        return _is_zero(operand.args[0 if name == "scalar_tensor" else 1])
    return name in ("zeros", "zeros_like", "new_zeros")


def _pays(product: torch.fx.Node, region: _Region, find_model: FindModel) -> bool:
    """Tell if `product` has rows enough, and what would be kept of it is more than the sums are."""
    value = product.meta["val"]
    if value.dtype not in _TYPES or (value.dtype is torch.bfloat16 and torch.version.hip is not None):
        # other libraries are not known to leave sums in f32
        return False
    figures = find_model(str(value.device)).products
    if value.shape[0] < figures.early_gradient_rows:
        return False
    kept = sum(4 * end.meta["val"].numel() for end in region.ends)
    return bool(kept <= figures.early_gradient_share * estimate_bytes(value))


def _move(gm: torch.fx.GraphModule, region: _Region) -> None:
    """Let the forward compute the ends of `region` with 1 for the tangent, and the backward multiply them."""
    graph = gm.graph
    first, value = region.nodes[0], region.tangent.meta["val"]
    with value.fake_mode:
        one = torch.ones(value.shape, dtype=value.dtype, device=value.device)
    shape = list(value.shape)
    options = {"dtype": value.dtype, "device": value.device}
    made = {region.tangent: insert_call(graph, first, first, _aten.full.default, (shape, 1), one, options)}
    for node in region.nodes:
        copied = _copy_end(node, made) if node in region.ends else _copy(node, made)
        made[node] = copied
    for end in region.ends:
        _finish(end, made[end], region.tangent)
    for node, copied in made.items():
        copied.meta["partitioner_tag"] = "must_be_in_forward" if node in region.ends else "is_forward"
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    gm.recompile()


def _sum_chosen(value: torch.fx.Node) -> None:
    """Let what chooses one element of each row of `value` go through rows, as what makes gradients of them
    does: one kernel then does both, in their own memory.
    """
    for user in list(value.users):
        if (
            user.target is not _aten.gather.default
            or user.args[0] is not value
            or user.args[1] not in (1, -1)
        ):
            continue
        index, graph, chosen = user.args[2], user.graph, user.meta["val"]
        whole = value.meta["val"]
        if not isinstance(index, torch.fx.Node) or tuple(chosen.shape) != (whole.shape[0], 1):
            continue
        with chosen.fake_mode:
            columns = torch.empty(whole.shape[1], dtype=torch.int64, device=whole.device)
            equal = torch.empty(whole.shape, dtype=torch.bool, device=whole.device)
            zero = torch.empty((), dtype=whole.dtype, device=whole.device)
            parts = torch.empty(whole.shape, dtype=whole.dtype, device=whole.device)
        options = {"device": whole.device}
        each = insert_call(graph, user, user, _aten.arange.default, (whole.shape[1],), columns, options)
        same = insert_call(graph, user, user, _aten.eq.Tensor, (each, index), equal)
        none = insert_call(
            graph, user, user, _aten.full.default, ([], 0), zero, {**options, "dtype": whole.dtype}
        )
        part = insert_call(graph, user, user, _aten.where.self, (same, value, none), parts)
        total = insert_call(graph, user, user, _aten.sum.dim_IntList, (part, [1], True), chosen)
        user.replace_all_uses_with(total)
        graph.erase_node(user)


def _copy(node: torch.fx.Node, made: Mapping[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    graph = node.graph
    with graph.inserting_before(node):
        copied = graph.node_copy(node, lambda operand: made.get(operand, operand))
    copied.meta = dict(node.meta)
    copied.meta.pop("recompute", None)
    return copied


def _copy_end(node: torch.fx.Node, made: Mapping[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
    """Return a copy of `node` whose sums are kept in f32."""
    copied = _copy(node, made)
    value = node.meta["val"]
    if value.dtype is not torch.float32:
        with value.fake_mode:
            copied.meta["val"] = torch.empty_strided(
                value.shape, value.stride(), dtype=torch.float32, device=value.device
            )
        if node.target is _aten.mm.default:
            copied.target = _aten.mm.dtype
            copied.args = (*copied.args, torch.float32)
        else:
            copied.update_kwarg("dtype", torch.float32)
    copied.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return copied


def _finish(end: torch.fx.Node, sums: torch.fx.Node, tangent: torch.fx.Node) -> None:
    """Put the product of `sums` and `tangent` in the place of `end`."""
    graph, value, wide = end.graph, end.meta["val"], sums.meta["val"]
    factor = tangent
    if tangent.meta["val"].dtype is not torch.float32:
        with value.fake_mode:
            number = tangent.meta["val"].to(torch.float32)
        factor = insert_call(graph, end, end, _convert, (tangent, torch.float32), number)
    if tuple(factor.meta["val"].shape):
        with value.fake_mode:
            number = factor.meta["val"].view(())
        factor = insert_call(graph, end, end, _aten.view.default, (factor, []), number)
    found = insert_call(graph, end, end, _aten.mul.Tensor, (sums, factor), wide)
    if value.dtype is not torch.float32:
        found = insert_call(graph, end, end, _convert, (found, value.dtype), value)
    end.replace_all_uses_with(found)
