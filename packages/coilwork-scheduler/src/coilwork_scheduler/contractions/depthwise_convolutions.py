"""Convolutions of single channels, and their gradients, as loops of ours.

Each result is a sum over a small window of one channel. Memory bounds that at best, and what follows would
read and write everything once more. So the sum is a pointwise node, which fuses with what follows. The
gradient of an image is a sum over the windows that meet a point, and the gradient of a weight is a sum over
all points for each tap: taps are sums of their own over the same points, which one kernel computes together.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar, Literal

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, multiply_all
from coilwork_ir.loops import Body, Convolution, Node, Pointwise, Reduce, View
from coilwork_ir.loops.convolutions import (
    Role,
    Roles,
    find_bias,
    find_buffer,
    find_places,
    get_roles,
    read_at,
    read_factors,
)
from coilwork_ir.scalar import Scalar, cast, const, index_value, load, op, where
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.convolutions import (
    build_bias_gradient,
    is_of_single_channels,
    list_operands,
    make_pointwise,
    read_through_views,
)
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote


@dataclass(frozen=True, slots=True)
class DepthwiseSums:
    """A pointwise node that adds the products of a window of one channel.

    The bias is part of the sum, as in ATen's own kernels.

    Where channels lie side by side, neighbours want neighbouring weights, which have the taps innermost:
    those are laid out anew first, in a small kernel before each such convolution.
    """

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "kernel"
    loss: ClassVar[str] = "a library moves hardly more"

    def claims(self, node: Convolution, target: Target) -> str | None:
        """It convolves single channels, with few taps, whose number is known."""
        obstacle = _find_obstacle(node, target)
        if obstacle is not None:
            return obstacle
        if node.gradient is not None or node.transposed:
            return "it is no forward convolution"
        if _exceeds(node, target.machine.convolutions.most_taps):
            return "windows are large"
        if find_bias(node) is None or any(find_buffer(body) is None for body in (node.value, node.weight)):
            return "operands and results are computed"
        (output,) = node.outputs
        assert output is not None
        return _find_mixture(node, (output,), self.context)

    def quote(self, node: Convolution, target: Target) -> Quote:
        """Return the time that memory takes, less what the next kernel would read of the result.

        Known to hold for few taps, or few products.
        """
        convolutions = target.machine.convolutions
        extents, output = get_roles(node), node.outputs[0]
        taps = as_int(multiply_all(extents.taps))
        assert taps is not None and output is not None
        points = as_int(multiply_all(output.shape))
        is_small = points is not None and points * taps <= convolutions.few_products
        shared = math.prod(window.stride for window in node.windows) if _is_side_by_side(output) else 1
        if not is_small and taps > convolutions.most_taps_per_input * shared:
            return Quote(us=inf, reason="libraries share what many taps read between neighbours")
        context = self.context
        read = sum(context.size(context.facts.buffers[name]) for name in list_operands(node))
        us = context.move_us(read, context.size(output))
        # what follows would read the library's result again
        saved = context.move_us(context.size(output), 0)
        us = max(0.0, us - saved)
        return Quote(us=us, reason="joins what follows", numbers={"kernel_us": round(us, 3)})

    def least_gain_us(self, node: Convolution, rival: Quote) -> float:
        """0: where it is worth it was measured."""
        return 0.0

    def build(self, node: Convolution, target: Target) -> tuple[Node, ...]:
        """Return the sum over the window, behind a copy of the weight where channels lie side by side."""
        (output,) = node.outputs
        assert output is not None and node.epilogue is not None
        nodes, weight = _lay_out_weight(node, output, self.context)
        bias, wide, extents = find_bias(node), node.accumulate, get_roles(node)
        point = _drop_ranges_of_one(node.epilogue.ranges)
        total: Scalar = const(0, wide)
        if bias:
            element_ = load(bias, (point[1],), output.dtype)
            total = cast(read_through_views(element_, self.context), wide)
        for taps in _iter_taps(extents):
            places = find_places(node, extents, features=point, inner=as_expr(0), taps=taps)
            value = read_through_views(read_at(node.value, *places["image"]), self.context)
            factor = read_at(weight, *places["weight"])
            if not nodes:
                factor = read_through_views(factor, self.context)
            total = op("add", total, op("mul", cast(value, wide), cast(factor, wide)))
        return (*nodes, make_pointwise(output, node.epilogue.ranges, cast(total, output.dtype), node))


@dataclass(frozen=True, slots=True)
class DepthwiseGradientSums:
    """Loops for the gradients of an image, a weight and a bias."""

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "kernel"
    loss: ClassVar[str] = "launches of several kernels take longer"

    def claims(self, node: Convolution, target: Target) -> str | None:
        """It convolved single channels, with few taps, whose number is known, and no multiplier."""
        obstacle = _find_obstacle(node, target)
        if obstacle is not None:
            return obstacle
        if node.gradient is None or node.transposed:
            return "it is no gradient of a forward convolution"
        if as_int(get_roles(node).features) != node.groups:
            return "channels have several features"
        if _exceeds(node, target.machine.convolutions.most_gradient_taps):
            return "windows are large"
        bodies = [node.value, node.weight, node.gradient]
        if any(find_buffer(body) is None for body in bodies):
            return "operands are computed"
        return _find_mixture(node, (), self.context)

    def quote(self, node: Convolution, target: Target) -> Quote:
        """Return the time that memory takes: for the image's gradient of the result's, for the weight's of
        both.
        """
        assert node.gradient is not None
        context, (of_image, of_weight, _) = self.context, node.outputs
        result, image = (
            context.size(context.facts.buffers[find_buffer(body) or ""])
            for body in (node.gradient, node.value)
        )
        us = 0.0
        if of_image is not None:
            us += context.move_us(result, context.size(of_image)) + target.launch_us
        if of_weight is not None:
            us += context.move_us(result + image, 0) + 3 * target.launch_us
        return Quote(us=us, reason="joins what is around it", numbers={"kernel_us": round(us, 3)})

    def least_gain_us(self, node: Convolution, rival: Quote) -> float:
        """0: where it is worth it was measured."""
        return 0.0

    def build(self, node: Convolution, target: Target) -> tuple[Node, ...]:
        """Sums for each gradient that is wanted."""
        of_image, of_weight, _ = node.outputs
        nodes: list[Node] = []
        if of_image is not None:
            nodes += self._build_image_gradient(node, of_image)
        if of_weight is not None:
            nodes += self._build_weight_gradient(node, of_weight)
        return (*nodes, *build_bias_gradient(node, self.context))

    def _build_image_gradient(self, node: Convolution, output: Buffer) -> tuple[Node, ...]:
        """At each point the sum over the windows that meet it, behind a copy of the weight."""
        assert node.gradient is not None
        copies, weight = _lay_out_weight(node, output, self.context)
        extents, ranges, wide = get_roles(node), node.value.ranges, node.accumulate
        point = _drop_ranges_of_one(ranges)
        operands: dict[Role, Body] = {"features": node.gradient, "weight": weight}
        total: Scalar = const(0, wide)
        for taps in _iter_taps(extents):
            factors = read_factors(node, extents, operands, "image", point, (as_expr(0), *taps))
            one, other = (cast(read_through_views(factor, self.context), wide) for factor in factors)
            total = op("add", total, op("mul", one, other))
        return (*copies, make_pointwise(output, ranges, cast(total, output.dtype), node))

    def _build_weight_gradient(self, node: Convolution, output: Buffer) -> tuple[Node, ...]:
        """Return a sum over all points for each tap, and the weight that they are put together to."""
        assert node.gradient is not None
        extents, wide = get_roles(node), node.accumulate
        feature, _, *places = node.weight.ranges
        batch, channel, *windows = node.gradient.ranges
        operands: dict[Role, Body] = {"image": node.value, "features": node.gradient}
        nodes: list[Node] = []
        sums: list[Scalar] = []
        axes = (batch, *windows)
        shape = output.shape[:1]
        for taps in _iter_taps(extents):
            factors = read_factors(node, extents, operands, "weight", (channel, as_expr(0), *taps), axes)
            one, other = (cast(read_through_views(factor, self.context), wide) for factor in factors)
            name = self.context.name(f"{output.name}_tap")
            strides = make_contiguous_strides(shape)
            made = replace(output, name=name, dtype=wide, shape=shape, strides=strides)
            body = op("mul", one, other)
            nodes.append(
                Reduce(
                    outputs=(made,),
                    kind="sum",
                    ranges=(channel,),
                    axes=axes,
                    body=body,
                    origins=node.origins,
                )
            )
            sums.append(load(name, (feature,), wide))
        tap = as_expr(0)
        for place, size in zip(places, extents.taps, strict=True):
            tap = tap * size + (as_expr(0) if as_int(size) == 1 else place)
        found = sums[-1]
        for number, value in reversed(list(enumerate(sums[:-1]))):
            found = where(op("eq", index_value(tap), const(number, DType.I64)), value, found)
        return (*nodes, make_pointwise(output, node.weight.ranges, cast(found, output.dtype), node))


def _find_obstacle(node: Convolution, target: Target) -> str | None:
    """Return why no loops of ours convolve, forward or backward; None if they may."""
    if not target.is_gpu:
        return "libraries for CPUs convolve single channels as fast"
    return None if is_of_single_channels(node) else "channels are mixed"


def _exceeds(node: Convolution, most_taps: int) -> bool:
    """Tell if windows have more taps, or nobody knows how many."""
    taps = as_int(multiply_all(get_roles(node).taps))
    return taps is None or taps > most_taps


def _find_mixture(node: Convolution, outputs: Sequence[Buffer], context: ImplementationContext) -> str | None:
    """Return that operands and `outputs` differ in type or device; None if they do not."""
    buffers = (*outputs, *(context.facts.buffers[name] for name in list_operands(node)))
    if len({(b.dtype, b.device) for b in buffers}) != 1:
        return "operands are of several types, or on several devices"
    return None


def _lay_out_weight(
    node: Convolution, output: Buffer, context: ImplementationContext
) -> tuple[tuple[Node, ...], Body]:
    """Return the weight as loops read it that make `output`, and nodes that lay it out anew, if channels lie
    side by side or may do so.

    Neighbours want neighbouring weights, which have the taps innermost. To small results it is all one.
    """
    points = as_int(multiply_all(output.shape))
    few = context.targets.main.machine.convolutions.few_products
    if not (_is_side_by_side(output) or points is None or points > few):
        return (), node.weight
    copied = _copy_weight(node, context)
    weight = node.weight
    value = load(copied[-1].output.name, weight.ranges, weight.value.dtype)
    return copied, Body(ranges=weight.ranges, value=value)


def _copy_weight(node: Convolution, context: ImplementationContext) -> tuple[Pointwise, View]:
    """Return the weight with channels innermost, in memory.

    As a view it is not computed inside what reads it, which would undo it.
    """
    name = find_buffer(node.weight)
    assert name is not None
    weight = context.facts.buffers[name]
    strides = [as_expr(1)]
    step = weight.shape[0]
    for size in reversed(weight.shape[1:]):
        strides.insert(1, step)
        step = step * size
    copy = replace(weight, name=context.name(f"{name}_innermost"), strides=tuple(strides))
    view = replace(copy, name=context.name(f"{copy.name}_view"))
    read = read_through_views(node.weight.value, context)
    return (
        make_pointwise(copy, node.weight.ranges, read, node),
        View(output=view, source=copy.name, offset=as_expr(0), origins=node.origins),
    )


def _drop_ranges_of_one(ranges: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(as_expr(0) if as_int(get_extent(r)) == 1 else r for r in ranges)


def _is_side_by_side(output: Buffer) -> bool:
    """Tell if neighbours in memory are channels."""
    return as_int(output.strides[1]) == 1 and as_int(output.shape[-1]) != 1


def _iter_taps(extents: Roles) -> Iterator[tuple[Expr, ...]]:
    """Numbers of every tap, row-major. The counts must be known."""
    for numbers in itertools.product(*(range(as_int(count) or 0) for count in extents.taps)):
        yield tuple(map(as_expr, numbers))
