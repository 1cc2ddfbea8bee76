"""Convolutions as calls of a library, which computes in channels-last or as captured, and converts what lies otherwise around each call.

Which of both it takes, it reads off the strides of its input and its weight, and its result lies so: `follows_channels_last`. So the
operands' layouts decide the result's, and a call is possible only where these agree. What conversions cost is in `coilwork_ir.convolution_rates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.convolution_rates import (
    DEPTHWISE_SLOWDOWN,
    FEWEST_CHANNELS,
    LAUNCH_BYTES,
    NEST_BYTES,
    has_slow_depthwise_kernel,
)
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node, Pointwise
from coilwork_ir.loops.layouts import nested_strides
from coilwork_ir.loops.view_strides import Strides, list_runs
from coilwork_scheduler.layouts.sites import IMPOSSIBLE, SCALE, Around, Conversion, LayoutOf, Site

_TARGET: Final = "aten.convolution.default"
_HALVES: Final = (DType.BF16, DType.F16)
# Positions of the flags among the arguments.
_TRANSPOSED: Final = 6
_GROUPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSite:
    """A convolution over two or three dimensions in floats of 16 bits.

    Attributes:
        around: what is known.
        position: of the call.
        tensors: input, weight and result.
        groups: its groups.
        channels: the smaller of input channels in a group and output channels.
        conversions: copies of its input and of its result.
    """

    around: Around
    position: int
    tensors: tuple[Buffer, Buffer, Buffer]
    groups: int
    channels: int
    conversions: tuple[Conversion, ...]

    @property
    def obliges(self) -> tuple[str, ...]:
        """Its input, its weight and its result."""
        return tuple(buffer.name for buffer in self.tensors)

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of the same."""
        return tuple(dict.fromkeys(self.around.roots[b.name] for b in self.tensors))

    def cost(self, layout: LayoutOf) -> int:
        """Each tensor once, the conversions around the kernel, and the copies that are put in."""
        found = self._kernel(layout)
        for conversion in self.conversions:
            if layout(conversion.name, conversion.buffer):
                found += conversion.bytes_moved * SCALE
        return found

    def least(self) -> int:
        """Each tensor once: nothing is converted."""
        return SCALE * sum(self._bytes(buffer) for buffer in self.tensors)

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Channels innermost, and outermost behind the batch."""
        for buffer in self.tensors:
            if self.around.roots[buffer.name] != root.name:
                continue
            rank = len(buffer.shape)
            for order in (channels_last_order(rank), tuple(range(rank))):
                runs = list_runs(buffer, root)
                if runs is None:
                    continue
                moving = [run for k in order if (run := runs[k]) is not None]
                inwards = [d for run in moving for d in reversed(run.dimensions)]
                rest = [d for d in range(len(root.shape)) if d not in inwards]
                yield nested_strides(root.shape, (*rest, *dict.fromkeys(inwards)))

    def _kernel(self, layout: LayoutOf) -> int:
        lying: list[tuple[int, ...]] = []
        for number, buffer in enumerate(self.tensors):
            strides = layout(self.around.roots[buffer.name], buffer)
            if strides is None:
                return IMPOSSIBLE
            lying.append(self.around.steps(self._instead(layout, number) or strides))
        shapes = [self.around.extents(buffer) for buffer in self.tensors]
        last = [is_channels_last(shape, steps) for shape, steps in zip(shapes, lying, strict=True)]
        follows = any(follows_channels_last(*pair) for pair in zip(shapes[:2], lying[:2], strict=True))
        dense = last[2] if follows else is_row_major(shapes[2], lying[2])
        if not dense:
            return IMPOSSIBLE
        sizes = [self._bytes(buffer) for buffer in self.tensors]
        found = sum(sizes)
        if follows or (self.groups == 1 and self.channels >= FEWEST_CHANNELS):
            converted = [size for size, lies in zip(sizes, last, strict=True) if not lies]
            launch = LAUNCH_BYTES if self._is_on_gpu else 0
            found += 2 * sum(converted) + launch * len(converted)
        elif self._is_on_gpu and has_slow_depthwise_kernel(self.groups, self.channels, shapes[1][2:]):
            found += (DEPTHWISE_SLOWDOWN - 1) * (sizes[0] + sizes[2])
        return found * SCALE

    def _instead(self, layout: LayoutOf, number: int) -> Strides | None:
        name = _conversion_name(self.position, number)
        conversion = next((c for c in self.conversions if c.name == name), None)
        return None if conversion is None else layout(name, conversion.buffer)

    @property
    def _is_on_gpu(self) -> bool:
        return self.around.targets.of(self.tensors[0].device).is_gpu

    def _bytes(self, buffer: Buffer) -> int:
        return self.around.sizes.size_bytes(buffer)


def weigh_convolution(position: int, node: Node, around: Around) -> Site | None:
    """`node` as a convolution that may lie otherwise, if it is one.

    It is left as captured where a size is one, so that strides do not tell a layout, where its result lies as none would expect, and on
    devices whose library is not known to follow its operands.
    """
    if not isinstance(node, Extern) or node.target != _TARGET or len(node.args) <= _GROUPS:
        return None
    output, groups = node.outputs[0], node.args[_GROUPS]
    given = [argument for argument in node.args[:2] if isinstance(argument, Ref)]
    if len(given) != 2 or not isinstance(output, Buffer) or not isinstance(groups, int):
        return None
    tensors = (around.buffers[given[0].name], around.buffers[given[1].name], output)
    shapes = [around.extents(buffer) for buffer in tensors]
    if any(
        len(shape) not in (4, 5) or buffer.dtype not in _HALVES
        for shape, buffer in zip(shapes, tensors, strict=True)
    ):
        return None
    if any(shape[1] == 1 or all(size == 1 for size in shape[2:]) for shape in (shapes[0], shapes[2])):
        return None
    kind = around.targets.of(output.device).kind
    if kind not in ("cuda", "cpu") or (kind == "cpu" and len(output.shape) != 4):
        return None
    first, second = shapes[1][:2]
    site = ConvolutionSite(
        around=around,
        position=position,
        tensors=tensors,
        groups=groups,
        channels=min(first // groups, second) if node.args[_TRANSPOSED] is True else min(first, second),
        conversions=(),
    )
    if site.cost(lambda _, buffer: buffer.strides) >= IMPOSSIBLE:
        return None
    copies = [_conversion(position, number, tensors[number], around) for number in (0, 2)]
    return replace(site, conversions=tuple(copies))


def _conversion(position: int, number: int, buffer: Buffer, around: Around) -> Conversion:
    rank = len(buffer.shape)
    size = around.sizes.size_bytes(buffer)
    on_gpu = around.targets.of(buffer.device).is_gpu
    definer = around.facts.definer.get(buffer.name)
    fuses = number == 0 and definer is not None and isinstance(around.graph.nodes[definer], Pointwise)
    moved = size if fuses else 2 * size + (LAUNCH_BYTES if on_gpu else NEST_BYTES)
    orders = (channels_last_order(rank), tuple(range(rank)))
    return Conversion(
        name=_conversion_name(position, number),
        position=position,
        buffer=buffer,
        candidates=tuple(nested_strides(buffer.shape, order) for order in orders),
        is_result=number == 2,
        bytes_moved=moved,
    )


def _conversion_name(position: int, number: int) -> str:
    return f"call {position} operand {number}" if number < 2 else f"call {position} result"


def channels_last_order(rank: int) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost: `(0, 2, 3, 1)` of four."""
    return (0, *range(2, rank), 1)


def is_channels_last(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if a tensor of this shape fills its memory with each pixel's channels together."""
    return _is_nested(shape, steps, channels_last_order(len(shape)))


def is_row_major(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if a tensor of this shape fills its memory in the order of its dimensions."""
    return _is_nested(shape, steps, tuple(range(len(shape))))


def follows_channels_last(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if ATen takes a tensor for channels-last, as its `is_channels_last_strides` does: gaps do not matter to it."""
    least = 0
    if steps[1] == 0:
        return False
    for d in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[d] == 0 or steps[d] < least:
            return False
        if d == 0 and least == steps[1]:
            return False
        least = steps[d] * max(shape[d], 1) if shape[d] > 1 else steps[d]
    return True


def _is_nested(shape: Sequence[int], steps: Sequence[int], order: Sequence[int]) -> bool:
    step = 1
    for d in reversed(order):
        if shape[d] != 1 and steps[d] != step:
            return False
        step *= shape[d]
    return True
