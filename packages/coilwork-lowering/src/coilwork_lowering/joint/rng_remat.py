"""Random numbers in joint graphs: redraw dropout masks in the backward, and save other draws.

A dropout mask is a byte per element that lives from forward to backward. Generated code draws it as a
function of a seed, the dropout's number and the position. `expand_dropouts` makes the seed a value of the
joint graph, eight bytes in all, and both halves compute the mask where they use it.

`save_random_draws` deals with draws of ATen's inside checkpoints, which ask for recomputation. For those
torch's partitioner would save and set the generator's state by host operators between kernels, which no
program can contain. Their results are saved instead.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils.checkpoint import CheckpointPolicy

from coilwork_lowering.facts.fx_nodes import insert_call
from coilwork_lowering.options import LoweringOptions
from coilwork_lowering.torch_compat.graphs import find_fake_mode
from coilwork_lowering.torch_compat.operators import Overload
from coilwork_lowering.torch_compat.philox import DROPOUTS, draw_kept, draw_seed

# redrawn masks


_aten: Final = torch.ops.aten
_convert: Final = torch.ops.prims.convert_element_type.default


# The seed, which both halves need, has none of these.
_OF_CHECKPOINTS: Final = ("recompute", "ac_graph_id")


def expand_dropouts(gm: torch.fx.GraphModule, options: LoweringOptions) -> tuple[torch.fx.Node, ...]:
    """Replace dropouts of `gm`, a joint graph, by products with masks of `coilwork::kept`; returns the masks.

    Dropouts that ATen draws stay as they are. A graph that returns a mask is left alone: masks depend on the
    dropouts' numbers, and a graph without a backward counts the same ones.
    """
    dropouts = [node for node in gm.graph.nodes if is_generated_dropout(node, options)]
    mode = find_fake_mode(gm)
    if mode is None or any(_is_returned(node) for node in dropouts):
        return ()
    masks: list[torch.fx.Node] = []
    seeds: dict[torch.device, torch.fx.Node] = {}
    with mode:
        for number, node in enumerate(dropouts):
            masks.append(_expand_dropout(gm.graph, node, DROPOUTS + number, seeds))
    if masks:
        gm.graph.lint()
        gm.recompile()
    return tuple(masks)


def mark_redrawn_masks(masks: Sequence[torch.fx.Node]) -> int:
    """Mark masks that the backward shall draw again; returns how many. Comes after other marks, which heed
    those of the user.
    """
    for mask in masks:
        mask.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    return len(masks)


def is_generated_dropout(node: torch.fx.Node, options: LoweringOptions) -> bool:
    """Tell if `node` is a dropout whose mask generated code draws."""
    if (
        node.target is not _aten.native_dropout.default
        or len(node.args) != 3
        or options.falls_back("aten.native_dropout.default")
    ):
        return False
    source, probability, train = node.args
    assert isinstance(source, torch.fx.Node)
    value = source.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.dtype.is_floating_point
        and options.draws(value.device.type)
        and isinstance(probability, int | float)
        and train is not False
        and not any(type(size) is int and size == 0 for size in value.shape)
    )


def _is_returned(node: torch.fx.Node) -> bool:
    masks = [user for user in node.users if user.target is operator.getitem and user.args[1] == 1]
    return any(reader.op == "output" for mask in masks for reader in mask.users)


def _expand_dropout(
    graph: torch.fx.Graph, node: torch.fx.Node, stream: int, seeds: dict[torch.device, torch.fx.Node]
) -> torch.fx.Node:
    """`node`, a dropout, as a product with the mask that `stream` is; returns the mask."""
    source, probability, _ = node.args
    assert isinstance(source, torch.fx.Node) and isinstance(probability, int | float)
    value = source.meta["val"]

    def call(target: Any, *args: Any) -> torch.fx.Node:
        made = target(*(one.meta["val"] if isinstance(one, torch.fx.Node) else one for one in args))
        return insert_call(graph, node, node, target, args, made)

    if value.device not in seeds:
        seeds[value.device] = call(draw_seed, source)
    sizes = [
        size if type(size) is int else _size_of(graph, node, source, dim)
        for dim, size in enumerate(value.shape)
    ]
    fake = torch.empty_like(value, dtype=torch.bool)
    mask = insert_call(
        graph, node, node, draw_kept, (seeds[value.device], sizes, stream, 1.0 - probability), fake
    )
    # a product, as in eager: what is dropped becomes NaN if it was not finite
    narrow = value.dtype.itemsize < 4
    wide = call(_convert, source, torch.float32) if narrow else source
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    dropped = call(_aten.mul.Tensor, call(_aten.mul.Tensor, wide, mask), scale)
    if narrow:
        dropped = call(_convert, dropped, value.dtype)
    of_checkpoints: dict[str, Any] = {key: node.meta[key] for key in _OF_CHECKPOINTS if key in node.meta}
    made = mask
    while made is not node:
        made.meta.update(of_checkpoints)
        made = made.next
    for item in list(node.users):
        item.replace_all_uses_with(mask if item.args[1] == 1 else dropped)
        graph.erase_node(item)
    graph.erase_node(node)
    return mask


def _size_of(graph: torch.fx.Graph, before: torch.fx.Node, source: torch.fx.Node, dim: int) -> torch.fx.Node:
    with graph.inserting_before(before):
        size = graph.call_function(_aten.sym_size.int, (source, dim))
    size.meta["val"] = source.meta["val"].shape[dim]
    return size


# saved draws


_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def save_random_draws(joint_gm: torch.fx.GraphModule) -> int:
    """Mark the results of operators of a joint graph that draw numbers, in place; returns of how many
    operators.
    """
    draws = [
        node
        for node in joint_gm.graph.nodes
        if isinstance(node.target, Overload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        and node.meta.get("recompute") in _AGAIN
    ]
    for node in draws:
        items = [user for user in node.users if user.target is operator.getitem]
        if items:
            # the tuple itself cannot be kept
            del node.meta["recompute"]
        for saved in items or (node,):
            saved.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return len(draws)
