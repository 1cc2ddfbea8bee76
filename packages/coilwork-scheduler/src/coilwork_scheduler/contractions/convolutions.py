"""Convolutions as calls of a library, and as loops of what no library takes.

Libraries' convolutions are hard to beat where channels are mixed, as that is a product of matrices. Of single
channels they are not (`coilwork_scheduler.contractions.depthwise_convolutions`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

from coilwork_ir.buffers import Argument, Buffer, ListValue, Ref, make_contiguous_strides
from coilwork_ir.index import Expr, as_expr, as_int, get_extent
from coilwork_ir.loops import Body, Convolution, Extern, Node, Pointwise
from coilwork_ir.loops.convolutions import (
    find_bias,
    find_buffer,
    get_roles,
    list_contractions,
    make_bias_gradient,
)
from coilwork_ir.scalar import (
    Load,
    Parameter,
    Scalar,
    cast,
    load,
    rewrite,
    substitute_ranges,
)
from coilwork_ir.target import Target
from coilwork_scheduler.contractions.implementations import ImplementationContext, Quote
from coilwork_scheduler.contractions.sum_of_products import SumBuilder, load_element, load_sliced_element

FORWARD: Final = "convolution"
"""What a call implements that convolves."""

GRADIENTS: Final = "convolution gradients"
"""What a call implements that computes the gradients of a convolution."""

_FORWARD_TARGET: Final = "aten.convolution.default"
_GRADIENTS_TARGET: Final = "aten.convolution_backward.default"


@dataclass(frozen=True, slots=True)
class AtenConvolution:
    """A call of ATen's `convolution` or `convolution_backward`, which ask cuDNN, MIOpen or oneDNN.

    On accelerators ATen adds a bias in a kernel of its own, which reads and writes the whole result; there
    the addition is a pointwise node, which joins what follows. It rounds as ATen's does: the convolution's
    result first, then the sum. Likewise the gradient of the bias is a sum of ours there. CPU libraries add
    the bias inside the convolution, and keep it.
    """

    context: ImplementationContext
    kind: ClassVar[Literal["library", "kernel"]] = "library"
    loss: ClassVar[str] = ""

    def claims(self, node: Convolution, target: Target) -> str | None:
        """It reads whole buffers of one type, on one device."""
        bodies = [body for body in (node.value, node.weight, node.gradient) if body is not None]
        names = [find_buffer(body) for body in bodies]
        if None in names:
            return "a library reads operands as they lie in memory"
        buffers = [self.context.facts.buffers[name] for name in names if name is not None]
        outputs = [output for output in node.outputs if output is not None]
        if len({(b.dtype, b.device) for b in (*buffers, *outputs)}) != 1:
            return "a library convolves one type, on one device"
        if not target.is_gpu and node.epilogue is not None and find_bias(node) is None:
            return "a library adds a bias, and nothing else"
        return None

    def quote(self, node: Convolution, target: Target) -> Quote:
        """Return the time that memory takes, for operands, results, and a bias that is added behind the
        call.
        """
        context = self.context
        once = sum(context.size(context.facts.buffers[name]) for name in list_operands(node))
        made = sum(context.size(output) for output in node.outputs if output is not None)
        us = context.move_us(once, made)
        if target.is_gpu and find_bias(node):
            us += context.move_us(made, made)
        if node.gradient is not None and is_of_single_channels(node):
            us /= target.machine.convolutions.gradient_share
        return Quote(us=us, numbers={"call_us": round(us, 3)})

    def least_gain_us(self, node: Convolution, rival: Quote) -> float:
        """0: it is what others are measured against."""
        return 0.0

    def build(self, node: Convolution, target: Target) -> tuple[Node, ...]:
        """Return the call, and on accelerators what follows the sums."""
        bias = find_bias(node)
        if target.is_gpu and node.gradient is not None:
            return self._build_gradients(node)
        if node.gradient is not None or bias == "":
            return (_call(node, node.outputs, bias=""),)
        if not target.is_gpu and bias is not None:
            return (_call(node, node.outputs, bias=bias),)
        (output,) = node.outputs
        assert output is not None and node.epilogue is not None
        sums = replace(output, name=self.context.name(f"{output.name}_sums"))
        return _call(node, (sums,), bias=""), self._build_epilogue(node, node.epilogue, sums)

    def _build_gradients(self, node: Convolution) -> tuple[Node, ...]:
        """Return the call for the gradients of image and weight, and the sum that is the bias's.

        ATen sums in a kernel of its own, which reads the result's gradient once more. Here what makes that
        gradient can sum, or what else sums over it.
        """
        sums = build_bias_gradient(node, self.context)
        outputs = (*node.outputs[:2], None)
        return (_call(node, outputs, bias=""), *sums) if any(outputs) else sums

    def _build_epilogue(self, node: Convolution, epilogue: Body, sums: Buffer) -> Pointwise:
        """Return the epilogue of `sums`, which are rounded."""
        (output,) = node.outputs
        assert output is not None

        def visit(value: Scalar) -> Scalar:
            if isinstance(value, Parameter):
                return cast(load(sums.name, epilogue.ranges, sums.dtype), node.accumulate)
            return read_through_views(value, self.context)

        (value,) = rewrite((epilogue.value,), visit)
        return make_pointwise(output, epilogue.ranges, value, node)


def is_of_single_channels(node: Convolution) -> bool:
    """Tell if each feature is of one channel, and their number is known."""
    extents = get_roles(node)
    single = node.groups > 1 and as_int(extents.channels) == node.groups
    return single and as_int(extents.group_channels) == 1 and as_int(extents.features) is not None


def build_loops(node: Convolution, sums: SumBuilder, context: ImplementationContext) -> tuple[Node, ...]:
    """`node` as sums of products over windows, of what no library takes."""
    nodes = [made for part in list_contractions(node) for made in sums.build(part)]
    return (*nodes, *build_bias_gradient(node, context))


def build_bias_gradient(node: Convolution, context: ImplementationContext) -> tuple[Node, ...]:
    """Return the sum that is the gradient of the bias of `node`, and its rounding; empty if that is not
    wanted.
    """
    bias = make_bias_gradient(node)
    if bias is None:
        return ()
    (output,) = bias.outputs
    assert output is not None
    wide = replace(
        output,
        name=context.name(f"{output.name}_sums"),
        dtype=node.accumulate,
        strides=make_contiguous_strides(output.shape),
    )
    rounded = cast(load(wide.name, bias.ranges, wide.dtype), output.dtype)
    return replace(bias, outputs=(wide,)), make_pointwise(output, bias.ranges, rounded, node)


def split_gradients(node: Convolution) -> tuple[Convolution, ...]:
    """Return a node for each gradient of `node` but the bias's."""
    made = []
    for number, output in enumerate(node.outputs[:2]):
        if output is not None:
            outputs = tuple(output if k == number else None for k in range(len(node.outputs)))
            made.append(replace(node, outputs=outputs))
    return tuple(made)


