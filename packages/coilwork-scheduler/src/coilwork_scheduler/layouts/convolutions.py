"""Convolutions as calls of a library, which computes in channels-last or as captured, and converts what lies otherwise around each call.

Which of both it takes, it reads off the strides of its input and its weight, and its result lies so:
    `follows_channels_last`. So the
operands' layouts decide the result's, and a call is possible only where these agree. What conversions cost is
in `coilwork_ir.convolution_rates`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, Ref
from coilwork_ir.convolution_rates import (
    DEPTHWISE_SLOWDOWN,
    FEWEST_CHANNELS,
    LAUNCH_BYTES,
    NEST_BYTES,
    has_slow_depthwise_kernel,
)
from coilwork_ir.device_traits import CPU_LIBRARIES, CUDNN
from coilwork_ir.dtypes import DType
from coilwork_ir.loops import Extern, Node, Pointwise
from coilwork_ir.loops.layouts import nested_strides
from coilwork_ir.loops.view_strides import Strides
from coilwork_scheduler.contractions.convolutions import FORWARD, GRADIENTS
from coilwork_scheduler.layouts.sites import IMPOSSIBLE, SCALE, Around, Conversion, LayoutOf, Site

_HALVES: Final = (DType.BF16, DType.F16)


@dataclass(frozen=True, slots=True)
class _Form:
    """Positions among the arguments of a call: what it reads, with its weight last, and its flags."""

    read: tuple[int, ...]
    transposed: int
    groups: int


_FORMS: Final[Mapping[str, _Form]] = MappingProxyType(
    {
        FORWARD: _Form(read=(0, 1), transposed=6, groups=8),
        GRADIENTS: _Form(read=(0, 1, 2), transposed=7, groups=9),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionSite:
    """A convolution over two or three dimensions in floats of 16 bits, or the gradients of one.

    Attributes:
        around: what is known.
        position: of the call.
        read: input and weight; of gradients the result's gradient before them.
        made: its result, or the gradients of input and weight.
        groups: its groups.
        channels: the smaller of input channels in a group and output channels.
        conversions: copies of what it reads, and of the first that it makes.
    """

    around: Around
    position: int
    read: tuple[Buffer, ...]
    made: tuple[Buffer, ...]
    groups: int
    channels: int
    conversions: tuple[Conversion, ...] = ()

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        """What it reads and makes."""
        return (*self.read, *self.made)

    @property
    def obliges(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(buffer.name for buffer in self.tensors)

    @property
    def memory(self) -> tuple[str, ...]:
        """Memory of the same."""
        return tuple(dict.fromkeys(self.around.roots[b.name] for b in self.tensors))

    @property
    def form(self) -> Hashable:
        """Not told: its copies are its own."""
        return None

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """Nothing that is told."""
        return ()

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
                runs = self.around.views.list_runs(buffer, root)
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
        if not self._is_possible(shapes, lying, last):
            return IMPOSSIBLE
        sizes = [self._bytes(buffer) for buffer in self.tensors]
        found = sum(sizes)
        weight = len(self.read) - 1
        follows = self.follows(shapes, lying)
        if follows or (self.groups == 1 and self.channels >= FEWEST_CHANNELS):
            converted = [size for size, lies in zip(sizes, last, strict=True) if not lies]
            launch = LAUNCH_BYTES if self.is_on_gpu else 0
            found += 2 * sum(converted) + launch * len(converted)
        elif self.is_on_gpu and has_slow_depthwise_kernel(self.groups, self.channels, shapes[weight][2:]):
            # all but weights
            found += (DEPTHWISE_SLOWDOWN - 1) * (sum(sizes[:weight]) + sizes[weight + 1])
        return found * SCALE

    def follows(self, shapes: Sequence[Sequence[int]], lying: Sequence[Sequence[int]]) -> bool:
        """Tell if the library computes in channels-last: input or weight says so."""
        weight = len(self.read) - 1
        return any(follows_channels_last(shapes[k], lying[k]) for k in (weight - 1, weight))

    def _is_possible(
        self, shapes: Sequence[Sequence[int]], lying: Sequence[Sequence[int]], last: Sequence[bool]
    ) -> bool:
        """Tell if the library makes results that lie so. Each gradient follows two of the operands: these have to agree, or lie as captured."""
        follows, count = self.follows(shapes, lying), len(self.read)
        if count == 3 and any(follows_channels_last(shapes[k], lying[k]) != follows for k in range(count)):
            return all(self.around.steps(b.strides) == s for b, s in zip(self.tensors, lying, strict=True))
        return all(
            last[k] if follows else is_row_major(shapes[k], lying[k]) for k in range(count, len(shapes))
        )

    def _instead(self, layout: LayoutOf, number: int) -> Strides | None:
        name = _conversion_name(self.position, number)
        conversion = next((c for c in self.conversions if c.name == name), None)
        return None if conversion is None else layout(name, conversion.buffer)

    @property
    def is_on_gpu(self) -> bool:
        """Tell if a GPU's library computes it."""
        return self.around.targets.of(self.read[0].device).is_gpu

    def _bytes(self, buffer: Buffer) -> int:
        return self.around.sizes.size_bytes(buffer)


