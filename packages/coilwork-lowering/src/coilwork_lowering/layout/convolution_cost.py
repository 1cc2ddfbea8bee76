"""Cost of channels-last: bytes that change layout, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch

from coilwork_ir.convolution_rates import (
    BLOCKED_WEIGHT_PRICE,
    DEPTHWISE_SLOWDOWN,
    FEWEST_CHANNELS,
    LAUNCH_BYTES,
    NEST_BYTES,
    WORTHWHILE,
    has_slow_depthwise_kernel,
)
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_lowering.facts.fx_nodes import ConvolutionCall, convolution_of
from coilwork_lowering.layout.formats import bytes_hint, is_channels_last, size_hints, tensors_of
from coilwork_lowering.options import LayoutOptions

_NARROW: Final = (torch.float16, torch.bfloat16)
# Grouped kernels run in the captured layout without conversion, and some are slower in channels-last: what
# they read and write counts once, as if it had to be moved.
_GROUPED_WEIGHT: Final = 1.0


Role = Literal["leads", "follows", "stays"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """One call of `convolution` or `convolution_backward` that may be laid out.

    Attributes:
        node: the call.
        operands: positions of the tensors to lay out among its arguments: input and weight; of the backward
            call the gradient of the output, too.
        groups: the convolution's groups.
        transposed: whether the weight's first dimension counts input channels.
        blocked: whether its kernel has a blocked layout of its own, so that only activations are converted
            around it.
        role: `leads`: its operands are copied to channels-last. `follows`: it is laid out where its input is
            channels-last by then, and gains nothing by itself. `stays`: it is better off as captured.
    """

    node: torch.fx.Node
    operands: tuple[int, ...]
    groups: int
    transposed: bool
    blocked: bool
    role: Role

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
        return tuple(t for t in tensors_of(self.node.meta["val"]) if t.dim() > 1)

    @property
    def converted(self) -> tuple[torch.Tensor, ...]:
        """Tensors that the kernel converts, as captured."""
        if self.blocked:
            tensors = (*self.tensors[:-1], *self.results[:1]) if self.gives_activations else self.tensors[:-1]
        elif self.groups > 1 or self.channels < FEWEST_CHANNELS:
            tensors = ()
        else:
            tensors = (*self.tensors, *self.results)
        return tuple(t for t in tensors if not is_channels_last(t))

    @property
    def conversions(self) -> int:
        """Kernels that convert what it takes and gives, as captured.

        One for each tensor; around kernels of a single point, some of which take any layout, one in all. With
        one image on an H100, 60 surround a U-Net's 26 convolutions, of which 5 are such, where this says 62,
        and 74 ResNet-50's 53, where it says 84.
        """
        *_, weight = self.tensors
        several = any(size != 1 for size in (size_hints(weight) or ())[2:])
        return len(self.converted) if several else min(1, len(self.converted))

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
        sizes = size_hints(weight) or ()
        if (
            self.blocked
            or has_trait(activations[0].device.type, PROCESSOR)
            or not self.narrow
            or is_channels_last(activations[-1])
        ):
            return 0
        if not has_slow_depthwise_kernel(self.groups, self.channels, sizes[2:]):
            return 0
        moved = (*activations, *self.results[: self.gives_activations])
        return (DEPTHWISE_SLOWDOWN - 1) * sum(map(bytes_hint, moved))

    @property
    def is_loop(self) -> bool:
        """True if it is depthwise over so small a window that a generated loop computes it."""
        *_, weight = self.tensors
        sizes = size_hints(weight) or ()
        depthwise = self.groups > 1 and self.channels == 1
        return depthwise and not has_slow_depthwise_kernel(self.groups, self.channels, sizes[2:])

    @property
    def channels(self) -> int:
        """The smaller of input channels in a group and output channels."""
        *_, weight = self.tensors
        first, second, *_ = size_hints(weight) or (0, 0)
        return min(first // self.groups, second) if self.transposed else min(first, second)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutDecision:
    """The decision for a graph's convolutions, and why.

    Attributes:
        channels_last: whether the graph was rewritten to channels-last.
        reason: one sentence for a reader of traces.
        convolutions: calls that can be laid out.
        copies: copies inserted, of a rewrite that was tried.
        captured_bytes: what conversions around convolutions read and write if the graph stays as captured.
        rewritten_bytes: what copies read and write after the rewrite, grouped convolutions' penalty included.
        dense_copies: copies of operands that lay in memory with gaps.
    """

    channels_last: bool
    reason: str
    convolutions: int = 0
    copies: int = 0
    captured_bytes: int = 0
    rewritten_bytes: int = 0
    dense_copies: int = 0


def find_convolutions(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[Convolution, ...]:
    """Convolutions over two and three spatial dimensions whose kernels prefer channels-last.

    Without `options.layout == "channels_last"` these are the ones in 16 bit floats on `options.devices` and
    `options.narrow_devices`, but for `options.scheduled_devices`, on the former in `f32` if convolutions may
    round to TF32, and on `options.blocked_devices` in `f32`, each with the role that suits it; other kernels
    of `f32` and those of `f64` want the captured layout.

    A graph with depthwise convolutions that become loops is not left to the scheduler: to its rules a loop
    over windows costs the same in any layout. With these alone EfficientNet-B0's first block stays as
    captured, and under bf16 autocast the network takes 2,055 us on an H200 instead of 1,995.
    """
    options = _keep_loops(gm, options)
    return tuple(c for call in _calls(gm) for c in _classify_call(call, options))


def find_scheduled_convolutions(gm: torch.fx.GraphModule, options: LayoutOptions) -> tuple[Convolution, ...]:
    """Convolutions whose kernels prefer channels-last and which the scheduler lays out."""
    devices = _keep_loops(gm, options).scheduled_devices
    if not devices or options.layout != "auto":
        return ()
    preferring = replace(options, scheduled_devices=(), blocked_devices=())
    convolutions = [c for call in _calls(gm) for c in _classify_call(call, preferring)]
    return tuple(c for c in convolutions if c.tensors[0].device.type in devices)


def _calls(gm: torch.fx.GraphModule) -> list[ConvolutionCall]:
    return [call for node in gm.graph.nodes if (call := convolution_of(node)) is not None]


def _keep_loops(gm: torch.fx.GraphModule, options: LayoutOptions) -> LayoutOptions:
    """`options`, that leave nothing to the scheduler if `gm` has depthwise convolutions that become loops, as
    they do on `options.devices`.
    """
    if not options.scheduled_devices:
        return options
    everywhere = replace(options, layout="channels_last")
    convolutions = [c for call in _calls(gm) for c in _classify_call(call, everywhere)]
    convolutions = [c for c in convolutions if c.tensors[0].device.type in options.devices]
    return replace(options, scheduled_devices=()) if any(c.is_loop for c in convolutions) else options


def _classify_call(found: ConvolutionCall, options: LayoutOptions) -> Sequence[Convolution]:
    node, operands = found.node, found.operands
    transposed, groups = found["transposed"], found["groups"]
    if not isinstance(transposed, bool) or not isinstance(groups, int):
        return ()
    arguments = [node.args[position] for position in operands]
    values = [g.meta.get("val") if isinstance(g, torch.fx.Node) else None for g in arguments]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) < len(operands):
        return ()
    if any(t.dim() not in (4, 5) or t.layout != torch.strided or size_hints(t) is None for t in tensors):
        # what kernel runs on sizes that depend on data, and with it the result's layout, is not known
        return ()
    blocked = options.layout == "auto" and _is_blocked(tensors[0], options)
    if options.layout != "channels_last" and not blocked and not _profits(tensors[0], options):
        return ()
    call = Convolution(
        node=node, operands=operands, groups=groups, transposed=transposed, blocked=blocked, role="leads"
    )
    return (replace(call, role=_role(call)) if blocked else call,)


def _profits(tensor: torch.Tensor, options: LayoutOptions) -> bool:
    device = tensor.device.type
    if device in options.scheduled_devices:
        return False
    if tensor.dtype in _NARROW:
        return device in options.devices or device in options.narrow_devices
    return tensor.dtype is torch.float32 and device in options.devices and options.tf32_convolutions


def _is_blocked(tensor: torch.Tensor, options: LayoutOptions) -> bool:
    device = tensor.device.type
    return (
        tensor.dtype is torch.float32
        and device in options.blocked_devices
        and device not in (*options.devices, *options.scheduled_devices)
    )


def _role(call: Convolution) -> Role:
    """The part that the weight of a convolution with a blocked layout lets it play."""
    *activations, weight = call.tensors
    if is_channels_last(weight):
        return "follows"
    if len(call.operands) == 2:
        activations += call.results
    return (
        "leads" if BLOCKED_WEIGHT_PRICE * bytes_hint(weight) <= sum(map(bytes_hint, activations)) else "stays"
    )


def estimate_captured_cost(convolutions: Sequence[Convolution]) -> int:
    """Bytes read and written by the conversions that kernels make around convolutions as captured, and while
    slower ones run.
    """
    converted = sum(2 * bytes_hint(t) for call in convolutions for t in call.converted)
    return converted + sum(call.lost_bytes for call in convolutions)


def estimate_grouped_cost(convolutions: Sequence[Convolution]) -> int:
    """The penalty, in bytes, of grouped convolutions that were not captured in channels-last."""
    total = 0
    for call in convolutions:
        if call.groups > 1 and not call.blocked and not call.lost_bytes:
            moved = [t for t in (*call.tensors, *call.results) if not is_channels_last(t)]
            total += sum(bytes_hint(t) for t in moved)
    return int(_GROUPED_WEIGHT * total)


def judge(
    convolutions: Sequence[Convolution], *, copies: int, copied_bytes: int, options: LayoutOptions
) -> LayoutDecision:
    """The decision about a graph where `copies` that read and write `copied_bytes` give `convolutions`
    channels-last.
    """
    before = estimate_captured_cost(convolutions)
    after = copied_bytes + estimate_grouped_cost(convolutions)
    on_cpu = all(has_trait(c.tensors[0].device.type, PROCESSOR) for c in convolutions)
    launch = NEST_BYTES if on_cpu else LAUNCH_BYTES
    launched = copies * launch
    converting = 0 if on_cpu else sum(call.conversions for call in convolutions if call.narrow)
    what = f"{after} bytes change layout in channels-last, {before} as captured"
    if not convolutions:
        chosen, what = False, "no kernel returns channels-last"
    elif options.layout == "channels_last":
        chosen, what = True, f"asked for; {what}"
    else:
        chosen = before > 0 and after + launched <= WORTHWHILE * (before + converting * launch)
        what += f", and {copies} copies are launched instead of {converting}, each worth {launch} bytes"
    return LayoutDecision(
        channels_last=chosen,
        reason=f"{len(convolutions)} convolutions {'in channels-last' if chosen else 'as captured'}: {what}",
        convolutions=len(convolutions),
        copies=copies,
        captured_bytes=before,
        rewritten_bytes=after,
    )