def _call(node: Convolution, outputs: tuple[Buffer | None, ...], *, bias: str) -> Extern:
    """Return the call of ATen's that makes `outputs` as `node` says."""
    numbers: Mapping[str, tuple[int, ...]] = {
        "stride": tuple(window.stride for window in node.windows),
        "padding": tuple(window.padding for window in node.windows),
        "dilation": tuple(window.dilation for window in node.windows),
        "extra": tuple(window.extra for window in node.windows),
    }
    stride, padding, dilation, extra = (ListValue(numbers[name]) for name in numbers)
    shape: tuple[Argument, ...] = (stride, padding, dilation, node.transposed, extra, node.groups)
    value, weight = (Ref(_name(body)) for body in (node.value, node.weight))
    args: tuple[Argument, ...]
    if node.gradient is None:
        args = (value, weight, Ref(bias) if bias else None, *shape)
    else:
        of_bias = outputs[2]
        channels = as_expr(0) if of_bias is None else of_bias.shape[0]
        known = as_int(channels)
        sizes = ListValue((channels if known is None else known,))
        wanted = ListValue(tuple(output is not None for output in outputs))
        args = (Ref(_name(node.gradient)), value, weight, sizes, *shape, wanted)
    return Extern(
        target=_FORWARD_TARGET if node.gradient is None else _GRADIENTS_TARGET,
        args=args,
        outputs=outputs,
        single=node.gradient is None,
        implements=FORWARD if node.gradient is None else GRADIENTS,
        fresh=True,
        origins=node.origins,
    )


def list_operands(node: Convolution) -> Iterator[str]:
    """Names of what `node` reads, none of which is computed."""
    bias = find_bias(node)
    for body in (node.value, node.weight, node.gradient):
        if body is not None:
            yield _name(body)
    if bias:
        yield bias


def _name(body: Body) -> str:
    name = find_buffer(body)
    assert name is not None, "a library was asked about an operand that is computed"
    return name


def make_pointwise(output: Buffer, ranges: tuple[Expr, ...], value: Scalar, node: Convolution) -> Pointwise:
    """`output[ranges] = value`, in which ranges of one element are 0."""
    (value,) = substitute_ranges((value,), {r: as_expr(0) for r in ranges if as_int(get_extent(r)) == 1})
    return Pointwise(output=output, ranges=ranges, body=value, origins=node.origins)


def read_through_views(value: Scalar, context: ImplementationContext) -> Scalar:
    """`value`, a load from memory that a view shows read where it lies."""
    if not isinstance(value, Load) or value.indirect:
        return value
    buffers = context.facts.buffers
    if value.buffer not in context.views:
        return value
    found = load_sliced_element(buffers[value.buffer], value.index, buffers, context.views)
    if found is None:
        found = load_element(buffers[value.buffer], value.index, buffers, context.views)
    return load(found.buffer, found.index, found.dtype, mask=value.mask, other=value.other)