def weigh_convolution(position: int, node: Node, around: Around) -> Site | None:
    """`node` as a convolution or its gradients that may lie otherwise, if it is one.

    It is left as captured where it is channels-last already, since less is known of what others would gain
    without; where a size is one, so that strides do not tell a layout; where its result lies as none would
    expect; and on devices whose library is not known to follow its operands.
    """
    form = _FORMS.get(node.implements) if isinstance(node, Extern) else None
    if not isinstance(node, Extern) or form is None or len(node.args) <= form.groups:
        return None
    groups, given = node.args[form.groups], [node.args[k] for k in form.read]
    read = tuple(around.buffers[argument.name] for argument in given if isinstance(argument, Ref))
    made = tuple(b for b in node.outputs if isinstance(b, Buffer) and len(b.shape) == len(read[-1].shape))
    if len(read) != len(form.read) or not made or not isinstance(groups, int):
        return None
    if any(len(b.shape) not in (4, 5) or b.dtype not in _HALVES for b in (*read, *made)):
        return None
    shapes = [around.extents(buffer) for buffer in (*read[:-1], made[0])]
    if any(shape[1] == 1 or all(size == 1 for size in shape[2:]) for shape in shapes[: len(read)]):
        return None
    target = around.targets.of(made[0].device)
    if not target.has(CUDNN) and (not target.has(CPU_LIBRARIES) or len(made[0].shape) != 4):
        return None
    first, second = around.extents(read[-1])[:2]
    site = ConvolutionSite(
        around=around,
        position=position,
        read=read,
        made=made,
        groups=groups,
        channels=min(first // groups, second) if node.args[form.transposed] is True else min(first, second),
        conversions=(),
    )
    lying = [around.steps(buffer.strides) for buffer in site.tensors]
    if site.follows([around.extents(buffer) for buffer in site.tensors], lying):
        return None
    if site.cost(around.as_captured) >= IMPOSSIBLE:
        return None
    # a CPU's library packs weights from any layout
    places = range(len(read) + 1) if site.is_on_gpu else (*range(len(read) - 1), len(read))
    return replace(site, conversions=tuple(_conversion(site, place) for place in places))


def _conversion(site: ConvolutionSite, number: int) -> Conversion:
    around, buffer = site.around, site.tensors[number]
    rank, is_result = len(buffer.shape), number >= len(site.read)
    size = around.sizes.size_bytes(buffer)
    on_gpu = around.targets.of(buffer.device).is_gpu
    definer = around.facts.definer.get(buffer.name)
    fuses = not is_result and definer is not None and isinstance(around.graph.nodes[definer], Pointwise)
    # a byte less than the library's own copy of an operand: ours shares its launch with others
    moved = size if fuses else 2 * size + (LAUNCH_BYTES if on_gpu else NEST_BYTES) - (not is_result)
    orders = (channels_last_order(rank), tuple(range(rank)))
    return Conversion(
        name=_conversion_name(site.position, number),
        position=site.position,
        buffer=buffer,
        candidates=tuple(nested_strides(buffer.shape, order) for order in orders),
        is_result=is_result,
        bytes_moved=moved,
    )


def _conversion_name(position: int, number: int) -> str:
    return f"call {position} tensor {number}"


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
