"""Convolutions whose windows lie side by side become products of matrices; `multiply_patches` is the entry.

A window that begins where the one before it ends makes patches of an image. Each is a row of a matrix, and
what is convolved is the product of these rows with the weight. Patches lie in memory otherwise than images,
but nothing is stored twice, so that what makes the image can store patches. With `patch embeddings`,
convolutions that halve an image, and transposed ones that double it:

    features = patches(image) @ weight.T        image = unfold(features @ weight)

A convolution's own kernels pad images of few channels to more, and reach a fraction of the speed of products.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch

from coilwork_lowering.aten_layouts.formats import get_channels_last_order, is_dense_in_order
from coilwork_lowering.facts.fx_nodes import ConvolutionCall, insert_call, match_convolution
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode

_aten: Final = torch.ops.aten
_NARROW: Final = (torch.float16, torch.bfloat16)
# Bytes of a pixel's channels from which on they stay together in a patch: whole sectors of memory.
_PIXEL_BYTES: Final = 32


def multiply_patches(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with products for convolutions whose windows lie side by side, and their gradients; how many.

    They are those on `options.devices` in floats of 16 bits, whose products a library computes at the rate of
    matrix units in any case. Results keep their strides. `gm` is never changed.
    """
    mode = find_fake_mode(gm)
    if mode is None or not any(_match(node, options) for node in gm.graph.nodes):
        return gm, 0
    graph = copy_graph(gm.graph)
    writer = _Writer(graph=graph, mode=mode)
    found = [patches for node in graph.nodes if (patches := _match(node, options)) is not None]
    for patches in found:
        writer.replace(patches)
    result = torch.fx.GraphModule(gm, graph, class_name=type(gm).__name__)
    result.meta.update(gm.meta)
    return result, len(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patches:
    """A convolution whose windows lie side by side, or its gradients.

    Attributes:
        call: the call.
        gradient: of its result; None for the convolution itself.
        value, weight: its operands.
        taps: extents of a window.
        channels: of the image, of which the other side of a transposed convolution has the features.
        is_last: a pixel's channels stay together in a patch.
    """

    call: ConvolutionCall
    gradient: torch.fx.Node | None
    value: torch.fx.Node
    weight: torch.fx.Node
    taps: tuple[int, ...]
    channels: int
    is_last: bool

    @property
    def transposed(self) -> bool:
        """Tell if the convolution makes the image."""
        return bool(self.call["transposed"])

    @property
    def length(self) -> int:
        """Elements of a patch."""
        return self.channels * prod(self.taps)


def _match(node: torch.fx.Node, options: LayoutOptions) -> _Patches | None:
    """Return `node` as a convolution of patches; None if it is none, or products would be no faster."""
    call = match_convolution(node)
    if call is None or "recompute" in node.meta:
        return None
    operands = [node.args[position] for position in call.operands]
    named = [operand for operand in operands if isinstance(operand, torch.fx.Node)]
    tensors = [operand.meta.get("val") for operand in named]
    if len(named) < len(operands) or not all(isinstance(t, torch.Tensor) for t in tensors):
        return None
    if any(t.device.type not in options.devices or t.dtype not in _NARROW for t in tensors):
        return None
    if len({t.dtype for t in tensors}) > 1 or not all(type(n) is int for t in tensors for n in t.shape):
        return None
    *_, value, weight = tensors
    taps = tuple(weight.shape[2:])
    if not _lie_side_by_side(call, taps) or prod(taps) == 1 or not all(t.numel() for t in tensors):
        return None
    gradient = named[0] if len(named) == 3 else None
    result = node.meta["val"] if gradient is None else tensors[0]
    image, features = (result, value) if call["transposed"] else (value, result)
    fits = all(n == t * k for n, t, k in zip(image.shape[2:], features.shape[2:], taps, strict=True))
    makes_image = bool(call["transposed"]) if gradient is None else bool(_wants(node)[0])
    made = [t for t in (node.meta["val"] if gradient is not None else (result,)) if t is not None]
    if (makes_image and not fits) or any(_find_format(t) is None for t in made if t.dim() > 1):
        return None
    channels, features_count = weight.shape[1], weight.shape[0]
    vector = options.find_model(str(value.device)).products.halves_per_vector
    if channels * prod(taps) % vector or features_count % vector:
        # rows of the matrices would begin between vectors
        return None
    return _Patches(
        call=call,
        gradient=gradient,
        value=named[-2],
        weight=named[-1],
        taps=taps,
        channels=channels,
        is_last=channels * value.element_size() >= _PIXEL_BYTES,
    )


def _lie_side_by_side(call: ConvolutionCall, taps: tuple[int, ...]) -> bool:
    """Tell if windows of `taps` elements touch, and neither overlap nor reach outside."""
    at = call.positions["transposed"]
    stride, padding, dilation = (_expand(call.node.args[at - k], len(taps)) for k in (3, 2, 1))
    extra = _expand(call.node.args[at + 1], len(taps))
    dense = all(d == 1 or k == 1 for d, k in zip(dilation, taps, strict=True))
    return stride == taps and not any(padding) and not any(extra) and dense and call["groups"] == 1


def _expand(numbers: Any, rank: int) -> tuple[int, ...]:
    """Return one number for each of `rank` dimensions."""
    found = tuple(numbers)
    return found * rank if len(found) == 1 else found


def _wants(node: torch.fx.Node) -> tuple[bool, bool, bool]:
    """Return which gradients `node` makes: of the value, the weight and the bias."""
    mask = node.args[10]
    assert isinstance(mask, list | tuple)
    of_value, of_weight, of_bias = map(bool, mask)
    return of_value, of_weight, of_bias


def _find_format(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order in which the dimensions of `tensor` fill its memory, if they do."""
    orders = tuple(range(tensor.dim())), get_channels_last_order(tensor.dim())
    return next((order for order in orders if is_dense_in_order(tensor, order)), None)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes products into `graph`. `known` are matrices that both halves of a step read."""

    graph: torch.fx.Graph
    mode: AbstractContextManager[object]
    known: dict[tuple[object, ...], torch.fx.Node] = field(default_factory=dict)

    def replace(self, patches: _Patches) -> None:
        """Put products in the place of a convolution, or of its gradients."""
        node = patches.call.node
        if patches.gradient is None:
            made = self._convolve(patches)
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)
            return
        for reader in list(node.users):
            number = reader.args[1]
            assert isinstance(number, int), "gradients are read one by one"
            if reader.users:
                made = self._make_gradient(patches, patches.gradient, number)
                reader.replace_all_uses_with(made)
            self.graph.erase_node(reader)
        self.graph.erase_node(node)

    def _convolve(self, patches: _Patches) -> torch.fx.Node:
        node = patches.call.node
        bias = node.args[2]
        added = bias if isinstance(bias, torch.fx.Node) else None
        like = node.meta["val"]
        if patches.transposed:
            made = self._make_image(patches, patches.value, like, added)
        else:
            made = self._make_features(patches, patches.value, added)
        return self._lay_out(node, made, like)

    def _make_gradient(self, patches: _Patches, gradient: torch.fx.Node, number: int) -> torch.fx.Node:
        """Return the gradient of the value, the weight or the bias."""
        node = patches.call.node
        like = node.meta["val"][number]
        if number == 0:
            made = (
                self._make_features(patches, gradient, None)
                if patches.transposed
                else self._make_image(patches, gradient, like, None)
            )
        elif number == 1:
            image, features = patches.value, gradient
            if patches.transposed:
                image, features = features, image
            rows = self._list_rows(node, features)
            turned = self._call(node, _aten.t.default, rows)
            made = self._call(node, _aten.mm.default, turned, self._list_patches(patches, image))
            made = self._unfold_weight(patches, made)
        else:
            axes = [0, *range(2, gradient.meta["val"].dim())]
            return self._call(node, _aten.sum.dim_IntList, gradient, axes)
        return self._lay_out(node, made, like)

    def _make_image(
        self, patches: _Patches, given: torch.fx.Node, like: torch.Tensor, bias: torch.fx.Node | None
    ) -> torch.fx.Node:
        """Return the image for `given` features, with a `bias` added."""
        node = patches.call.node
        rows, weight = self._list_rows(node, given), self._list_weights(patches)
        product = self._call(node, _aten.mm.default, rows, weight)
        made = self._unfold(patches, product, given.meta["val"].shape, like)
        if bias is None:
            return made
        wide = self._call(node, _aten.view.default, bias, [-1, *(1 for _ in patches.taps)])
        return self._call(node, _aten.add.Tensor, made, wide)

    def _make_features(
        self, patches: _Patches, given: torch.fx.Node, bias: torch.fx.Node | None
    ) -> torch.fx.Node:
        """Return the features for a `given` image, with a `bias` added."""
        node = patches.call.node
        turned = self._call(node, _aten.t.default, self._list_weights(patches))
        rows = self._list_patches(patches, given)
        if bias is None:
            product = self._call(node, _aten.mm.default, rows, turned)
        else:
            product = self._call(node, _aten.addmm.default, bias, rows, turned)
        image = given.meta["val"].shape
        space = [n // k for n, k in zip(image[2:], patches.taps, strict=True)]
        shaped = self._call(
            node, _aten.view.default, product, [image[0], *space, product.meta["val"].shape[1]]
        )
        return self._call(node, _aten.permute.default, shaped, _turn_back(len(image)))

    # matrices

    def _list_patches(self, patches: _Patches, image: torch.fx.Node) -> torch.fx.Node:
        """Return the patches of `image`, one in a row."""
        key = ("patches", image, patches.taps, patches.is_last)
        if key in self.known:
            return self.known[key]
        node, shape, rank = patches.call.node, image.meta["val"].shape, len(patches.taps)
        found, cut = image, list(shape[:2])
        for d, (size, taps) in enumerate(zip(shape[2:], patches.taps, strict=True)):
            if size % taps:
                found = self._call(node, _aten.slice.Tensor, found, 2 + d, 0, size // taps * taps)
            cut += [size // taps, taps]
        inner = [1, *(3 + 2 * d for d in range(rank))]
        if patches.is_last:
            inner = [*inner[1:], 1]
        split = self._call(node, _aten.view.default, found, cut)
        turned = self._call(
            node, _aten.permute.default, split, [0, *(2 + 2 * d for d in range(rank)), *inner]
        )
        made = self._matrix(node, turned, patches.length)
        self.known[key] = made
        return made

    def _list_rows(self, node: torch.fx.Node, features: torch.fx.Node) -> torch.fx.Node:
        """Return the features of each place, one place in a row."""
        key = ("rows", features)
        if key not in self.known:
            shape = features.meta["val"].shape
            order = get_channels_last_order(len(shape))
            turned = self._call(node, _aten.permute.default, features, list(order))
            self.known[key] = self._matrix(node, turned, shape[1])
        return self.known[key]

    def _list_weights(self, patches: _Patches) -> torch.fx.Node:
        """Return the weight of each feature as a row, in the order of a patch."""
        key = ("weights", patches.weight, patches.is_last)
        if key not in self.known:
            node, found = patches.call.node, patches.weight
            if patches.is_last:
                order = get_channels_last_order(found.meta["val"].dim())
                found = self._call(node, _aten.permute.default, found, list(order))
            self.known[key] = self._matrix(node, found, patches.length)
        return self.known[key]

    def _matrix(self, node: torch.fx.Node, found: torch.fx.Node, columns: int) -> torch.fx.Node:
        """Return `found` as a matrix of so many columns, whose rows lie one behind the other."""
        value = found.meta["val"]
        if not is_dense_in_order(value, range(value.dim())):
            found = self._call(node, _aten.clone.default, found, memory_format=torch.contiguous_format)
        return self._call(node, _aten.view.default, found, [value.numel() // columns, columns])

    def _unfold(
        self, patches: _Patches, product: torch.fx.Node, features: Sequence[int], like: torch.Tensor
    ) -> torch.fx.Node:
        """Return the image of which a `product` has the patches, dense in the order of `like`."""
        node, taps, rank = patches.call.node, patches.taps, len(patches.taps)
        space = list(features[2:])
        inner = [*taps, patches.channels] if patches.is_last else [patches.channels, *taps]
        split = self._call(node, _aten.view.default, product, [features[0], *space, *inner])
        first = 1 + rank + (not patches.is_last)
        pixels = [place for d in range(rank) for place in (1 + d, first + d)]
        channel = 1 + 2 * rank if patches.is_last else 1 + rank
        sizes = [n * k for n, k in zip(space, taps, strict=True)]
        is_row_major = is_dense_in_order(like, range(like.dim()))
        order = [0, channel, *pixels] if is_row_major else [0, *pixels, channel]
        turned = self._call(node, _aten.permute.default, split, order)
        dense = self._call(node, _aten.clone.default, turned, memory_format=torch.contiguous_format)
        if is_row_major:
            return self._call(node, _aten.view.default, dense, [features[0], patches.channels, *sizes])
        image = self._call(node, _aten.view.default, dense, [features[0], *sizes, patches.channels])
        return self._call(node, _aten.permute.default, image, _turn_back(2 + rank))

    def _unfold_weight(self, patches: _Patches, product: torch.fx.Node) -> torch.fx.Node:
        """Return the weight of which a `product` has a row for each feature."""
        node, rows = patches.call.node, product.meta["val"].shape[0]
        if not patches.is_last:
            shape = [rows, patches.channels, *patches.taps]
            return self._call(node, _aten.view.default, product, shape)
        split = self._call(node, _aten.view.default, product, [rows, *patches.taps, patches.channels])
        return self._call(node, _aten.permute.default, split, _turn_back(2 + len(patches.taps)))

    def _lay_out(self, node: torch.fx.Node, made: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
        """Return `made` with the strides of `like`."""
        if made.meta["val"].stride() == like.stride():
            return made
        order = _find_format(like)
        assert order is not None, "results of other layouts are no products"
        if order == tuple(range(like.dim())):
            return self._call(node, _aten.clone.default, made, memory_format=torch.contiguous_format)
        turned = self._call(node, _aten.permute.default, made, list(order))
        dense = self._call(node, _aten.clone.default, turned, memory_format=torch.contiguous_format)
        return self._call(node, _aten.permute.default, dense, _turn_back(like.dim()))

    def _call(self, node: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        """Return a call of `target` in front of `node`."""
        values = [arg.meta["val"] if isinstance(arg, torch.fx.Node) else arg for arg in args]
        with self.mode:
            value = target(*values, **kwargs)
        return insert_call(self.graph, node, node, target, args, value, kwargs)


def _turn_back(rank: int) -> list[int]:
    """Return the permutation that puts channels, which come last, behind the batch."""
    return [0, rank - 1, *range(1, rank - 1)]
