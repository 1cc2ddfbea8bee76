"""The layout rules for convolutions as library calls, which convert tensors that lie otherwise.

A library computes in channels-last or as captured. It reads that off the strides of its input and its weight,
and its results lie so (`is_taken_as_channels_last`). The pass chooses that order for each call. Each tensor
of the call costs by itself beside it: what lies otherwise is copied. What conversions cost is in
`coilwork_ir.convolution_rates`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer, ListValue, Ref
from coilwork_ir.convolution_rates import (
    BLOCKED_WEIGHT_PRICE,
    DEPTHWISE_SLOWDOWN,
    FEWEST_CHANNELS,
    LAUNCH_BYTES,
    NEST_BYTES,
    has_slow_depthwise_kernel,
)
from coilwork_ir.device_traits import CPU_LIBRARIES, CUDNN
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int
from coilwork_ir.loops import Extern, Node, Pointwise
from coilwork_ir.loops.layouts import Strides, make_nested_strides
from coilwork_scheduler.contractions.convolutions import FORWARD, GRADIENTS
from coilwork_scheduler.layouts.constraints import (
    IMPOSSIBLE,
    SCALE,
    Choice,
    Copy,
    LayoutContext,
    LayoutOf,
    Site,
)
from coilwork_scheduler.layouts.traffic import TILED

_HALVES: Final = (DType.BF16, DType.F16)
# Convolutions of a training step for each of its forward graph: itself, and those that make both of its
# gradients.
_CONVOLUTIONS: Final = 3


@dataclass(frozen=True, slots=True)
class Form:
    """Positions among the arguments of a call: what it reads, with its weight last, and its flags."""

    read: tuple[int, ...]
    transposed: int
    groups: int


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        FORWARD: Form(read=(0, 1), transposed=6, groups=8),
        GRADIENTS: Form(read=(0, 1, 2), transposed=7, groups=9),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A convolution over two or three dimensions, or the gradients of one, in floats of 16 bits or in `f32`.

    Attributes:
        context: facts about the graph.
        position: of the call.
        read: input and weight; of gradients the result's gradient before them.
        made: its result, or the gradients of input and weight.
        needs_weight: the weight is read: of gradients, for the input's.
        groups: its groups.
        channels: the smaller of input channels in a group and output channels.
    """

    context: LayoutContext
    position: int
    read: tuple[Buffer, ...]
    made: tuple[Buffer, ...]
    needs_weight: bool
    groups: int
    channels: int

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        """Return what it reads and makes."""
        return (*self.read, *self.made)

    @property
    def is_on_gpu(self) -> bool:
        """Tell if a GPU's library computes it."""
        return self.context.targets.of(self.read[0].device).is_gpu

    @property
    def is_narrow(self) -> bool:
        """Tell if it is in floats of 16 bits."""
        return self.read[0].dtype in _HALVES

    @property
    def is_captured_channels_last(self) -> bool:
        """Tell if the library computes in channels-last as captured: input or weight says so."""
        context = self.context
        return any(
            is_taken_as_channels_last(context.extents(b), context.steps(b.strides)) for b in self.read[-2:]
        )

    @property
    def has_gradients_behind(self) -> bool:
        """Tell if the graph is the forward one of a training step.

        The backward graph, which is compiled for what this one saves, computes two convolutions for each.
        """
        return bool(self.context.graph.free_results) and len(self.read) == 2

    @property
    def is_blocked(self) -> bool:
        """Tell if the library has a blocked layout of its own, as that of a CPU has in `f32`.

        It converts activations as captured through memory, and computes channels-last ones as they lie. The
        weight becomes blocks either way, and of a channels-last call is copied to channels-last before.
        """
        return not self.is_on_gpu and not self.is_narrow

    @property
    def is_converted(self) -> bool:
        """Tell if the library's kernel converts what is not channels-last, whatever it is given."""
        return self.is_blocked or (self.groups == 1 and self.channels >= FEWEST_CHANNELS)

    @property
    def has_slow_kernel(self) -> bool:
        """Tell if a GPU computes it slowly as captured."""
        window = self.context.extents(self.read[-1])[2:]
        is_fast = not self.is_on_gpu or not self.is_narrow
        return not is_fast and has_slow_depthwise_kernel(
            self.groups, self.channels, window, is_gradient=len(self.read) == 3
        )

    @property
    def is_slower_channels_last(self) -> bool:
        """Tell if it may be slower in channels-last: groups in `f32` run on a GPU as captured without
        conversion.
        """
        return self.is_on_gpu and self.groups > 1 and not self.is_narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSite:
    """One tensor of a call: what it costs, by how it lies and by the order in which the call computes.

    In channels-last the library takes and makes channels-last tensors, else such as fill memory in the order
    of their dimensions. An operand that lies otherwise is copied, by the program or by the library, and so is
    a result that should.

    Attributes:
        call: the call.
        number: the tensor's, among the call's.
        order: the choice of the order, as strides of the call's first result.
    """

    call: Call
    number: int
    order: Choice

    @property
    def buffer(self) -> Buffer:
        """The tensor."""
        return self.call.tensors[self.number]

    @property
    def obliges(self) -> tuple[str, ...]:
        """The tensor: the call takes or makes it in any order."""
        return (self.buffer.name,)

    @property
    def memory(self) -> tuple[str, ...]:
        """Its memory."""
        return (self.call.context.roots[self.buffer.name],)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The order in which the call computes."""
        return (self.order,)

    @property
    def form(self) -> Hashable:
        """Return what the tensor is to the call."""
        call, buffer = self.call, self.buffer
        kind = (self._is_result, self._is_weight, self._is_weight_gradient, self._fuses, self._is_slow)
        return (
            TensorSite,
            (buffer.shape, buffer.dtype, kind),
            (call.is_converted, call.is_blocked, call.is_on_gpu, call.needs_weight),
            (call.is_slower_channels_last, call.has_gradients_behind),
        )

    @property
    def asked(self) -> tuple[tuple[str, Buffer], ...]:
        """The tensor, and the order."""
        return ((self.memory[0], self.buffer), (self.order.name, self.order.buffer))

    def cost(self, layout: LayoutOf) -> int:
        """Return the tensor once, what the library converts around its kernel, and the copy, if one is put
        in.
        """
        buffer, is_last = self.buffer, self._computes_channels_last(layout)
        strides = layout(self.memory[0], buffer)
        if strides is None:
            return IMPOSSIBLE
        found = size = self._size
        # what a call loses as captured or, of some, in channels-last
        lost = self._channels_last_loss(strides) if is_last else self._loss if size else 0
        found += lost * (_CONVOLUTIONS if self.call.has_gradients_behind else 1)
        if self._has_copy(strides, is_last=is_last):
            # what makes the operand runs along one of both, and across the other
            found += TILED * size if self._fuses else self._copied_bytes
            if self.call.has_gradients_behind and not self._is_result and not self.call.is_on_gpu:
                # the backward graph gets the operand, not its copy; a GPU's stem of few channels is quicker
                # in channels-last all the same, which no cost tells
                found += 2 * size + self._copy_launch
        elif not self._is_result and not is_last and not self._lies_so(strides, is_last=False):
            # neither layout: the library makes a row-major copy first
            found += 2 * size
        return found * SCALE

    def least(self) -> int:
        """Return the tensor once: nothing is converted."""
        return SCALE * self._size

    def follow(self, root: Buffer, lying: Mapping[str, Sequence[Strides]]) -> Iterable[Strides]:
        """Return nothing: what a library prefers does not depend on how other memory lies."""
        return ()

    def propose(self, root: Buffer) -> Iterable[Strides]:
        """Channels innermost, and outermost behind the batch."""
        buffer = self.buffer
        rank = len(buffer.shape)
        for order in (get_channels_last_order(rank), tuple(range(rank))):
            runs = self.call.context.views.list_runs(buffer, root)
            if runs is None:
                continue
            moving = [run for k in order if (run := runs[k]) is not None]
            inwards = [d for run in moving for d in reversed(run.dimensions)]
            rest = [d for d in range(len(root.shape)) if d not in inwards]
            yield make_nested_strides(root.shape, (*rest, *dict.fromkeys(inwards)))

    def list_copies(self, layout: LayoutOf) -> tuple[Copy, ...]:
        """Return the copy of the tensor, in the order of the call, if `layout` takes one."""
        buffer, is_last = self.buffer, self._computes_channels_last(layout)
        strides = layout(self.memory[0], buffer)
        if strides is None or not self._has_copy(strides, is_last=is_last):
            return ()
        rank = len(buffer.shape)
        order = get_channels_last_order(rank) if is_last else tuple(range(rank))
        # the library would copy an operand for a kernel in channels-last by itself
        saved = 2 * self._size + self._launch - self._copied_bytes
        return (
            Copy(
                position=self.call.position,
                buffer=buffer,
                strides=make_nested_strides(buffer.shape, order),
                is_result=self._is_result,
                bytes_moved=self._copied_bytes,
                bytes_saved=saved if is_last and not self._is_result else None,
            ),
        )

    def _computes_channels_last(self, layout: LayoutOf) -> bool:
        first = self.order.buffer
        strides = layout(self.order.name, first)
        assert strides is not None, "an order has strides"
        return as_int(strides[1]) == 1

    def _has_copy(self, strides: Strides, *, is_last: bool) -> bool:
        """Tell if the program copies the tensor, which lies so, and not the library."""
        if self._is_result:
            return not self._lies_so(strides, is_last=is_last)
        if self._is_weight and not self.call.needs_weight:
            return False
        context = self.call.context
        follows = is_taken_as_channels_last(context.extents(self.buffer), context.steps(strides))
        if not is_last:
            return follows
        # a CPU's library packs weights from any layout
        return not self._lies_so(strides, is_last=True) and (self.call.is_on_gpu or not self._is_weight)

    def _lies_so(self, strides: Strides, *, is_last: bool) -> bool:
        context = self.call.context
        shape, steps = context.extents(self.buffer), context.steps(strides)
        return is_channels_last(shape, steps) if is_last else is_row_major(shape, steps)

    @property
    def _size(self) -> int:
        if self._is_weight and not self.call.needs_weight:
            return 0
        return self.call.context.sizes.size_bytes(self.buffer)

    def _channels_last_loss(self, strides: Strides) -> int:
        """Return what the library loses for the tensor, which lies so, where it computes in channels-last."""
        lost = self._size if self.call.is_slower_channels_last else 0
        if self._is_weight and not self.call.is_on_gpu and not self._lies_so(strides, is_last=True):
            # it copies the weight by itself
            lost += 2 * self._size * (BLOCKED_WEIGHT_PRICE if self.call.is_blocked else 1)
        return lost

    @property
    def _loss(self) -> int:
        """Return what the library loses for the tensor where it is not given channels-last."""
        if self.call.is_blocked and (self._is_weight or self._is_weight_gradient):
            return 0
        if self.call.is_converted:
            return 2 * self._size + self._launch
        if self._is_slow:
            return (DEPTHWISE_SLOWDOWN - 1) * self._size
        return 0

    @property
    def _copied_bytes(self) -> int:
        """Return what a copy reads and writes; the writing alone where it runs in the kernel that makes
        the operand.
        """
        size = self._size
        if self._fuses:
            return size
        # a byte less than the library's own copy of an operand: ours shares its launch with others
        return 2 * size + self._copy_launch - (not self._is_result)

    @property
    def _copy_launch(self) -> int:
        return LAUNCH_BYTES if self.call.is_on_gpu else NEST_BYTES

    @property
    def _fuses(self) -> bool:
        context = self.call.context
        definer = context.facts.definer.get(self.buffer.name)
        return (
            not self._is_result
            and definer is not None
            and isinstance(context.graph.nodes[definer], Pointwise)
        )

    @property
    def _launch(self) -> int:
        # small graphs in `f32` stay as captured, and with them the rounding of their kernels
        return LAUNCH_BYTES if self.call.is_on_gpu and self.call.is_narrow else 0

    @property
    def _is_result(self) -> bool:
        return self.number >= len(self.call.read)

    @property
    def _is_weight(self) -> bool:
        return self.number == len(self.call.read) - 1

    @property
    def _is_weight_gradient(self) -> bool:
        is_gradient = self._is_result and len(self.call.read) == 3
        return is_gradient and (self.number > len(self.call.read) or not self.call.needs_weight)

    @property
    def _is_slow(self) -> bool:
        """Tell if it is an activation of a call that is slow as captured."""
        return self.call.has_slow_kernel and not (self._is_weight or self._is_weight_gradient)


def weigh_convolution(position: int, node: Node, context: LayoutContext) -> tuple[Site, ...]:
    """`node` as a convolution in 16 bits or its gradients, if it is one: a site for each tensor."""
    return _weigh(position, node, context, _HALVES)


def weigh_rounded_convolution(position: int, node: Node, context: LayoutContext) -> tuple[Site, ...]:
    """`node` as a convolution in `f32` on a GPU or its gradients, if it is one: a site for each tensor.

    It rounds its operands to TF32, so matrix units compute it.
    """
    is_on_gpu = isinstance(node, Extern) and any(
        isinstance(b, Buffer) and context.targets.of(b.device).has(CUDNN) for b in node.outputs
    )
    return _weigh(position, node, context, (DType.F32,)) if is_on_gpu else ()


def weigh_blocked_convolution(position: int, node: Node, context: LayoutContext) -> tuple[Site, ...]:
    """`node` as a convolution in `f32` on a CPU or its gradients, if it is one: a site for each tensor.

    Its library computes in blocks (`Call.is_blocked`).
    """
    is_on_cpu = isinstance(node, Extern) and any(
        isinstance(b, Buffer) and context.targets.of(b.device).has(CPU_LIBRARIES) for b in node.outputs
    )
    return _weigh(position, node, context, (DType.F32,)) if is_on_cpu else ()


def weigh_asked_convolution(position: int, node: Node, context: LayoutContext) -> tuple[Site, ...]:
    """`node` as a convolution or its gradients that is computed in channels-last because the user says so, if
    it is one: a site for each tensor.
    """
    return _weigh(position, node, context, (*_HALVES, DType.F32), is_asked=True)


def _weigh(
    position: int, node: Node, context: LayoutContext, types: Sequence[DType], *, is_asked: bool = False
) -> tuple[Site, ...]:
    """`node` as a convolution in one of `types`, or its gradients, that may lie otherwise, if it is one.

    It is left as captured where all of it is channels-last already, since less is known of what others would
    gain without; where a size is one, so that strides do not tell a layout; where its result lies as none
    would expect; and on devices whose library is not known to follow its operands.
    """
    form = FORMS.get(node.implements) if isinstance(node, Extern) else None
    if not isinstance(node, Extern) or form is None or len(node.args) <= form.groups:
        return ()
    groups, given = node.args[form.groups], [node.args[k] for k in form.read]
    read = tuple(context.buffers[argument.name] for argument in given if isinstance(argument, Ref))
    made = tuple(b for b in node.outputs if isinstance(b, Buffer) and len(b.shape) == len(read[-1].shape))
    if len(read) != len(form.read) or not made or not isinstance(groups, int):
        return ()
    if any(len(b.shape) not in (4, 5) or b.dtype not in types for b in (*read, *made)):
        return ()
    activations = (*read[:-1], *made) if len(read) == 2 else read[:-1]
    shapes = [context.extents(buffer) for buffer in activations]
    if any(shape[1] == 1 or all(size == 1 for size in shape[2:]) for shape in shapes):
        return ()
    target = context.targets.of(made[0].device)
    if not target.has(CUDNN) and not target.has(CPU_LIBRARIES):
        return ()
    if target.has(CPU_LIBRARIES) and len(read) == 3 and _writes_behind_its_result(node, context):
        return ()
    first, second = context.extents(read[-1])[:2]
    call = Call(
        context=context,
        position=position,
        read=read,
        made=made,
        needs_weight=node.outputs[0] is not None,
        groups=groups,
        channels=min(first // groups, second) if node.args[form.transposed] is True else min(first, second),
    )
    order = _choose_order(call, is_asked=is_asked)
    return (
        ()
        if order is None
        else tuple(TensorSite(call=call, number=number, order=order) for number in range(len(call.tensors)))
    )


# Input channels from which on oneDNN's gradient of a weight of one tap takes whole vectors of them.
_WHOLE_VECTOR: Final = 16


def _writes_behind_its_result(gradients: Extern, context: LayoutContext) -> bool:
    """Tell if oneDNN may write behind the gradient of the weight, in channels-last (torch 2.11 to 2.13).

    It does for windows of one tap with steps, and fewer input channels than a vector holds: 16 with AVX-512,
    in any type of floats, and 8 with AVX2. As captured, with groups, or transposed, it does not.
    """
    weight, steps = gradients.args[2], gradients.args[4]
    if not isinstance(weight, Ref) or not isinstance(steps, ListValue):
        return False
    _, channels, *window = context.extents(context.buffers[weight.name])
    return channels < _WHOLE_VECTOR and all(size == 1 for size in window) and any(n != 1 for n in steps.items)


def _choose_order(call: Call, *, is_asked: bool) -> Choice | None:
    """Return the orders in which `call` may compute, that of capture first; None if it stays as captured.

    What is channels-last as captured stays so, and what the user asks for has no other order.
    """
    context = call.context
    result = call.read[-2] if len(call.read) == 3 else call.made[0]
    rank = len(result.shape)
    orders = [tuple(range(rank)), get_channels_last_order(rank)]
    lying = [(context.extents(b), context.steps(b.strides)) for b in call.tensors]
    if call.is_captured_channels_last:
        if all(is_channels_last(*each) for each in lying):
            return None
        del orders[0]
        is_asked = False
    elif not all(is_row_major(*each) for each in lying[len(call.read) :]):
        return None
    if is_asked:
        del orders[0]
    candidates = tuple(make_nested_strides(result.shape, order) for order in orders)
    name = f"order of call {call.position}"
    shown = replace(result, name=name, strides=candidates[0])
    return Choice(name=name, buffer=shown, candidates=candidates, is_asked=is_asked)


def get_channels_last_order(rank: int) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost: `(0, 2, 3, 1)` of four."""
    return (0, *range(2, rank), 1)


def is_channels_last(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if a tensor of this shape fills its memory with each pixel's channels together."""
    return _is_nested(shape, steps, get_channels_last_order(len(shape)))


def is_row_major(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if a tensor of this shape fills its memory in the order of its dimensions."""
    return _is_nested(shape, steps, tuple(range(len(shape))))


def is_taken_as_channels_last(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Tell if ATen takes a tensor for channels-last, as its `is_channels_last_strides` does: gaps do not
    matter to it.
    """
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
