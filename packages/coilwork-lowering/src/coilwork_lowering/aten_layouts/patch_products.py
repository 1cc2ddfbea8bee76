"""Convolutions become products of matrices where patches pay; `multiply_patches` is the entry.

The elements of an image that a window covers are a row of a matrix, and what is convolved is the product of
these rows with the weight:

    features = patches(image) @ weight.T        image = unfold(features @ weight)

Where a window begins as the one before it ends, nothing is stored twice, so that what makes the image can
store patches: patch embeddings, convolutions that halve an image, and transposed ones that double it. Where
windows overlap, patches are larger than the image. That pays for images of few channels: a library pads
these to whole vectors in memory, and computes with the padding. Short patches are gathered quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch

from coilwork_lowering.aten_layouts.formats import (
    estimate_bytes,
    get_channels_last_order,
    is_dense_in_order,
    is_same_layout,
)
from coilwork_lowering.facts.fx_nodes import (
    ConvolutionCall,
    insert_call,
    is_pointwise,
    match_convolution,
)
from coilwork_lowering.options import LayoutOptions
from coilwork_lowering.torch_compat.graphs import copy_graph, find_fake_mode

_aten: Final = torch.ops.aten
_NARROW: Final = (torch.float16, torch.bfloat16)
# A size of a view that follows from the others: that of the batch, which may be open.
_ANY: Final = -1
# Bytes of a pixel's channels from which on they stay together in a patch: whole sectors of memory.
_PIXEL_BYTES: Final = 32
# Patches that overlap are no larger than so many times what the convolution reads and makes: they live beside
# both.
_MOST_GROWTH: Final = 3
# Elements of a patch among those that overlap: 3 x 3 windows over 4 channels. Longer ones take as long to
# gather as the library convolves.
_LONGEST: Final = 40


def multiply_patches(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[torch.fx.GraphModule, int]:
    """`gm` with products for convolutions whose patches pay, and for their gradients; how many.

    They are those on `options.devices` in floats of 16 bits, whose products a library computes at the rate of
    matrix units in any case. Results keep their strides. `gm` is never changed.
    """
    mode = find_fake_mode(gm) if options.multiplies_patches else None
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
class _Windows:
    """Windows without gaps inside: extents, steps, and zeros around the image."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def lie_side_by_side(self) -> bool:
        """Tell if windows touch, and neither overlap nor reach outside."""
        return self.strides == self.taps and not any(self.padding)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patches:
    """A convolution that products compute, or its gradients.

    Attributes:
        call: the call.
        gradient: of its result; None for the convolution itself.
        value, weight: its operands.
        windows: where patches lie in the image.
        channels: of the image, of which the other side of a transposed convolution has the features.
        is_last: a pixel's channels stay together in a patch.
        width: columns of the matrix of patches, the last of which may be zeros.
    """

    call: ConvolutionCall
    gradient: torch.fx.Node | None
    value: torch.fx.Node
    weight: torch.fx.Node
    windows: _Windows
    channels: int
    is_last: bool
    width: int

    @property
    def taps(self) -> tuple[int, ...]:
        """Extents of a window."""
        return self.windows.taps

    @property
    def is_transposed(self) -> bool:
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
    values = [operand.meta.get("val") for operand in named]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) < len(operands):
        return None
    if any(t.device.type not in options.devices or t.dtype not in _NARROW for t in tensors):
        return None
    *activations, weight = tensors
    known = [*weight.shape, *(n for t in activations for n in t.shape[1:])]
    if len({t.dtype for t in tensors}) > 1 or not all(type(n) is int and n > 0 for n in known):
        return None
    value = activations[-1]
    windows = _find_windows(call, tuple(weight.shape[2:]))
    if windows is None or prod(windows.taps) == 1:
        return None
    gradient = named[0] if len(named) == 3 else None
    result = node.meta["val"] if gradient is None else tensors[0]
    transposed = bool(call["transposed"])
    image, features = (result, value) if transposed else (value, result)
    makes_image = transposed if gradient is None else _wants_value(node) and not transposed
    made = [t for t in (node.meta["val"] if gradient is not None else (result,)) if t is not None]
    if any(_find_format(t) is None for t in made if t.dim() > 1):
        return None
    vector = options.find_model(str(value.device)).products.halves_per_vector
    channels, length = weight.shape[1], weight.shape[1:].numel()
    if weight.shape[0] % vector:
        # rows of features would begin between vectors
        return None
    if makes_image and (length % vector or not _cover(windows, image, features)):
        return None
    width = -(-length // vector) * vector
    if not windows.lie_side_by_side:
        patches_bytes = estimate_bytes(features) // features.shape[1] * width
        room = _MOST_GROWTH * (estimate_bytes(image) + estimate_bytes(features))
        if transposed or makes_image or channels >= vector or width > _LONGEST or patches_bytes > room:
            return None
    return _Patches(
        call=call,
        gradient=gradient,
        value=named[-2],
        weight=named[-1],
        windows=windows,
        channels=channels,
        is_last=channels * value.element_size() >= _PIXEL_BYTES,
        width=width,
    )


def _find_windows(call: ConvolutionCall, taps: tuple[int, ...]) -> _Windows | None:
    """Return the windows of `taps` elements; None if they have gaps, or groups of channels have their own."""
    at = call.positions["transposed"]
    strides, padding, dilation = (_expand(call.node.args[at - k], len(taps)) for k in (3, 2, 1))
    extra = _expand(call.node.args[at + 1], len(taps))
    dense = all(d == 1 or k == 1 for d, k in zip(dilation, taps, strict=True))
    if not dense or any(extra) or call["groups"] != 1:
        return None
    return _Windows(taps=taps, strides=strides, padding=padding)


def _cover(windows: _Windows, image: torch.Tensor, features: torch.Tensor) -> bool:
    """Tell if each element of `image` is in one window."""
    pairs = zip(image.shape[2:], features.shape[2:], windows.taps, strict=True)
    return windows.lie_side_by_side and all(size == count * taps for size, count, taps in pairs)


def _expand(numbers: Any, rank: int) -> tuple[int, ...]:
    """Return one number for each of `rank` dimensions."""
    found = tuple(numbers)
    return found * rank if len(found) == 1 else found


def _wants_value(node: torch.fx.Node) -> bool:
    """Tell if `node`, which makes gradients, makes that of the value."""
    mask = node.args[10]
    assert isinstance(mask, list | tuple)
    return bool(mask[0])


def _find_format(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the order in which the dimensions of `tensor` fill its memory, if they do."""
    orders = tuple(range(tensor.dim())), get_channels_last_order(tensor.dim())
    return next((order for order in orders if is_dense_in_order(tensor, order)), None)


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes products into `graph`.

    `known` are matrices that several products read. While `is_again`, what is written is for the backward
    graph alone.
    """

    graph: torch.fx.Graph
    mode: AbstractContextManager[object]
    known: dict[tuple[object, ...], torch.fx.Node] = field(default_factory=dict)
    is_again: bool = False

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
        if patches.is_transposed:
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
                if patches.is_transposed
                else self._make_image(patches, gradient, like, None)
            )
        elif number == 1:
            image, features = patches.value, gradient
            if patches.is_transposed:
                image, features = features, image
            rows = self._list_rows(node, features)
            turned = self._call(node, _aten.t.default, rows)
            made = self._call(node, _aten.mm.default, turned, self._list_patches(patches, image))
            made = self._rebuild_weight(patches, made)
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
        made = self._rebuild_image(patches, product, given.meta["val"].shape, like)
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
        image, windows = given.meta["val"].shape, patches.windows
        space = [
            (size + 2 * around - taps) // stride + 1
            for size, around, taps, stride in zip(
                image[2:], windows.padding, windows.taps, windows.strides, strict=True
            )
        ]
        shaped = self._call(node, _aten.view.default, product, [_ANY, *space, product.meta["val"].shape[1]])
        return self._call(node, _aten.permute.default, shaped, _turn_back(len(image)))

    # matrices

    def _list_patches(self, patches: _Patches, image: torch.fx.Node) -> torch.fx.Node:
        """Return the patches of `image`, one in a row."""
        is_again = patches.gradient is not None and _is_made_again(patches, image)
        key = ("patches", image, patches.windows, patches.is_last, is_again)
        if key in self.known:
            return self.known[key]
        self.is_again = is_again
        rank = len(patches.taps)
        cut = self._cut(patches, image) if patches.windows.lie_side_by_side else self._slide(patches, image)
        places, pixels = range(2, 2 + rank), range(2 + rank, 2 + 2 * rank)
        inner = [*pixels, 1] if patches.is_last else [1, *pixels]
        turned = self._call(patches.call.node, _aten.permute.default, cut, [0, *places, *inner])
        made = self._append_zero_columns(patches, self._matrix(patches.call.node, turned, patches.length))
        self.known[key], self.is_again = made, False
        return made

    def _cut(self, patches: _Patches, image: torch.fx.Node) -> torch.fx.Node:
        """Return `image` with a dimension for windows in the place of each, and one for taps at the end."""
        node, shape, rank = patches.call.node, image.meta["val"].shape, len(patches.taps)
        found, sizes = image, [_ANY, shape[1]]
        for d, (size, taps) in enumerate(zip(shape[2:], patches.taps, strict=True)):
            if size % taps:
                found = self._call(node, _aten.slice.Tensor, found, 2 + d, 0, size // taps * taps)
            sizes += [size // taps, taps]
        split = self._call(node, _aten.view.default, found, sizes)
        places = [2 + 2 * d for d in range(rank)]
        return self._call(node, _aten.permute.default, split, [0, 1, *places, *(k + 1 for k in places)])

    def _slide(self, patches: _Patches, image: torch.fx.Node) -> torch.fx.Node:
        """Return what `_cut` does of windows that overlap."""
        node, windows, found = patches.call.node, patches.windows, image
        if any(windows.padding):
            around = [zeros for zeros in reversed(windows.padding) for _ in range(2)]
            found = self._call(node, _aten.constant_pad_nd.default, found, around, 0)
        for d, (taps, stride) in enumerate(zip(windows.taps, windows.strides, strict=True)):
            found = self._call(node, _aten.unfold.default, found, 2 + d, taps, stride)
        return found

    def _append_zero_columns(self, patches: _Patches, matrix: torch.fx.Node) -> torch.fx.Node:
        """Return `matrix`, whose rows are patches, with zeros behind them."""
        more = patches.width - patches.length
        if not more:
            return matrix
        return self._call(patches.call.node, _aten.constant_pad_nd.default, matrix, [0, more], 0)

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
        key = ("weights", patches.weight, patches.is_last, patches.width)
        if key not in self.known:
            node, found = patches.call.node, patches.weight
            if patches.is_last:
                order = get_channels_last_order(found.meta["val"].dim())
                found = self._call(node, _aten.permute.default, found, list(order))
            self.known[key] = self._append_zero_columns(patches, self._matrix(node, found, patches.length))
        return self.known[key]

    def _matrix(self, node: torch.fx.Node, found: torch.fx.Node, columns: int) -> torch.fx.Node:
        """Return `found` as a matrix of so many columns, whose rows lie one behind the other."""
        value = found.meta["val"]
        if not is_dense_in_order(value, range(value.dim())):
            found = self._call(node, _aten.clone.default, found, memory_format=torch.contiguous_format)
        return self._call(node, _aten.view.default, found, [_ANY, columns])

    def _rebuild_image(
        self, patches: _Patches, product: torch.fx.Node, features: Sequence[int], like: torch.Tensor
    ) -> torch.fx.Node:
        """Return the image of which a `product` has the patches, dense in the order of `like`."""
        node, taps, rank = patches.call.node, patches.taps, len(patches.taps)
        space = list(features[2:])
        inner = [*taps, patches.channels] if patches.is_last else [patches.channels, *taps]
        split = self._call(node, _aten.view.default, product, [_ANY, *space, *inner])
        first = 1 + rank + (not patches.is_last)
        pixels = [place for d in range(rank) for place in (1 + d, first + d)]
        channel = 1 + 2 * rank if patches.is_last else 1 + rank
        sizes = [n * k for n, k in zip(space, taps, strict=True)]
        is_row_major = is_dense_in_order(like, range(like.dim()))
        order = [0, channel, *pixels] if is_row_major else [0, *pixels, channel]
        turned = self._call(node, _aten.permute.default, split, order)
        dense = self._call(node, _aten.clone.default, turned, memory_format=torch.contiguous_format)
        if is_row_major:
            return self._call(node, _aten.view.default, dense, [_ANY, patches.channels, *sizes])
        image = self._call(node, _aten.view.default, dense, [_ANY, *sizes, patches.channels])
        return self._call(node, _aten.permute.default, image, _turn_back(2 + rank))

    def _rebuild_weight(self, patches: _Patches, product: torch.fx.Node) -> torch.fx.Node:
        """Return the weight of which a `product` has a row for each feature."""
        node, rows = patches.call.node, product.meta["val"].shape[0]
        if patches.width > patches.length:
            product = self._call(node, _aten.slice.Tensor, product, 1, 0, patches.length)
        if not patches.is_last:
            shape = [rows, patches.channels, *patches.taps]
            return self._call(node, _aten.view.default, product, shape)
        split = self._call(node, _aten.view.default, product, [rows, *patches.taps, patches.channels])
        return self._call(node, _aten.permute.default, split, _turn_back(2 + len(patches.taps)))

    def _lay_out(self, node: torch.fx.Node, made: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
        """Return `made` with the strides of `like`."""
        if is_same_layout(made.meta["val"], like):
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
        made = insert_call(self.graph, node, node, target, args, value, kwargs)
        if self.is_again:
            made.meta["partitioner_tag"] = "must_be_in_backward"
        return made


def _is_made_again(patches: _Patches, image: torch.fx.Node) -> bool:
    """Tell if the backward makes the patches of `image` anew, for which it has the image anyway.

    So it has where the graph is given the image, and patches that overlap are larger than what is saved for
    them.
    """
    if not patches.windows.lie_side_by_side:
        return True
    while image.op == "call_function" and is_pointwise(image) and len(image.all_input_nodes) == 1:
        (image,) = image.all_input_nodes
    return image.op == "placeholder"


def _turn_back(rank: int) -> list[int]:
    """Return the permutation that puts channels, which come last, behind the batch."""
    return [0, rank - 1, *range(1, rank - 1)]
