"""Estimate what convolutions lose as captured: the bytes that their kernels convert, and those of copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.convolution_rates import (
    DEPTHWISE_SLOWDOWN,
    FEWEST_CHANNELS,
    LAUNCH_BYTES,
    NEST_BYTES,
    WORTHWHILE,
    has_slow_depthwise_kernel,
)
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_lowering.aten_layouts.formats import (
    estimate_bytes,
    get_size_hints,
    is_channels_last,
    iterate_tensors,
)
from coilwork_lowering.facts.fx_nodes import ConvolutionCall, match_convolution
from coilwork_lowering.options import LayoutOptions

_NARROW: Final = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One call of `convolution` or `convolution_backward` whose kernel prefers channels-last.

    Attributes:
        node: the call.
        operands: positions of the tensors to lay out among its arguments: input and weight; of the backward
            call the gradient of the output, too.
        groups: the convolution's groups.
        transposed: whether the weight's first dimension counts input channels.
    """

    node: torch.fx.Node
    operands: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Operands as captured, weight last."""
        tensors: list[torch.Tensor] = []
        for position in self.operands:
            operand = self.node.args[position]
            assert isinstance(operand, torch.fx.Node)
            tensors.append(operand.meta["val"])
        return tuple(tensors)

    @property
    def results(self) -> tuple[torch.Tensor, ...]:
        """Results that have a layout: all but the bias's gradient."""
        return tuple(t for t in iterate_tensors(self.node.meta["val"]) if t.dim() > 1)

    @property
    def is_converted(self) -> bool:
        """Tell if its kernel converts what is not channels-last."""
        return self.groups == 1 and self.channels >= FEWEST_CHANNELS

    @property
    def converted_tensors(self) -> tuple[torch.Tensor, ...]:
        """Tensors that the kernel converts, as captured."""
        tensors = (*self.tensors, *self.results) if self.is_converted else ()
        return tuple(t for t in tensors if not is_channels_last(t))

    @property
    def conversions(self) -> int:
        """Kernels that convert what it takes and gives, as captured.

        One for each tensor; around kernels of a single point, some of which take any layout, one in all. With
        one image on an H100, 60 surround a U-Net's 26 convolutions, of which 5 are such, where this says 62,
        and 74 ResNet-50's 53, where it says 84.
        """
        *_, weight = self.tensors
        several = any(size != 1 for size in (get_size_hints(weight) or ())[2:])
        return len(self.converted_tensors) if several else min(1, len(self.converted_tensors))

    @property
    def narrow(self) -> bool:
        """Tell if it is in 16-bit floats."""
        return self.tensors[0].dtype in _NARROW

    @property
    def gives_activations(self) -> bool:
        """Tell whether the first result is the output or the input's gradient, and not just a weight's
        gradient.
        """
        value = self.node.meta["val"]
        return isinstance(value, torch.Tensor) or isinstance(value[0], torch.Tensor)

    @property
    def lost_bytes(self) -> int:
        """Bytes that memory could move in the time that a depthwise kernel loses as captured."""
        *activations, weight = self.tensors
        is_quick = has_trait(weight.device.type, PROCESSOR) or not self.narrow
        if is_quick or is_channels_last(activations[-1]):
            return 0
        sizes = get_size_hints(weight) or ()
        if not has_slow_depthwise_kernel(
            self.groups, self.channels, sizes[2:], is_gradient=len(self.operands) == 3
        ):
            return 0
        moved = (*activations, *self.results[: self.gives_activations])
        return (DEPTHWISE_SLOWDOWN - 1) * sum(map(estimate_bytes, moved))

    @property
    def channels(self) -> int:
        """The smaller of input channels in a group and output channels."""
        *_, weight = self.tensors
        first, second, *_ = get_size_hints(weight) or (0, 0)
        return min(first // self.groups, second) if self.transposed else min(first, second)


def find_convolutions(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[Convolution, ...]:
    """Convolutions over two and three spatial dimensions whose kernels prefer channels-last, and convert
    weights that are not.

    They are those on `options.scheduled_devices` in floats of 16 bits, and on GPUs in `f32` if convolutions
    may round to TF32. In full `f32` a CPU's library lays weights out by itself.
    """
    calls = [call for node in gm.graph.nodes if (call := match_convolution(node)) is not None]
    return tuple(found for call in calls if (found := _prefer_channels_last(call, options)) is not None)


def _prefer_channels_last(found: ConvolutionCall, options: LayoutOptions) -> Convolution | None:
    node, operands = found.node, found.operands
    transposed, groups = found["transposed"], found["groups"]
    if not isinstance(transposed, bool) or not isinstance(groups, int):
        return None
    arguments = [node.args[position] for position in operands]
    values = [g.meta.get("val") if isinstance(g, torch.fx.Node) else None for g in arguments]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) < len(operands):
        return None
    if any(t.dim() not in (4, 5) or t.layout != torch.strided or get_size_hints(t) is None for t in tensors):
        # what kernel runs on sizes that depend on data, and with it the result's layout, is not known
        return None
    if not _prefers(tensors[0], options):
        return None
    return Convolution(node=node, operands=operands, groups=groups, transposed=transposed)


def _prefers(tensor: torch.Tensor, options: LayoutOptions) -> bool:
    device = tensor.device.type
    if device not in options.scheduled_devices:
        return False
    rounds = options.tf32_convolutions and device in options.devices
    return tensor.dtype in _NARROW or (tensor.dtype is torch.float32 and rounds)


def estimate_captured_cost(convolutions: Sequence[Convolution]) -> int:
    """Bytes read and written by the conversions that kernels make around convolutions as captured, and while
    slower ones run.
    """
    converted = sum(2 * estimate_bytes(t) for call in convolutions for t in call.converted_tensors)
    return converted + sum(call.lost_bytes for call in convolutions)


def gains_by_copies(convolutions: Sequence[Convolution], *, copies: int, copied_bytes: int) -> bool:
    """Tell if `copies` that read and write `copied_bytes` cost clearly less than what they save
    `convolutions`.
    """
    on_cpu = all(has_trait(c.tensors[0].device.type, PROCESSOR) for c in convolutions)
    launch = NEST_BYTES if on_cpu else LAUNCH_BYTES
    converting = 0 if on_cpu else sum(call.conversions for call in convolutions if call.narrow)
    before = estimate_captured_cost(convolutions)
    return before > 0 and copied_bytes + copies * launch <= WORTHWHILE * (before + converting * launch)
