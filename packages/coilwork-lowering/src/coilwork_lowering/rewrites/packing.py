"""Frozen weights in the blocked layouts of oneDNN, on CPUs: products and convolutions then do not lay them
out in each call.

A packed weight has the shape and type of the weight, but no strides: only oneDNN's operators may read it. In
a graph it is described as dense, and made by a call that depends on frozen inputs alone, so that
`split_constants` takes it out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

from coilwork_ir.device_traits import CPU_LIBRARIES, has_trait
from coilwork_ir.machine import FindModel, find_like_model
from coilwork_ir.operators import find_target_info
from coilwork_lowering.facts.convolutions import FORWARD
from coilwork_lowering.facts.origins import inherit_metadata
from coilwork_lowering.rewrites.constant_folding import constants_of
from coilwork_lowering.rewrites.rewrite import looks_like
from coilwork_lowering.rewrites.vocabulary import AtenVocabulary, Read
from coilwork_lowering.torch_compat.fakes import fake_mode_of
from coilwork_lowering.torch_compat.graphs import copied_graph
from coilwork_lowering.torch_compat.operators import overload_called, packed_types


def pack_weights(
    gm: fx.GraphModule, frozen: Iterable[int], find_model: FindModel = find_like_model
) -> tuple[fx.GraphModule, int]:
    """`gm` with the weights packed that the inputs at positions `frozen` decide, and how many calls read such
    weights.

    `gm` itself, and 0, where torch lacks oneDNN or nothing is packed. Results round as oneDNN rounds them.
    """
    mode = fake_mode_of(gm)
    types = packed_types()
    if mode is None or not types:
        return gm, 0
    graph = copied_graph(gm.graph)
    constants = constants_of(graph, frozen)
    vocabulary = AtenVocabulary()
    found = 0
    for node in list(graph.nodes):
        read = vocabulary.read(node)
        if (
            read is None
            or not _is_packable(read, constants, types)
            or not _has_few_rows(node, read, find_model)
        ):
            continue
        with graph.inserting_before(node), mode:
            packed = _packed_call(graph, node, read)
        if packed is not None:
            node.replace_all_uses_with(packed)
            graph.erase_node(node)
            found += 1
    if not found:
        return gm, 0
    made = fx.GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made, found


@dataclass(frozen=True, slots=True)
class _Operands:
    """What a product or convolution reads; `bias` may be None."""

    value: fx.Node
    weight: fx.Node
    bias: fx.Node | None


def _operands(read: Read) -> _Operands | None:
    given = read.arguments
    if read.op == FORWARD:
        return None if given["transposed"] else _Operands(given["input"], given["weight"], given["bias"])
    roles = find_target_info(read.op).product
    if roles is None or not roles.is_plain or any(given.get(name, 1) != 1 for name in ("alpha", "beta")):
        return None
    return _Operands(given[roles.left], given[roles.right], given[roles.added] if roles.added else None)


def _is_packable(read: Read, constants: frozenset[fx.Node], types: tuple[torch.dtype, ...]) -> bool:
    """Tell if `read` has a frozen weight, a bias of one dimension if any, and one type that oneDNN computes
    in, on a CPU.
    """
    operands = _operands(read)
    if operands is None or operands.weight not in constants or operands.value in constants:
        return False
    value, weight = operands.value.meta["val"], operands.weight.meta["val"]
    bias = None if operands.bias is None else operands.bias.meta["val"]
    tensors = [one for one in (value, weight, bias) if one is not None]
    if any(not has_trait(one.device.type, CPU_LIBRARIES) or one.dtype is not value.dtype for one in tensors):
        return False
    ranks = (4,) if read.op == FORWARD else (2,)
    return bool(value.dtype in types and value.dim() in ranks and (bias is None or bias.dim() == 1))


def _has_few_rows(node: fx.Node, read: Read, find_model: FindModel) -> bool:
    """True if the weight is known to be used for few rows or positions; sizes of operands are then known,
    too.

    Laying out the weight then shows in a call: beyond, it is lost in the sums.
    """
    operands = _operands(read)
    assert operands is not None
    result, operand = list(node.meta["val"].shape), list(operands.value.meta["val"].shape)
    if not all(type(size) is int for size in (*result, *operand)):
        return False
    channels, rows = result.pop(1), prod(result)
    # oneDNN refuses sums of nothing
    if 0 in operand:
        return False
    # of one row in f32 the libraries are equally fast
    least = 2 if node.meta["val"].dtype is torch.float32 else 1
    most = find_model(str(node.meta["val"].device)).loops.packed_rows
    return bool(channels > 0 and least <= rows <= most)


def _packed_call(graph: fx.Graph, node: fx.Node, read: Read) -> fx.Node | None:
    """The call in place of `node`; None if its result would be laid out otherwise."""
    operands = _operands(read)
    assert operands is not None
    made: list[fx.Node] = []

    def call(name: str, args: tuple[Any, ...], value: Any) -> fx.Node:
        new = graph.call_function(overload_called(name), args)
        new.meta.update(inherit_metadata(node))
        new.meta["val"] = value
        made.append(new)
        return new

    weight, bias = operands.weight, operands.bias
    result = (
        _convolution(call, operands.value, weight, bias, read)
        if read.op == FORWARD
        else _linear(call, operands.value, weight, bias)
    )
    if result is not None and looks_like(result.meta["val"], node.meta["val"]):
        return result
    for new in reversed(made):
        graph.erase_node(new)
    return None


def _linear(call: Any, value: fx.Node, weight: fx.Node, bias: fx.Node | None) -> fx.Node | None:
    held, shape = weight.meta["val"], value.meta["val"].shape
    columns = held.shape[1]
    if bias is not None and tuple(bias.meta["val"].shape) != (columns,):
        return None
    # by rows of the result's columns, as the weight of a linear layer is
    turned = call("aten.permute.default", (weight, [1, 0]), held.permute(1, 0))
    dense = held.permute(1, 0).contiguous()
    if not held.permute(1, 0).is_contiguous():
        turned = call("aten.clone.default", (turned,), dense)
    packed = call("mkldnn._reorder_linear_weight.default", (turned, shape[0]), torch.empty_like(dense))
    result = value.meta["val"].new_empty((shape[0], columns))
    node: fx.Node = call("mkldnn._linear_pointwise.default", (value, packed, bias, "none", [], ""), result)
    return node


def _convolution(call: Any, value: fx.Node, weight: fx.Node, bias: fx.Node | None, read: Read) -> fx.Node:
    image = value.meta["val"]
    given = [list(read.arguments[name]) for name in ("padding", "stride", "dilation")]
    groups = read.arguments["groups"]
    held = weight.meta["val"]
    packed = call(
        "mkldnn._reorder_convolution_weight.default",
        (weight, *given, groups, list(image.shape)),
        torch.empty_like(held, memory_format=torch.contiguous_format),
    )
    args = (value, packed, bias, *given, groups, "none", [], "")
    target = overload_called("mkldnn._convolution_pointwise.default")
    fakes = [one.meta["val"] if isinstance(one, fx.Node) else one for one in args]
    node: fx.Node = call("mkldnn._convolution_pointwise.default", args, target(*fakes))
    return node
