"""Convolutions of weights that lie in oneDNN's blocks: which to compute so, and the call with what is around
it.

oneDNN computes channels-last images as they lie, and lays only the weight out anew. ATen's calls pay for that
each time, and copy a weight that is not channels-last before. With a packed weight a call reads and makes
channels-last images, whatever it is given, and nothing is converted. Where the graph has images that lie
otherwise, copies stand around the call. In a chain of convolutions they become part of the kernels between
the calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import fx

from coilwork_lowering.facts.fx_nodes import CONVOLUTION
from coilwork_lowering.rewrites.call_normalization import AtenVocabulary, Read
from coilwork_lowering.rewrites.rewrite import is_like

_SIGMOID = "aten.sigmoid.default"
_PRODUCT = "aten.mul.Tensor"
_LEAKY = "aten.leaky_relu.default"


class InsertCall(Protocol):
    """Inserts a call into the graph, and gives it a fake value."""

    def __call__(self, name: str, args: tuple[Any, ...], value: Any, **named: Any) -> fx.Node:
        """Return the node of the call of the overload `name`."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation that oneDNN applies to the results of a convolution before it stores them.

    Attributes:
        name: oneDNN's.
        scalars: its numbers.
        last: the node that it ends in, which the call replaces.
        nodes: those that it is made of, `last` first.
    """

    name: str
    scalars: tuple[float, ...]
    last: fx.Node
    nodes: tuple[fx.Node, ...]


def is_worth_packing(node: fx.Node, read: Read, least_terms: int) -> bool:
    """Tell if a convolution of known sizes is at least as fast with a packed weight.

    ATen computes a convolution of one tap in `f32` as a product of matrices if it has one thread. That needs
    no packed weight, so products of fewer than `least_terms` terms stay.
    """
    image, weight, result = (each.meta["val"] for each in (read.arguments["input"], _weight(read), node))
    sizes = (*image.shape, *weight.shape, *result.shape)
    if read.op != CONVOLUTION or not all(type(size) is int and size > 0 for size in sizes):
        return False
    is_product = prod(weight.shape[2:]) == 1 and read.arguments["groups"] == 1
    terms = prod(result.shape) * weight.shape[1]
    return not (is_product and image.dtype is torch.float32 and terms < least_terms)


def find_activation(node: fx.Node) -> Activation | None:
    """Return the activation that alone reads the convolution `node` and that oneDNN computes as eager does.

    Its `relu` (a leaky one of slope 0) and `hardtanh` turn NaN into a number, so these stay kernels of ours.
    """
    vocabulary = AtenVocabulary()
    users = list(node.users)
    reads = [read for user in users if (read := vocabulary.read(user)) is not None]
    if len(reads) != len(users) or not all(is_like(user.meta.get("val"), node.meta["val"]) for user in users):
        return None
    ops = {read.op: (user, read) for user, read in zip(users, reads, strict=True)}
    if len(users) == 1:
        user, read = users[0], reads[0]
        if read.op == "aten.tanh.default":
            return Activation("tanh", (), user, (user,))
        if read.op == _SIGMOID:
            return Activation("sigmoid", (), user, (user,))
        slope = read.arguments.get("negative_slope")
        if read.op == _LEAKY and isinstance(slope, float) and slope:
            return Activation("leaky_relu", (slope,), user, (user,))
        return None
    if len(users) != 2 or set(ops) != {_SIGMOID, _PRODUCT}:
        return None
    (gate, _), (product, read) = ops[_SIGMOID], ops[_PRODUCT]
    factors = {read.arguments["self"], read.arguments["other"]}
    if factors != {node, gate} or list(gate.users) != [product]:
        return None
    return Activation("swish", (), product, (product, gate))


def insert_packed_convolution(
    insert: InsertCall,
    image: fx.Node,
    read: Read,
    node: fx.Node,
    activation: Activation | None,
) -> tuple[fx.Node, fx.Node]:
    """Return the node in place of the convolution `node` of `image`, or of its `activation`, which has the
    strides of `node`; and the same in channels-last.
    """
    held, weight, result = image.meta["val"], _weight(read), node.meta["val"]
    bias = read.arguments["bias"]
    numbers = [list(read.arguments[name]) for name in ("padding", "stride", "dilation")]
    groups = read.arguments["groups"]
    packed = insert(
        "mkldnn._reorder_convolution_weight.default",
        (weight, *numbers, groups, list(held.shape)),
        torch.empty_like(weight.meta["val"], memory_format=torch.contiguous_format),
    )
    name, scalars = ("none", ()) if activation is None else (activation.name, activation.scalars)
    made = insert(
        "mkldnn._convolution_pointwise.default",
        (image, packed, bias, *numbers, groups, name, list(scalars), ""),
        torch.empty_like(result, memory_format=torch.channels_last),
    )
    if is_like(made.meta["val"], result):
        return made, made
    value = torch.empty_like(result, memory_format=torch.contiguous_format)
    return insert("aten.clone.default", (made,), value, memory_format=torch.contiguous_format), made


def copy_to_channels_last(insert: InsertCall, image: fx.Node) -> fx.Node:
    """Return `image`, or a copy of it in channels-last."""
    held = image.meta["val"]
    if held.is_contiguous(memory_format=torch.channels_last):
        return image
    value = torch.empty_like(held, memory_format=torch.channels_last)
    return insert("aten.clone.default", (image,), value, memory_format=torch.channels_last)


def _weight(read: Read) -> fx.Node:
    weight = read.arguments["weight"]
    assert isinstance(weight, fx.Node), "a convolution reads a tensor"
    return weight
