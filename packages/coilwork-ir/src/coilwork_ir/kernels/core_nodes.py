"""The core of a kernel: what it computes before its stores, where that is more than one body says.

A kernel with a core runs over the core's own ranges. The core's operands have bodies, prologues included;
they load at flat offsets like everything in a kernel. The stores are its epilogue: in them `parameter k` is
result number k of the core. So each operand has a prologue, a result as many stores as are wanted, and
nothing is rounded on the way.

The loop IR has the same three nodes. There they relate buffers, and one node may hold several gradients; here
a core is what one launch computes, over memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, extents_of
from coilwork_ir.loops.attention_nodes import Weights
from coilwork_ir.loops.convolutions import Role, Roles
from coilwork_ir.loops.nodes import Body, Window
from coilwork_ir.scalar import Scalar

CoreKind: TypeAlias = Literal["convolution", "attention", "attention-gradient"]
"""Kinds of cores, by which generators declare what they take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCore:
    """A contraction over windows: two of an image, a weight and features, and what they make of the third.

    `coilwork_ir.loops.convolutions` defines how the three relate. A transposed convolution, and the gradient
    of an image, make the image; the gradient of a weight makes the weight.

    Attributes:
        makes: what the result, parameter 0 of the stores, is.
        ranges: the kernel's parallel ranges, one for each dimension of the result, outermost first.
        axes: its reduced ranges, along which products are summed:
            `coilwork_ir.loops.convolutions.extents_summed`.
        operands: the other two and what each is, over ranges of their own. Images are 0 outside, whatever
            their body makes of 0.
        windows, groups: as of a `Convolution` of the loop IR.
        accumulate: the type of products and sums.
    """

    makes: Role
    ranges: tuple[Expr, ...]
    axes: tuple[Expr, ...]
    operands: tuple[tuple[Role, Body], tuple[Role, Body]]
    windows: tuple[Window, ...]
    groups: int
    accumulate: DType

    @property
    def kind(self) -> CoreKind:
        """`convolution`."""
        return "convolution"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the operands."""
        return tuple(body.value for _, body in self.operands)

    @property
    def roles(self) -> Roles:
        """Extents of image, weight and features."""
        extents: Mapping[Role, tuple[Expr, ...]] = {
            self.makes: extents_of(self.ranges),
            **{role: extents_of(body.ranges) for role, body in self.operands},
        }
        image, weight, features = extents["image"], extents["weight"], extents["features"]
        return Roles(
            batch=image[0],
            channels=image[1],
            space=image[2:],
            features=weight[0],
            group_channels=weight[1],
            taps=weight[2:],
            windows=features[2:],
        )

    def with_bodies(self, bodies: Sequence[Scalar]) -> ConvolutionCore:
        """This core with other `bodies`, in order."""
        (first, left), (second, right) = self.operands
        left, right = (replace(body, value=value) for body, value in zip((left, right), bodies, strict=True))
        return replace(self, operands=((first, left), (second, right)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCore:
    """Two contractions with a score, a mask and a softmax between them, as `Attention` of the loop IR.

    In the stores parameter 0 is the weighted sum of values, over the parallel ranges, which are those of the
    `weights`; parameter 1 is the logsumexp of each row, over all of these but the last. The reduced ranges
    are the weights' axes. Scores are never in memory: a generator goes through the keys block by block, with
    an online softmax.
    """

    weights: Weights

    @property
    def kind(self) -> CoreKind:
        """`attention`."""
        return "attention"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the weights."""
        return self.weights.bodies

    def with_bodies(self, bodies: Sequence[Scalar]) -> AttentionCore:
        """This core with other `bodies`, in order."""
        return AttentionCore(weights=weights_with(self.weights, bodies))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGradientCore:
    """The gradients of an attention's operands, as `AttentionGradient` of the loop IR.

    In the stores parameters 0, 1 and 2 are the gradients of query, key and value, parameter 3 that of a bias.
    Each store knows one of them: its index says which points belong to one element, whose gradient is the sum
    of what these points add. What it stores is made of the parameter alone.

    Attributes:
        weights: those of the attention, computed again.
        output, logsumexp, gradient: what the attention has left, and the gradient of its output.
        slope: the gradient of a raw score, given that and what passes through the softmax as parameters 0 and
            1.
        bias: what a score adds to the gradient of a bias, given the same; None if no such gradient is wanted.
    """

    weights: Weights
    output: Scalar
    logsumexp: Scalar
    gradient: Scalar
    slope: Scalar
    bias: Scalar | None = None

    @property
    def kind(self) -> CoreKind:
        """`attention-gradient`."""
        return "attention-gradient"

    @property
    def bodies(self) -> tuple[Scalar, ...]:
        """Bodies of the weights, then the others."""
        bias = () if self.bias is None else (self.bias,)
        return (*self.weights.bodies, self.output, self.logsumexp, self.gradient, self.slope, *bias)

    def with_bodies(self, bodies: Sequence[Scalar]) -> AttentionGradientCore:
        """This core with other `bodies`, in order."""
        count = len(self.weights.bodies)
        output, logsumexp, gradient, slope, *bias = bodies[count:]
        return AttentionGradientCore(
            weights=weights_with(self.weights, bodies[:count]),
            output=output,
            logsumexp=logsumexp,
            gradient=gradient,
            slope=slope,
            bias=bias[0] if bias else None,
        )


Core: TypeAlias = ConvolutionCore | AttentionCore | AttentionGradientCore


def weights_with(weights: Weights, bodies: Sequence[Scalar]) -> Weights:
    """`weights` with other `bodies`, in order."""
    query, key, value, score, *mask = bodies
    return replace(weights, query=query, key=key, value=value, score=score, mask=mask[0] if mask else None)


def ranges_of(core: Core) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """The parallel and the reduced ranges of a kernel with `core`, in the core's order."""
    if isinstance(core, ConvolutionCore):
        return core.ranges, core.axes
    return core.weights.ranges, core.weights.axes


def results_of(core: Core) -> tuple[frozenset[Expr], ...]:
    """The ranges that each result of `core` may vary along."""
    if isinstance(core, ConvolutionCore):
        return (frozenset(core.ranges),)
    weights = core.weights
    rows, (keys, length) = weights.rows, weights.axes
    if isinstance(core, AttentionCore):
        return (frozenset(weights.ranges), frozenset(rows))
    of_bias = (frozenset((*rows, keys)),) if core.bias is not None else ()
    return (
        frozenset((*rows, keys, length)),
        frozenset((*rows, keys, length)),
        frozenset((*weights.ranges, keys)),
        *of_bias,
    )


def factors_of(core: Core) -> tuple[Scalar, ...]:
    """The bodies of `core` that are multiplied."""
    if isinstance(core, ConvolutionCore):
        return core.bodies
    weights = core.weights
    gradient = (core.gradient,) if isinstance(core, AttentionGradientCore) else ()
    return (weights.query, weights.key, weights.value, *gradient)


def accumulate_of(core: Core) -> DType:
    """The type of the results of `core`."""
    return core.accumulate if isinstance(core, ConvolutionCore) else core.weights.accumulate
