"""Kinds of bad calls that no change of one argument makes: each a function, what it is called with, and a
good call of the same function if there is one.

`mutations.py` changes arguments, `bad_values.py` computes them. Here stand what a graph computes sizes and
dimensions of, types that operations in place cannot hold, memory that views do not have, what autograd
refuses, and options that contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BadCall:
    """`function` refuses `given`, and takes `good` if there is such; `training` asks for gradients of floats."""

    function: Callable[..., Any]
    given: tuple[Any, ...]
    good: tuple[Any, ...] | None = None
    training: bool = False


def _grid(*shape: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def _ints(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


_X: Final = _grid(4, 6)
_Y: Final = _grid(5, 6)
_SQUARE: Final = _grid(4, 4)
_ROW: Final = _grid(6)
_PLANE: Final = _grid(2, 3, 6, 6)
_INTS: Final = torch.arange(24).reshape(4, 6)
_BOOLS: Final = _X > 7
_MORE: Final = _grid(4, 7)

# Sizes, dimensions and numbers that come of sizes or of numbers that the function is given.
SIZES: Final[Mapping[str, BadCall]] = {
    "dim of a sum by a size": BadCall(lambda x: (x * 2).sum(x.shape[0]), (_X,), (_grid(1, 6),)),
    "dim of a softmax by a number": BadCall(lambda x, d: torch.softmax(x * 2, d), (_X, 5), (_X, 1)),
    "dim of a cat by a number": BadCall(lambda x, d: torch.cat([x, x + 1], d), (_X, 2), (_X, 1)),
    "dim of a transpose": BadCall(lambda x, d: (x * 2).transpose(0, d) + 1, (_X, -4), (_X, -1)),
    "dim of an unsqueeze": BadCall(lambda x, d: (x * 2).unsqueeze(d) + 1, (_X, 4), (_X, 2)),
    "dim of a squeeze": BadCall(lambda x, d: (x * 2).squeeze(d) + 1, (_X, 3), (_X, 1)),
    "dim of a cumsum": BadCall(lambda x, d: (x * 2).cumsum(d), (_X, 2), (_X, 1)),
    "dim of a flip": BadCall(lambda x, d: (x * 2).flip(d) + 1, (_X, 2), (_X, 1)),
    "dim of a select": BadCall(lambda x, d: (x * 2).select(d, 0) + 1, (_X, 2), (_X, 1)),
    "row of a select": BadCall(lambda x, k: (x * 2).select(0, k) + 1, (_X, 4), (_X, 3)),
    "row of a select from below": BadCall(lambda x, k: (x * 2).select(0, k) + 1, (_X, -5), (_X, -4)),
    "row by a subscript": BadCall(lambda x, k: (x * 2)[k] + 1, (_X, 4), (_X, 3)),
    "row by a size": BadCall(lambda x: (x * 2)[x.shape[0] + 2] + 1, (_X,), None),
    "row by another's size": BadCall(lambda x, y: x[y.shape[0] - 1] + 1, (_X, _Y), (_X, _X)),
    "column by another's size": BadCall(lambda x, y: x[:, y.shape[0]] + 1, (_X, _grid(7)), (_X, _grid(5))),
    "narrow beyond the end": BadCall(lambda x, k: x.narrow(0, k, 2) + 1, (_X, 3), (_X, 2)),
    "narrow by a negative length": BadCall(lambda x, k: x.narrow(0, 0, k) + 1, (_X, -1), (_X, 2)),
    "narrow by another's size": BadCall(lambda x, y: x.narrow(0, 0, y.shape[0]) + 1, (_X, _Y), (_X, _X)),
    "a negative size of zeros": BadCall(lambda x, n: x.new_zeros(n, 2) + 1, (_X, -1), (_X, 3)),
    "a negative size of zeros by sizes": BadCall(
        lambda x: x.new_zeros(x.shape[0] - 5, 2) + 1, (_X,), (_grid(6, 2),)
    ),
    "a negative size of full": BadCall(lambda x, n: torch.full((n,), 1.0) + x[0, 0], (_X, -3), (_X, 3)),
    "a negative size of ones": BadCall(lambda x, n: torch.ones(n) + x[0, 0], (_X, -3), (_X, 3)),
    "a negative size of empty": BadCall(lambda x, n: torch.empty(n).sum() + x[0, 0], (_X, -3), (_X, 3)),
    "a negative size of rand": BadCall(lambda x, n: torch.rand(n).sum() + x[0, 0], (_X, -3), (_X, 3)),
    "a negative size of an eye": BadCall(lambda x, n: torch.eye(n).sum() + x[0, 0], (_X, -3), (_X, 3)),
    "arange that goes down": BadCall(lambda x, n: torch.arange(0, n) + x[0, 0], (_X, -3), (_X, 3)),
    "arange in no steps": BadCall(lambda x, n: torch.arange(0, 5, n) + x[0, 0], (_X, 0), (_X, 2)),
    "linspace in negative steps": BadCall(lambda x, n: torch.linspace(0, 1, n) + x[0, 0], (_X, -1), (_X, 2)),
    "a random permutation of negatives": BadCall(lambda x, n: torch.randperm(n) + 1, (_X, -1), (_X, 3)),
    "randint without a range": BadCall(lambda x, n: torch.randint(n, (3,)) + 1, (_X, 0), (_X, 3)),
    "randint by a negative range": BadCall(lambda x, n: torch.randint(5, n, (3,)) + 1, (_X, 3), (_X, 9)),
    "view of another size": BadCall(lambda x, n: (x * 2).view(n, -1) + 1, (_X, 5), (_X, 3)),
    "view with two unknown sizes": BadCall(lambda x: (x * 2).view(-1, -1) + 1, (_X,), None),
    "view by another's size": BadCall(lambda x, y: (x * 2).view(y.shape) + 1, (_X, _Y), (_X, _grid(6, 4))),
    "reshape by a number": BadCall(lambda x, n: (x * 2).reshape(n) + 1, (_X, 23), (_X, 24)),
    "reshape to a negative size": BadCall(lambda x, n: (x * 2).reshape(n, 6) + 1, (_X, -2), (_X, 4)),
    "expand of rows": BadCall(lambda x, n: (x * 2).expand(n, 6) + 1, (_X, 5), (_X, 4)),
    "expand to less": BadCall(lambda x, n: (x * 2).expand(n) + 1, (_ROW, 5), (_ROW, 6)),
    "expand to a negative size": BadCall(lambda x, n: (x * 2).expand(n, 6) + 1, (_ROW, -2), (_ROW, 3)),
    "expand as another": BadCall(lambda x, y: x.expand_as(y) + 1, (_X, _Y), (_X, _X)),
    "repeat by a negative": BadCall(lambda x, n: (x * 2).repeat(n, 1) + 1, (_X, -1), (_X, 2)),
    "tile by a negative": BadCall(lambda x, n: (x * 2).tile((n, 1)) + 1, (_X, -1), (_X, 2)),
    "repeat_interleave by a negative": BadCall(
        lambda x, n: (x * 2).repeat_interleave(n, 0), (_X, -1), (_X, 2)
    ),
    "split by a negative": BadCall(lambda x, n: (x * 2).split(n)[0] + 1, (_X, -1), (_X, 2)),
    "split by nothing": BadCall(lambda x, n: (x * 2).split(n)[0] + 1, (_X, 0), (_X, 2)),
    "split with another sum": BadCall(lambda x, n: (x * 2).split([n, 2])[0] + 1, (_X, 3), (_X, 2)),
    "split with a negative": BadCall(lambda x, n: (x * 2).split([n, 5])[0] + 1, (_X, -1), None),
    "chunk by nothing": BadCall(lambda x, n: (x * 2).chunk(n)[0] + 1, (_X, 0), (_X, 2)),
    "tensor_split by nothing": BadCall(lambda x, n: (x * 2).tensor_split(n)[0] + 1, (_X, 0), (_X, 2)),
    "unflatten by a wrong factor": BadCall(
        lambda x, n: (x * 2).unflatten(1, (n, 2)) + 1, (_X, 4), (_X, 3)
    ),
    "unfold with a long window": BadCall(lambda x, n: (x * 2).unfold(0, n, 1) + 1, (_X, 5), (_X, 4)),
    "unfold in no steps": BadCall(lambda x, n: (x * 2).unfold(0, 2, n) + 1, (_X, 0), (_X, 1)),
    "unfold in negative steps": BadCall(lambda x, n: (x * 2).unfold(0, 2, n) + 1, (_X, -1), (_X, 1)),
    "slice in negative steps": BadCall(lambda x, n: x[::n] + 1, (_X, -1), (_X, 2)),
    "slice in no steps": BadCall(lambda x, n: x[::n] + 1, (_X, 0), (_X, 2)),
    "diagonal with one dimension twice": BadCall(
        lambda x, d: (x * 2).diagonal(0, 0, d) + 1, (_X, 0), (_X, 1)
    ),
    "topk of more": BadCall(lambda x, n: (x * 2).topk(n)[0] + 1, (_X, 7), (_X, 6)),
    "topk of a negative": BadCall(lambda x, n: (x * 2).topk(n)[0] + 1, (_X, -1), (_X, 6)),
    "kthvalue of more": BadCall(lambda x, n: (x * 2).kthvalue(n)[0] + 1, (_X, 7), (_X, 6)),
    "kthvalue of nothing": BadCall(lambda x, n: (x * 2).kthvalue(n)[0] + 1, (_X, 0), (_X, 6)),
    "one_hot of fewer classes": BadCall(lambda k, n: F.one_hot(k, n) * 2, (_ints(0, 3), 3), (_ints(0, 3), 4)),
    "one_hot of no classes": BadCall(lambda k, n: F.one_hot(k, n) * 2, (_ints(0, 3), 0), (_ints(0, 3), 4)),
    "as_strided beyond memory": BadCall(
        lambda x, n: x.as_strided((n, 6), (6, 1)) + 1, (_X, 5), (_X, 4)
    ),
    "as_strided by negative strides": BadCall(
        lambda x, n: x.as_strided((3, 2), (n, 1)) + 1, (_X, -2), (_X, 2)
    ),
    "as_strided at a negative offset": BadCall(
        lambda x, n: x.as_strided((3, 2), (2, 1), n) + 1, (_X, -2), (_X, 2)
    ),
    "as_strided beyond computed memory": BadCall(
        lambda x, n: (x * 2).as_strided((n, 6), (6, 1)) + 1, (_X, 5), (_X, 4)
    ),
    "pad by too much less": BadCall(lambda x, n: F.pad(x * 2, (n, 0)) + 1, (_X, -7), (_X, -5)),
    "reflection of more than the row": BadCall(
        lambda x, n: F.pad(x * 2, (n, 0), mode="reflect") + 1, (_X, 6), (_X, 5)
    ),
    "circular pad of more than the row": BadCall(
        lambda x, n: F.pad(x * 2, (n, 0), mode="circular") + 1, (_X, 7), (_X, 6)
    ),
    "pad of an odd count": BadCall(lambda x, n: F.pad(x * 2, (n, 0, 1)) + 1, (_X, 1), None),
    "window larger than the image": BadCall(
        lambda x, n: F.max_pool2d(x * 2, n) + 1, (_PLANE, 7), (_PLANE, 2)
    ),
    "average by no window": BadCall(lambda x, n: F.avg_pool2d(x * 2, n) + 1, (_PLANE, 0), (_PLANE, 2)),
    "padding of a pool beyond half": BadCall(
        lambda x, n: F.max_pool2d(x * 2, 2, 1, n) + 1, (_PLANE, 2), (_PLANE, 1)
    ),
    "pool with no dilation": BadCall(
        lambda x, n: F.max_pool2d(x * 2, 2, 1, 0, n) + 1, (_PLANE, 0), (_PLANE, 1)
    ),
    "pool with no stride": BadCall(lambda x, n: F.max_pool2d(x * 2, 2, n) + 1, (_PLANE, 0), (_PLANE, 1)),
    "adaptive pool to a negative": BadCall(
        lambda x, n: F.adaptive_avg_pool2d(x * 2, n) + 1, (_PLANE, -1), (_PLANE, 2)
    ),
    "interpolate to nothing": BadCall(
        lambda x, n: F.interpolate(x * 2, size=(n, 3)) + 1, (_PLANE, 0), (_PLANE, 2)
    ),
    "interpolate to a negative": BadCall(
        lambda x, n: F.interpolate(x * 2, size=(n, 3), mode="bilinear") + 1, (_PLANE, -2), (_PLANE, 2)
    ),
    "pixel_shuffle by another factor": BadCall(
        lambda x, n: F.pixel_shuffle(x * 2, n) + 1, (_grid(1, 8, 2, 2), 3), (_grid(1, 8, 2, 2), 2)
    ),
    "pixel_unshuffle by another factor": BadCall(
        lambda x, n: F.pixel_unshuffle(x * 2, n) + 1, (_PLANE, 4), (_PLANE, 3)
    ),
    "groups of a norm": BadCall(lambda x, n: F.group_norm(x * 2, n) + 1, (_PLANE, 2), (_PLANE, 3)),
    "no group of a norm": BadCall(lambda x, n: F.group_norm(x * 2, n) + 1, (_PLANE, 0), (_PLANE, 3)),
    "groups of a shuffle": BadCall(lambda x, n: F.channel_shuffle(x * 2, n) + 1, (_PLANE, 2), (_PLANE, 3)),
    "groups of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, groups=n) + 1,
        (_PLANE, _grid(3, 1, 2, 2), 2),
        (_PLANE, _grid(3, 1, 2, 2), 3),
    ),
    "stride of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, stride=n) + 1,
        (_PLANE, _grid(3, 3, 2, 2), 0),
        (_PLANE, _grid(3, 3, 2, 2), 1),
    ),
    "padding of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, padding=n) + 1,
        (_PLANE, _grid(3, 3, 2, 2), -1),
        (_PLANE, _grid(3, 3, 2, 2), 1),
    ),
    "dilation of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, dilation=n) + 1,
        (_PLANE, _grid(3, 3, 2, 2), 0),
        (_PLANE, _grid(3, 3, 2, 2), 1),
    ),
    "output padding of a convolution": BadCall(
        lambda x, w, n: F.conv_transpose2d(x * 2, w, stride=2, output_padding=n) + 1,
        (_PLANE, _grid(3, 3, 2, 2), 2),
        (_PLANE, _grid(3, 3, 2, 2), 1),
    ),
    "kernel larger than the image": BadCall(
        lambda x, w: F.conv2d(x * 2, w) + 1, (_PLANE, _grid(3, 3, 7, 7)), (_PLANE, _grid(3, 3, 2, 2))
    ),
    "windows of an unfold larger than the image": BadCall(
        lambda x, n: F.unfold(x * 2, n) + 1, (_PLANE, 7), (_PLANE, 2)
    ),
    "a matrix power below 0 of a singular": BadCall(
        lambda x, n: torch.linalg.matrix_power(x * 2, n), (torch.zeros(3, 3), -1), (torch.eye(3), -1)
    ),
    "bincount to a negative": BadCall(lambda k, n: torch.bincount(k, minlength=n), (_ints(1, 2), -1), None),
    "histogram of no bins": BadCall(lambda x, n: torch.histc(x * 2, n), (_X, 0), (_X, 4)),
    "samples of nothing": BadCall(lambda x, n: torch.multinomial(x * 2, n), (_X, 0), (_X, 2)),
    "more samples than categories": BadCall(lambda x, n: torch.multinomial(x * 2, n), (_X, 7), (_X, 2)),
    "a glu of an odd size": BadCall(lambda x: F.glu(x * 2) + 1, (_MORE,), (_X,)),
    "rows of a matrix product": BadCall(lambda x, y: (x * 2) @ y + 1, (_X, _X), (_X, _grid(6, 5))),
    "rows of a batched product": BadCall(
        lambda x, y: torch.bmm(x * 2, y), (_grid(2, 3, 4), _grid(3, 4, 5)), (_grid(2, 3, 4), _grid(2, 4, 5))
    ),
    "bias of a linear layer": BadCall(
        lambda x, w, b: F.linear(x * 2, w, b), (_X, _grid(5, 6), _grid(4)), (_X, _grid(5, 6), _grid(5))
    ),
    "shapes that do not broadcast": BadCall(lambda x, y: x * 2 + y, (_X, _Y), (_X, _X)),
    "rows that do not broadcast": BadCall(lambda x, y: x * 2 + y, (_X, _grid(5)), (_X, _ROW)),
    "shapes in place": BadCall(lambda x, y: (x * 2).add_(y), (_ROW, _X), (_X, _ROW)),
    "rows that are copied": BadCall(lambda x, y: (x * 2).copy_(y), (_X, _Y), (_X, _X)),
    "rows that are assigned": BadCall(_assign := lambda x, y: (x * 2).slice_scatter(y, 0, 0, 3), (_X, _Y), (_X, _grid(3, 6))),
    "masks of another shape": BadCall(
        lambda x, m: x.masked_fill(m, 0.0) + 1, (_X, torch.ones(5, dtype=torch.bool)), (_X, _BOOLS)
    ),
    "mask as an index of another shape": BadCall(
        lambda x, m: x[m] + 1, (_X, torch.ones(5, dtype=torch.bool)), (_X, torch.ones(4, dtype=torch.bool))
    ),
    "fewer values than a mask has": BadCall(
        lambda x, m, v: (x * 2).masked_scatter(m, v) + 1, (_X, _BOOLS, _grid(3)), (_X, _BOOLS, _grid(24))
    ),
    "stack of unlike shapes": BadCall(lambda x, y: torch.stack([x * 2, y]) + 1, (_X, _Y), (_X, _X)),
    "cat of unlike rows": BadCall(lambda x, y: torch.cat([x * 2, y]) + 1, (_X, _MORE), (_X, _Y)),
    "a product of unlike vectors": BadCall(lambda x, y: torch.dot(x * 2, y), (_ROW, _grid(5)), (_ROW, _ROW)),
    "a cross product of four": BadCall(lambda x: torch.linalg.cross(x * 2, x), (_X,), (_grid(5, 3),)),
    "einsum of unlike sizes": BadCall(
        lambda x, y: torch.einsum("ij,jk->ik", x * 2, y), (_X, _X), (_X, _grid(6, 5))
    ),
    "trace of a cube": BadCall(lambda x: torch.trace(x * 2), (_grid(2, 2, 2),), None),
    "the largest of nothing": BadCall(lambda x: (x * 2).max(), (torch.empty(0),), (_ROW,)),
    "the largest along nothing": BadCall(lambda x: (x * 2).amax(0), (torch.empty(0, 3),), (_X,)),
    "the place of the largest of nothing": BadCall(lambda x: (x * 2).argmax(), (torch.empty(0),), (_ROW,)),
    "the place of the smallest along nothing": BadCall(
        lambda x: (x * 2).argmin(1), (torch.empty(3, 0),), (_X,)
    ),
    "the largest and smallest of nothing": BadCall(lambda x: (x * 2).aminmax(), (torch.empty(0),), (_ROW,)),
    "the middle of nothing along a dimension": BadCall(
        lambda x: (x * 2).median(1), (torch.empty(3, 0),), (_X,)
    ),
    "the mode of nothing": BadCall(lambda x: (x * 2).mode(1), (torch.empty(3, 0),), (_X,)),
    "a quantile of nothing": BadCall(lambda x: (x * 2).quantile(0.5), (torch.empty(0),), (_ROW,)),
    "the norm of nothing, infinite": BadCall(
        lambda x: torch.linalg.vector_norm(x * 2, float("inf")), (torch.empty(0),), (_ROW,)
    ),
    "a running maximum of no rows": BadCall(lambda x: (x * 2).cummax(3), (_X,), None),
    "an item of many": BadCall(lambda x: (x * 2).item(), (_X,), (_grid(1),)),
    "a number as a condition": BadCall(lambda x: x + 1 if x > 3 else x - 1, (_X,), (_grid(1),)),
    "a batch norm of one value": BadCall(
        lambda x: F.batch_norm(x * 2, None, None, training=True), (_grid(1, 6),), (_X,)
    ),
    "an instance norm of one value": BadCall(
        lambda x: F.instance_norm(x * 2), (_grid(1, 6, 1),), (_grid(1, 6, 2),)
    ),
    "a layer norm over other sizes": BadCall(
        lambda x, w: F.layer_norm(x * 2, w.shape, w), (_X, _grid(5)), (_X, _ROW)
    ),
    "weights of a prelu": BadCall(lambda x, w: F.prelu(x * 2, w), (_PLANE, _grid(2)), (_PLANE, _grid(3))),
    "labels of another batch": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t), (_X, _ints(0, 1, 2)), (_X, _ints(0, 1, 2, 3))
    ),
    "weights of classes": BadCall(
        lambda x, t, w: F.cross_entropy(x * 2, t, w),
        (_X, _ints(0, 1, 2, 3), _grid(5)),
        (_X, _ints(0, 1, 2, 3), _ROW),
    ),
    "probabilities of another shape": BadCall(
        lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y * 0), (_X, _Y), (_X, _X)
    ),
    "a loss between unlike shapes": BadCall(lambda x, y: F.mse_loss(x * 2, y), (_X, _Y), (_X, _X)),
    "heads of another width": BadCall(
        lambda q, k: F.scaled_dot_product_attention(q * 2, k, k),
        (_grid(1, 2, 4, 8), _grid(1, 2, 4, 6)),
        (_grid(1, 2, 4, 8), _grid(1, 2, 4, 8)),
    ),
    "a mask of attention of another length": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m),
        (_grid(1, 2, 4, 8), _grid(4, 5)),
        (_grid(1, 2, 4, 8), _grid(4, 4)),
    ),
    "a table of the wrong width": BadCall(
        lambda x, w: F.bilinear(x * 2, x, w), (_X, _grid(2, 6, 5)), (_X, _grid(2, 6, 6))
    ),
    "a grid of three": BadCall(
        lambda x, g: F.grid_sample(x * 2, g, align_corners=False),
        (_PLANE, _grid(2, 4, 4, 3)),
        (_PLANE, _grid(2, 4, 4, 2)),
    ),
}


def _type_calls() -> Iterator[tuple[str, BadCall]]:
    """Results that the type of what is overwritten cannot hold."""
    for name in ("add_", "sub_", "mul_", "pow_", "fmod_", "remainder_", "floor_divide_"):
        for held, other in (
            (torch.int32, 1.5),
            (torch.bool, 2),
            (torch.int64, torch.ones(4, 6)),
            (torch.uint8, torch.ones(4, 6, dtype=torch.complex64)),
            (torch.float32, torch.ones(4, 6, dtype=torch.complex64)),
            (torch.bool, torch.ones(4, 6, dtype=torch.bool)),
            (torch.bool, torch.ones(4, 6, dtype=torch.int32)),
            (torch.uint8, 300),
            (torch.uint8, -1),
            (torch.int8, 2**40),
            (torch.int64, 2**63),
            (torch.float32, 1j),
        ):
            x = _INTS.to(held)
            if isinstance(other, Tensor):
                yield (
                    f"{name} {held} by {other.dtype}",
                    BadCall(lambda x, y, name=name: getattr(x.clone(), name)(y) | 0 if False else getattr(x.clone(), name)(y), (x, other)),
                )
                yield (
                    f"{name} input {held} by {other.dtype}",
                    BadCall(lambda x, y, name=name: getattr(x, name)(y), (x, other)),
                )
            else:
                yield (
                    f"{name} {held} by {other}",
                    BadCall(lambda x, y=other, name=name: getattr(x.clone(), name)(y), (x,)),
                )
    for name in ("div_", "true_divide_", "exp_", "sqrt_", "sigmoid_", "sin_", "log_", "reciprocal_", "tanh_", "erf_", "rsqrt_", "floor_", "clamp_", "lerp_", "copysign_", "atan2_", "hypot_", "float_power_", "logit_", "nan_to_num_", "relu_", "sinc_", "i0_", "digamma_", "mvlgamma_", "xlogy_", "ldexp_", "neg_", "abs_", "sign_", "round_", "trunc_", "frac_", "gcd_", "bitwise_and_", "bitwise_left_shift_", "logical_not_", "cumsum_", "cumprod_", "addcmul_", "addcdiv_", "igamma_", "heaviside_", "nextafter_", "tril_", "square_", "random_", "uniform_", "normal_", "bernoulli_", "exponential_", "geometric_", "fill_diagonal_"):
        for held in (torch.int32, torch.bool, torch.uint8, torch.complex64, torch.float32):
            x = _INTS.to(held)
            more: dict[str, tuple[Any, ...]] = {
                "div_": (2,), "true_divide_": (2,), "clamp_": (0.5, 1.5), "lerp_": (x, 0.5),
                "copysign_": (x,), "atan2_": (x,), "hypot_": (x,), "float_power_": (2,), "mvlgamma_": (1,),
                "xlogy_": (x,), "ldexp_": (x,), "gcd_": (x,), "bitwise_and_": (x,),
                "bitwise_left_shift_": (x,), "cumsum_": (0,), "cumprod_": (0,), "addcmul_": (x, x),
                "addcdiv_": (x, x), "igamma_": (x,), "heaviside_": (x,), "nextafter_": (x,),
                "geometric_": (0.5,), "fill_diagonal_": (1.5,),
            }
            given = more.get(name, ())
            yield (
                f"{name} of {held}",
                BadCall(lambda x, *y, name=name: getattr(x.clone(), name)(*y), (x, *given)),
            )
            yield (
                f"{name.rstrip('_')} of {held}",
                BadCall(
                    lambda x, *y, name=name.rstrip("_"): getattr(x.clone(), name)(*y), (x, *given)
                ),
            )


def _index_calls() -> Iterator[tuple[str, BadCall]]:
    """Positions of types that eager does not take, and of other ranks."""
    for dtype in (torch.int8, torch.int16, torch.uint8, torch.uint16, torch.int32, torch.float32, torch.bool, torch.complex64):
        k = _ints(0, 1).to(dtype)
        calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
            "gather": (lambda x, k: (x * 2).gather(1, k[None]) + 1, (_X, k)),
            "scatter": (lambda x, k: (x * 2).scatter(1, k[None], 1.0) + 1, (_X, k)),
            "scatter of a source": (lambda x, k: (x * 2).scatter(1, k[None], x) + 1, (_X, k)),
            "scatter_add": (lambda x, k: (x * 2).scatter_add(1, k[None], x) + 1, (_X, k)),
            "scatter_reduce": (lambda x, k: (x * 2).scatter_reduce(1, k[None], x, "sum") + 1, (_X, k)),
            "index_select": (lambda x, k: (x * 2).index_select(1, k) + 1, (_X, k)),
            "index_add": (lambda x, k: (x * 2).index_add(0, k, x[:2]) + 1, (_X, k)),
            "index_copy": (lambda x, k: (x * 2).index_copy(0, k, x[:2]) + 1, (_X, k)),
            "index_fill": (lambda x, k: (x * 2).index_fill(0, k, 1.0) + 1, (_X, k)),
            "index_reduce": (lambda x, k: (x * 2).index_reduce(0, k, x[:2], "prod") + 1, (_X, k)),
            "take": (lambda x, k: (x * 2).take(k) + 1, (_X, k)),
            "put": (lambda x, k: (x * 2).put(k, x[0, :2]) + 1, (_X, k)),
            "take_along_dim": (lambda x, k: (x * 2).take_along_dim(k[None], 1) + 1, (_X, k)),
            "subscript": (lambda x, k: (x * 2)[k] + 1, (_X, k)),
            "assignment": (lambda x, k: _assigned(x * 2, k), (_X, k)),
            "index_put": (lambda x, k: (x * 2).index_put((k,), x[0, 0]) + 1, (_X, k)),
            "embedding": (lambda x, k: F.embedding(k, x * 2) + 1, (_X, k)),
            "embedding_bag": (lambda x, k: F.embedding_bag(k[None], x * 2) + 1, (_X, k)),
            "one_hot": (lambda x, k: F.one_hot(k, 4) + 1, (_X, k)),
            "cross_entropy": (lambda x, k: F.cross_entropy(x[:2] * 2, k), (_X, k)),
            "nll_loss": (lambda x, k: F.nll_loss(x[:2] * 2, k), (_X, k)),
            "multi_margin_loss": (lambda x, k: F.multi_margin_loss(x[:2] * 2, k), (_X, k)),
            "bincount": (lambda x, k: torch.bincount(k) + 1, (_X, k)),
            "searchsorted": (lambda x, k: torch.searchsorted(x[0] * 2, x[1], sorter=k), (_X, k)),
            "unravel_index": (lambda x, k: torch.unravel_index(k, (4, 6)), (_X, k)),
            "repeat_interleave": (lambda x, k: torch.repeat_interleave(x[:2] * 2, k, 0), (_X, k)),
            "tensor_split": (lambda x, k: torch.tensor_split(x * 2, k), (_X, k)),
            "bitwise shift": (lambda x, k: k << x.to(torch.int32)[0, 0], (_X, k)),
            "a slice by it": (lambda x, k: x[k[0] :] + 1, (_X, k)),
            "segment_reduce": (lambda x, k: torch.segment_reduce(x[:, 0] * 2, "sum", lengths=k), (_X, k)),
            "where": (lambda x, k: torch.where(k, x[0, :2], 0.0) + 1, (_X, k)),
            "masked_fill": (lambda x, k: x[:, :2].masked_fill(k, 0.0) + 1, (_X, k)),
            "masked_select": (lambda x, k: x[:, :2].masked_select(k) + 1, (_X, k)),
            "masked_scatter": (lambda x, k: x[:, :2].clone().masked_scatter(k, x) + 1, (_X, k)),
        }
        for name, (function, given) in calls.items():
            yield f"{name} by {dtype}", BadCall(function, given)


def _assigned(x: Tensor, k: Tensor) -> Tensor:
    x[k] = 3.0
    return x + 1


def _binary_calls() -> Iterator[tuple[str, BadCall]]:
    """Types that operators of two operands do not take."""
    operators: dict[str, Callable[..., Any]] = {
        "-": lambda a, b: a - b,
        "rsub": torch.rsub,
        "%": lambda a, b: a % b,
        "//": lambda a, b: a // b,
        "**": lambda a, b: a**b,
        "<": lambda a, b: a < b,
        "&": lambda a, b: a & b,
        "|": lambda a, b: a | b,
        "^": lambda a, b: a ^ b,
        "<<": lambda a, b: a << b,
        ">>": lambda a, b: a >> b,
        "@": lambda a, b: a @ b.t(),
        "maximum": torch.maximum,
        "fmin": torch.fmin,
        "clamp": lambda a, b: torch.clamp(a, b),
        "atan2": torch.atan2,
        "hypot": torch.hypot,
        "copysign": torch.copysign,
        "nextafter": torch.nextafter,
        "gcd": torch.gcd,
        "lcm": torch.lcm,
        "heaviside": torch.heaviside,
        "igamma": torch.igamma,
        "zeta": torch.special.zeta,
        "xlogy": torch.xlogy,
        "logaddexp": torch.logaddexp,
        "logaddexp2": torch.logaddexp2,
        "ldexp": torch.ldexp,
        "fmod": torch.fmod,
        "floor_divide": torch.floor_divide,
        "dist": torch.dist,
        "cdist": torch.cdist,
        "outer": lambda a, b: torch.outer(a[0], b[0]),
        "lerp": lambda a, b: torch.lerp(a, b, 0.5),
        "addcmul": lambda a, b: torch.addcmul(a, b, b, value=2),
        "addcdiv": lambda a, b: torch.addcdiv(a, b, b),
        "where": lambda a, b: torch.where(a, b, b),
        "mse_loss": F.mse_loss,
        "l1_loss": F.l1_loss,
        "smooth_l1_loss": F.smooth_l1_loss,
        "huber_loss": F.huber_loss,
        "kl_div": F.kl_div,
        "binary_cross_entropy": F.binary_cross_entropy,
        "bce with logits": F.binary_cross_entropy_with_logits,
        "cosine_similarity": F.cosine_similarity,
        "poisson_nll_loss": F.poisson_nll_loss,
        "soft_margin_loss": F.soft_margin_loss,
        "hinge_embedding_loss": F.hinge_embedding_loss,
        "linear": F.linear,
        "prelu": lambda a, b: F.prelu(a, b[0]),
        "isclose": torch.isclose,
        "allclose": torch.allclose,
        "equal": torch.equal,
        "complex": torch.complex,
        "polar": torch.polar,
        "cross": lambda a, b: torch.linalg.cross(a[:, :3], b[:, :3]),
        "kron": torch.kron,
        "tensordot": lambda a, b: torch.tensordot(a, b.t(), 1),
        "addmm": lambda a, b: torch.addmm(a[0, 0], a, b.t()),
        "baddbmm": lambda a, b: torch.baddbmm(a[0, 0], a[None], b.t()[None]),
        "layer_norm": lambda a, b: F.layer_norm(a, (6,), b[0]),
        "rms_norm": lambda a, b: F.rms_norm(a, (6,), b[0]),
        "batch_norm": lambda a, b: F.batch_norm(a, b[0], b[0]),
        "conv1d": lambda a, b: F.conv1d(a[None], b[None, :, :2]),
        "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
        "cat out": lambda a, b: torch.cat([a, b], out=b),
        "searchsorted": lambda a, b: torch.searchsorted(a[0], b[0]),
        "isin": torch.isin,
        "grid_sample": lambda a, b: F.grid_sample(a[None, None], b[None, :2, None, :2], align_corners=False),
        "vdot": lambda a, b: torch.vdot(a[0], b[0]),
        "index_add": lambda a, b: a.index_add(0, _ints(0, 1, 2, 3), b),
        "scatter": lambda a, b: a.scatter(0, torch.zeros(4, 6, dtype=torch.int64), b),
        "copysign in place": lambda a, b: a.clone().copysign_(b),
        "masked_scatter": lambda a, b: a.masked_scatter(a == a, b),
        "index_put": lambda a, b: a.index_put((_ints(0, 1, 2, 3),), b),
        "pow in place": lambda a, b: a.clone().pow_(b),
    }
    bools, ints, floats, complexes, halves, short = (
        _BOOLS,
        _INTS,
        _X,
        _X.to(torch.complex64),
        _X.half(),
        _INTS.to(torch.uint16),
    )
    pairs = {
        "bool, bool": (bools, bools),
        "int, int": (ints, ints),
        "complex, complex": (complexes, complexes),
        "float, complex": (floats, complexes),
        "float, int": (floats, ints),
        "int, float": (ints, floats),
        "float, half": (floats, halves),
        "float, double": (floats, floats.double()),
        "float, bool": (floats, bools),
        "uint16, uint16": (short, short),
        "int, uint16": (ints, short),
        "float, float8": (floats, floats.to(torch.float8_e5m2)),
        "float, meta": (floats, floats.to("meta")),
        "meta, float": (floats.to("meta"), floats),
        "uint32, int64": (ints.to(torch.uint32), ints),
        "uint64, int64": (ints.to(torch.uint64), ints),
    }
    for name, function in operators.items():
        for kinds, given in pairs.items():
            yield f"{name} of {kinds}", BadCall(function, given)


def _outputs() -> Iterator[tuple[str, BadCall]]:
    """Tensors to write to that are of other types, shapes, devices or memory."""
    calls: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "add": (torch.add, (_X, _X)),
        "mul": (torch.mul, (_X, 2)),
        "sin": (torch.sin, (_X,)),
        "mm": (torch.mm, (_SQUARE, _SQUARE)),
        "sum": (lambda x, out: torch.sum(x, (0,), out=out), (_X,)),
        "amax": (lambda x, out: torch.amax(x, 0, out=out), (_X,)),
        "argmax": (lambda x, out: torch.argmax(x, 0, out=out), (_X,)),
        "cat": (lambda x, y, out: torch.cat([x, y], out=out), (_X, _X)),
        "stack": (lambda x, y, out: torch.stack([x, y], out=out), (_X, _X)),
        "cumsum": (lambda x, out: torch.cumsum(x, 0, out=out), (_X,)),
        "gather": (lambda x, k, out: torch.gather(x, 0, k, out=out), (_X, _INTS % 4)),
        "index_select": (lambda x, k, out: torch.index_select(x, 0, k, out=out), (_X, _ints(0, 1))),
        "where": (lambda c, x, out: torch.where(c, x, x, out=out), (_BOOLS, _X)),
        "eq": (torch.eq, (_X, _X)),
        "div": (lambda x, out: torch.div(x, 2, rounding_mode="floor", out=out), (_X,)),
        "clamp": (lambda x, out: torch.clamp(x, 0, 1, out=out), (_X,)),
        "arange": (lambda x, out: torch.arange(x.shape[0], out=out), (_X,)),
        "softmax": (lambda x, out: torch._C._nn.softplus(x, out=out), (_X,)),
        "tril": (torch.tril, (_X,)),
        "norm": (lambda x, out: torch.linalg.vector_norm(x, out=out), (_X,)),
        "matmul": (torch.matmul, (_SQUARE, _SQUARE)),
        "addmm": (torch.addmm, (_SQUARE, _SQUARE, _SQUARE)),
        "real logical_not": (torch.logical_not, (_X,)),
        "prod": (lambda x, out: torch.prod(x, 0, out=out), (_X,)),
        "round": (torch.round, (_X,)),
        "pow": (lambda x, out: torch.pow(x, 2.0, out=out), (_INTS,)),
        "bitwise_and": (torch.bitwise_and, (_INTS, _INTS)),
        "remainder": (lambda x, out: torch.remainder(x, 2.0, out=out), (_X,)),
        "take": (lambda x, k, out: torch.take(x, k, out=out), (_X, _INTS)),
        "normal": (lambda x, out: torch.normal(x, 1.0, out=out), (_X,)),
        "randn": (lambda x, out: torch.randn(4, 6, out=out), (_X,)),
        "full": (lambda x, out: torch.full((4, 6), 1.5, out=out), (_X,)),
        "zeros": (lambda x, out: torch.zeros(4, 6, out=out), (_X,)),
        "avg_pool2d": (lambda x, out: torch._C._nn.avg_pool2d(x, 2, out=out), (_PLANE,)),
    }
    for name, (function, given) in calls.items():
        result = function(*given, out=None) if name != "softmax" else torch._C._nn.softplus(*given)
        outs = {
            "of integers": torch.empty(result.shape, dtype=torch.int32),
            "of truth values": torch.empty(result.shape, dtype=torch.bool),
            "of complex numbers": torch.empty(result.shape, dtype=torch.complex64),
            "of halves": torch.empty(result.shape, dtype=torch.float16),
            "of doubles": torch.empty(result.shape, dtype=torch.float64),
            "on no device": torch.empty(result.shape, dtype=result.dtype, device="meta"),
            "expanded": torch.empty((), dtype=result.dtype).expand(result.shape),
            "with gradients": torch.empty(result.shape).requires_grad_(),
            "none": 3,
        }
        for what, out in outs.items():
            yield (
                f"out of {name} {what}",
                BadCall(lambda *given, function=function: function(*given[:-1], out=given[-1]), (*given, out)),
            )


MEMORY: Final[Mapping[str, BadCall]] = {
    "view of a transposed": BadCall(lambda x: (x * 2).t().view(-1) + 1, (_X,)),
    "view of a transposed input": BadCall(lambda x: x.view(-1) + 1, (_X.t(),), (_X,)),
    "view of columns": BadCall(lambda x: x[:, 1:3].view(-1) + 1, (_X,)),
    "view as another width of type": BadCall(
        lambda x: x.view(torch.float64) + 1, (_grid(4, 5),), (_X,)
    ),
    "view as another width of a transposed": BadCall(lambda x: x.t().view(torch.float64) + 1, (_X,)),
    "view of real numbers as complex": BadCall(lambda x: torch.view_as_complex(x * 2), (_grid(4, 3),), (_grid(4, 2),)),
    "view of a complex number that is none": BadCall(lambda x: torch.view_as_real(x * 2), (_X,)),
    "write to an expanded": BadCall(lambda x: (x * 2).expand(4, 6).add_(1), (_ROW,)),
    "write to an expanded input": BadCall(lambda x: x.add_(1), (_ROW.expand(4, 6),), (_X,)),
    "fill of an expanded": BadCall(lambda x: x.expand(4, 6).mul_(2.0), (_ROW.clone(),)),
    "copy over itself": BadCall(lambda x: x[1:].copy_(x[:-1]), (_X.clone(),)),
    "add of itself moved": BadCall(lambda x: x[1:].add_(x[:-1]), (_X.clone(),)),
    "scatter into an expanded": BadCall(
        lambda x, k: x.expand(4, 6).scatter_(0, k, 1.0), (_ROW.clone(), torch.zeros(4, 6, dtype=torch.int64))
    ),
    "index_add into an expanded": BadCall(
        lambda x, y: x.expand(4, 6).index_add_(0, _ints(0), y[:1]), (_ROW.clone(), _X)
    ),
    "set of another type": BadCall(lambda x, y: x.set_(y), (_X.clone(), _INTS)),
    "resize of a computed": BadCall(lambda x: (x * 2).resize_(-1, 3), (_X,)),
    "t of a cube": BadCall(lambda x: (x * 2).t(), (_PLANE,), (_X,)),
    "mT of a row": BadCall(lambda x: (x * 2).mT, (_ROW,), (_X,)),
    "H of a cube": BadCall(lambda x: (x * 2).H, (_PLANE,), (_X,)),
    "imaginary part of reals": BadCall(lambda x: (x * 2).imag, (_X,), (_X.to(torch.complex64),)),
    "conjugate in place of a view as real": BadCall(lambda x: torch.view_as_real(x.conj()), (_X.to(torch.complex64),)),
    "an iteration over a number": BadCall(lambda x: [one + 1 for one in x], (torch.tensor(1.0),), (_X,)),
    "length of a number": BadCall(lambda x: len(x) + x, (torch.tensor(1.0),), (_X,)),
    "three of four rows": BadCall(lambda x: sum((lambda a, b, c: (a, b, c))(*x)), (_X,), (_grid(3, 6),)),
    "more subscripts than dimensions": BadCall(lambda x: x[0, 0, 0] + 1, (_X,), (_PLANE,)),
    "two ellipses": BadCall(lambda x: x[..., 0, ...] + 1, (_PLANE,)),
    "a word as a subscript": BadCall(lambda x: x["a"] + 1, (_X,)),
    "a float as a subscript": BadCall(lambda x: x[1.5] + 1, (_X,)),
    "a missing attribute": BadCall(lambda x: (x * 2).no_such_thing(), (_X,)),
    "a deleted dimension name": BadCall(lambda x: (x * 2).sum("rows"), (_X,)),
}


def _trained(function: Callable[..., Any], *given: Any, good: tuple[Any, ...] | None = None) -> BadCall:
    return BadCall(function, given, good, training=True)


def _leaf_written(x: Tensor) -> Tensor:
    x.add_(1)
    return x * 2


def _part_of_leaf_written(x: Tensor) -> Tensor:
    x[0].mul_(2)
    return x * 2


def _saved_overwritten(x: Tensor) -> Tensor:
    y = x.exp()
    z = y * y
    y.add_(1)
    return z


def _unbound_written(x: Tensor) -> Tensor:
    first, _ = (x * 2).unbind(1)[:2]
    first.add_(1)
    return first


def _split_written(x: Tensor) -> Tensor:
    first, _ = (x * 2).split(2)
    first.mul_(2)
    return first


def _twice(x: Tensor) -> Tensor:
    y = (x * x).sum()
    (g,) = torch.autograd.grad(y, x)
    (h,) = torch.autograd.grad(y, x)
    return g + h


def _no_grad_view_written(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        z = y[0]
    z.mul_(2)
    return z


AUTOGRAD: Final[Mapping[str, BadCall]] = {
    "a leaf that is written": _trained(_leaf_written, _X),
    "a part of a leaf that is written": _trained(_part_of_leaf_written, _X),
    "saved and overwritten": _trained(_saved_overwritten, _X),
    "a part of unbind that is written": _trained(_unbound_written, _X),
    "a part of split that is written": _trained(_split_written, _X),
    "a view without gradients that is written": _trained(_no_grad_view_written, _X),
    "gradients twice": _trained(_twice, _X),
    "integers that ask for gradients": BadCall(lambda x: x.clone().requires_grad_() * 2, (_INTS,)),
    "integers made to ask for gradients": BadCall(
        lambda x: torch.zeros(3, dtype=torch.int64, requires_grad=True) + x[0, 0], (_INTS,)
    ),
    "gradient of what asks for none": BadCall(lambda x: torch.autograd.grad((x * 2).sum(), x), (_X,)),
    "backward of what asks for none": BadCall(lambda x: (x * 2).sum().backward(), (_X,)),
    "backward of many": _trained(lambda x: (x * 2).backward(), _X),
    "numpy of what asks for gradients": _trained(lambda x: (x * 2).numpy(), _X),
    "deepcopy of a result": _trained(lambda x: __import__("copy").deepcopy(x * 2), _X),
    "gradient of an unused input": _trained(
        lambda x, y: torch.autograd.grad((x * 2).sum(), y), _X, _Y
    ),
    "gradient of a rounded median of nothing": _trained(lambda x: (x * 2).max(), torch.empty(0)),
    "detached and taken": _trained(lambda x: torch.autograd.grad((x.detach() * 2).sum(), x), _X),
    "into an out that asks": _trained(lambda x, y: torch.mul(x, 2, out=y), _X, _X),
    "a seed of another shape": _trained(
        lambda x: torch.autograd.grad(x * 2, x, torch.ones(3)), _X
    ),
    "a copy from what asks into integers": _trained(lambda x, k: k.copy_(x).cumsum_(0).sqrt_(), _X, _INTS),
}

OPTIONS: Final[Mapping[str, BadCall]] = {
    "interpolate by a size and a factor": BadCall(
        lambda x: F.interpolate(x * 2, size=3, scale_factor=2.0), (_PLANE,)
    ),
    "interpolate by neither": BadCall(lambda x: F.interpolate(x * 2), (_PLANE,)),
    "interpolate with corners by nearest": BadCall(
        lambda x: F.interpolate(x * 2, 3, mode="nearest", align_corners=True), (_PLANE,)
    ),
    "interpolate of a row bilinearly": BadCall(lambda x: F.interpolate(x, 3, mode="bilinear"), (_X,)),
    "interpolate with three sizes": BadCall(lambda x: F.interpolate(x * 2, size=(3, 3, 3)), (_PLANE,)),
    "interpolate by an unknown mode": BadCall(lambda x: F.interpolate(x * 2, 3, mode="cubic"), (_PLANE,)),
    "interpolate antialiased by nearest": BadCall(
        lambda x: F.interpolate(x * 2, 3, mode="nearest", antialias=True), (_PLANE,)
    ),
    "padding by a word with strides": BadCall(
        lambda x, w: F.conv2d(x * 2, w, stride=2, padding="same"), (_PLANE, _grid(3, 3, 2, 2))
    ),
    "padding by an unknown word": BadCall(
        lambda x, w: F.conv2d(x * 2, w, padding="full"), (_PLANE, _grid(3, 3, 2, 2))
    ),
    "channels of a convolution": BadCall(
        lambda x, w: F.conv2d(x * 2, w), (_PLANE, _grid(3, 2, 2, 2)), (_PLANE, _grid(3, 3, 2, 2))
    ),
    "a bias of a convolution": BadCall(
        lambda x, w, b: F.conv2d(x * 2, w, b),
        (_PLANE, _grid(5, 3, 2, 2), _grid(4)),
        (_PLANE, _grid(5, 3, 2, 2), _grid(5)),
    ),
    "a convolution between types": BadCall(
        lambda x, w: F.conv2d(x * 2, w), (_PLANE, _grid(3, 3, 2, 2).double())
    ),
    "a linear layer between types": BadCall(lambda x, w: F.linear(x * 2, w), (_X, _grid(5, 6).half())),
    "pad by an unknown mode": BadCall(lambda x: F.pad(x * 2, (1, 1), mode="mirror"), (_PLANE,)),
    "a reduction that is none": BadCall(lambda x: F.mse_loss(x * 2, x, reduction="median"), (_X,)),
    "smoothing beyond 1": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t, label_smoothing=1.5), (_X, _ints(0, 1, 2, 3))
    ),
    "dropout beyond 1": BadCall(lambda x, p: F.dropout(x * 2, p), (_X, 1.5), (_X, 0.5)),
    "alpha dropout below 0": BadCall(lambda x, p: F.alpha_dropout(x * 2, p, True), (_X, -0.5), (_X, 0.5)),
    "bernoulli beyond 1": BadCall(lambda x, p: torch.bernoulli(x * 2, p), (_X, 1.5), (_X, 0.5)),
    "normal with a negative deviation": BadCall(
        lambda x, s: torch.normal(0.0, s, (3,)) + x[0, 0], (_X, -1.0), (_X, 1.0)
    ),
    "uniform between turned ends": BadCall(
        lambda x, s: torch.empty(3).uniform_(s, 0.0) + x[0, 0], (_X, 1.0), (_X, -1.0)
    ),
    "exponential of a negative": BadCall(lambda x, s: x.clone().exponential_(s), (_X, -1.0), (_X, 1.0)),
    "gelu by an unknown word": BadCall(lambda x: F.gelu(x * 2, approximate="sigmoid"), (_X,)),
    "div by an unknown word": BadCall(lambda x: torch.div(x * 2, 2, rounding_mode="ceil"), (_X,)),
    "sum into truth values of a word": BadCall(lambda x: torch.sum(x * 2, dtype="float"), (_X,)),
    "mean of integers": BadCall(lambda x: (x * 2).mean(), (_INTS,)),
    "mean of truth values": BadCall(lambda x: x.mean(), (_BOOLS,)),
    "std of integers": BadCall(lambda x: (x * 2).std(), (_INTS,)),
    "softmax of integers": BadCall(lambda x: torch.softmax(x * 2, 1), (_INTS,)),
    "norm of integers": BadCall(lambda x: torch.linalg.vector_norm(x * 2), (_INTS,)),
    "median of complex": BadCall(lambda x: (x * 2).median(), (_X.to(torch.complex64),)),
    "sort of complex": BadCall(lambda x: (x * 2).sort(), (_X.to(torch.complex64),)),
    "amax of complex": BadCall(lambda x: (x * 2).amax(), (_X.to(torch.complex64),)),
    "argmin of complex": BadCall(lambda x: (x * 2).argmin(), (_X.to(torch.complex64),)),
    "floor of complex": BadCall(lambda x: (x * 2).floor(), (_X.to(torch.complex64),)),
    "relu of complex": BadCall(lambda x: (x * 2).relu(), (_X.to(torch.complex64),)),
    "relu of truth values": BadCall(lambda x: x.relu(), (_BOOLS,)),
    "clamp of complex": BadCall(lambda x: (x * 2).clamp(0), (_X.to(torch.complex64),)),
    "clamp by nothing": BadCall(lambda x: (x * 2).clamp(), (_X,)),
    "a negative truth value": BadCall(lambda x: -x, (_BOOLS,)),
    "a difference of truth values": BadCall(lambda x: x - x, (_BOOLS,)),
    "a difference of a number and truth values": BadCall(lambda x: torch.rsub(x, True), (_BOOLS,)),
    "diff of truth values": BadCall(lambda x: x.diff(), (_BOOLS,)),
    "a shift of floats": BadCall(lambda x: x << 1, (_X,)),
    "not of floats": BadCall(lambda x: ~x, (_X,)),
    "and of floats": BadCall(lambda x: x & 1, (_X,)),
    "an integer to a negative power": BadCall(lambda k: (k + 1) ** -1, (_INTS,)),
    "an integer to a negative power given": BadCall(lambda k, n: (k + 1) ** n, (_INTS, -1), (_INTS, 2)),
    "a fill of 8 bits by more": BadCall(lambda k: torch.full_like(k, 300) + k, (_INTS.to(torch.uint8),)),
    "a fill of 8 bits by less": BadCall(lambda k: k.clone().fill_(-1000), (_INTS.to(torch.int8),)),
    "a fill of integers by infinity": BadCall(lambda k: k.clone().fill_(float("inf")), (_INTS,)),
    "a fill of integers by NaN": BadCall(lambda k: torch.full_like(k, float("nan")), (_INTS,)),
    "a fill of floats by complex": BadCall(lambda x: x.clone().fill_(1j), (_X,)),
    "a masked fill of integers by floats": BadCall(
        lambda k, m: k.clone().masked_fill_(m, 1e30), (_INTS, _BOOLS)
    ),
    "a masked fill of truth values by many": BadCall(
        lambda x, m: x.masked_fill(m, _X[0]), (_X, _BOOLS)
    ),
    "where between complex and 8 bits": BadCall(
        lambda m, x: torch.where(m, x, x.to(torch.float8_e5m2)), (_BOOLS, _X)
    ),
    "8 bits added to more": BadCall(lambda k: k + 300, (_INTS.to(torch.uint8),)),
    "8 bits compared to more": BadCall(lambda k: k < 2**70, (_INTS.to(torch.uint8),)),
    "an integer beyond 64 bits": BadCall(lambda k: k + 2**64, (_INTS,)),
    "a full of an integer beyond 64 bits": BadCall(lambda x: torch.full((3,), 2**64) + x[0, 0], (_X,)),
    "einsum with an unknown arrow": BadCall(lambda x: torch.einsum("ij>ji", x * 2), (_X,)),
    "einsum with a letter from nowhere": BadCall(lambda x: torch.einsum("ij->ik", x * 2), (_X,)),
    "einsum with too many letters": BadCall(lambda x: torch.einsum("ijk->i", x * 2), (_X,)),
    "einsum of too few operands": BadCall(lambda x: torch.einsum("ij,jk->ik", x * 2), (_X,)),
    "einsum with a letter twice in the result": BadCall(lambda x: torch.einsum("ij->ii", x * 2), (_X,)),
    "einsum with a figure": BadCall(lambda x: torch.einsum("i1->i", x * 2), (_X,)),
    "einsum of a diagonal of unlike sizes": BadCall(lambda x: torch.einsum("ii->i", x * 2), (_X,), (_SQUARE,)),
    "permute with a dimension twice": BadCall(lambda x: (x * 2).permute(0, 0), (_X,)),
    "permute with too few": BadCall(lambda x: (x * 2).permute(0), (_X,)),
    "sum over a dimension twice": BadCall(lambda x: (x * 2).sum((0, -2)), (_X,)),
    "flip of a dimension twice": BadCall(lambda x: (x * 2).flip(0, 0), (_X,)),
    "roll by unlike counts": BadCall(lambda x: (x * 2).roll((1, 2), (0,)), (_X,)),
    "rot90 in one dimension": BadCall(lambda x: (x * 2).rot90(1, (0, 0)), (_X,)),
    "movedim of unlike counts": BadCall(lambda x: (x * 2).movedim((0, 1), (0,)), (_X,)),
    "tensordot of unlike counts": BadCall(lambda x: torch.tensordot(x * 2, x, ([0], [0, 1])), (_X,)),
    "broadcast to less": BadCall(lambda x: torch.broadcast_to(x * 2, (6,)), (_X,)),
    "meshgrid by an unknown word": BadCall(lambda x: torch.meshgrid(x * 2, x, indexing="yx"), (_ROW,)),
    "meshgrid of matrices": BadCall(lambda x: torch.meshgrid(x * 2, x, indexing="ij"), (_X,)),
    "cat of nothing": BadCall(lambda x: torch.cat([]) + x, (_X,)),
    "stack of nothing": BadCall(lambda x: torch.stack([]) + x, (_X,)),
    "cat of a number": BadCall(lambda x: torch.cat([x, x[0, 0]]), (_X,)),
    "no tensor in a sum": BadCall(lambda x: torch.add(x, None), (_X,)),
    "no weight": BadCall(lambda x: F.linear(x, None), (_X,)),
    "a list as a tensor": BadCall(lambda x: torch.sin([1.0, 2.0]) + x, (_X,)),
    "an unknown keyword": BadCall(lambda x: torch.sum(x * 2, axes=0), (_X,)),
    "too many arguments": BadCall(lambda x: torch.sin(x, x, x), (_X,)),
    "too few arguments": BadCall(lambda x: torch.gather(x, 0), (_X,)),
    "a method with too many arguments": BadCall(lambda x: (x * 2).relu(1, 2), (_X,)),
    "a word as a number": BadCall(lambda x: x + "a", (_X,)),
    "a word as a dimension": BadCall(lambda x: torch.softmax(x, "a"), (_X,)),
    "a float as a dimension": BadCall(lambda x: torch.softmax(x, 1.0), (_X,)),
    "a float as a size": BadCall(lambda x: x.view(2.0, 12), (_X,)),
    "a tensor as a size of floats": BadCall(lambda x: x.view(x[0, 0], -1), (_X,)),
    "an unknown device": BadCall(lambda x: torch.zeros(3, device="nowhere") + x[0, 0], (_X,)),
    "an unknown type": BadCall(lambda x: x.to("float99"), (_X,)),
    "channels last of a matrix": BadCall(
        lambda x: (x * 2).contiguous(memory_format=torch.channels_last), (_X,), (_PLANE,)
    ),
    "quantised added": BadCall(
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.quint8) + x, (_X,)
    ),
    "a cholesky of what is not positive": BadCall(
        lambda x: torch.linalg.cholesky(x - 100), (_SQUARE,), (torch.eye(4) * 200 + 100,)
    ),
    "an inverse of a rectangle": BadCall(lambda x: torch.linalg.inv(x * 2), (_X,), (torch.eye(4),)),
    "an inverse of nothing": BadCall(lambda x: torch.linalg.inv(x * 2), (torch.zeros(3, 3),), (torch.eye(3),)),
    "a solution of a singular": BadCall(
        lambda a, b: torch.linalg.solve(a * 2, b), (torch.zeros(3, 3), _grid(3)), (torch.eye(3), _grid(3))
    ),
    "eigenvalues of NaN": BadCall(
        lambda a: torch.linalg.eigh(a * 2), (torch.full((3, 3), float("nan")),), (torch.eye(3),)
    ),
    "a division by 0 of integers": BadCall(lambda k, n: k // n, (_INTS, 0), (_INTS, 2)),
    "a remainder by 0 of integers": BadCall(lambda k, n: k % n, (_INTS, 0), (_INTS, 2)),
    "a division by zeros of integers": BadCall(lambda k, n: k // n, (_INTS, _INTS * 0), (_INTS, _INTS + 1)),
    "a remainder by zeros of integers": BadCall(lambda k, n: (k + 1) % n, (_INTS, _INTS * 0), (_INTS, _INTS + 1)),
    "fmod by zeros of integers": BadCall(
        lambda k, n: torch.fmod(k + 1, n), (_INTS, _INTS * 0), (_INTS, _INTS + 1)
    ),
    "trunc by zeros of integers": BadCall(
        lambda k, n: torch.div(k + 1, n, rounding_mode="trunc"), (_INTS, _INTS * 0), (_INTS, _INTS + 1)
    ),
    "fmod by 0": BadCall(lambda k: torch.fmod(k, 0), (_INTS,)),
    "an assertion": BadCall(
        lambda x: torch._assert(bool((x > 5).all()), "small") or x * 2, (_X,), (_X + 5,)
    ),
    "an asynchronous assertion": BadCall(
        lambda x: torch._assert_async((x > 5).all()) or x * 2, (_X,), (_X + 5,)
    ),
    "a check of a size": BadCall(
        lambda x: torch._check(x.shape[0] == 5) or x * 2, (_X,), (_Y,)
    ),
    "a python error": BadCall(lambda x: x * 2 if x.shape[0] == 5 else 1 // 0, (_X,), (_Y,)),
    "ctc with long targets": BadCall(
        lambda x, t, n: F.ctc_loss(x.log_softmax(2), t, n, _ints(9)), (_grid(5, 1, 4), _ints(1, 2)[None], _ints(5)),
    ),
    "bags without offsets": BadCall(lambda k, w: F.embedding_bag(k, w), (_ints(0, 1), _X)),
    "bags of rows with offsets": BadCall(
        lambda k, w: F.embedding_bag(k, w, _ints(0)), (_ints(0, 1)[None], _X)
    ),
    "weights of bags by a mean": BadCall(
        lambda k, w: F.embedding_bag(k, w, mode="mean", per_sample_weights=torch.ones(1, 2)),
        (_ints(0, 1)[None], _X),
    ),
    "a padding row that is not there": BadCall(lambda k, w: F.embedding(k, w, padding_idx=9), (_ints(0, 1), _X)),
    "causal attention with a mask": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m, is_causal=True),
        (_grid(1, 2, 4, 8), _grid(4, 4)),
    ),
    "attention dropped out beyond 1": BadCall(
        lambda q: F.scaled_dot_product_attention(q * 2, q, q, dropout_p=1.5), (_grid(1, 2, 4, 8),)
    ),
    "attention of unlike types": BadCall(
        lambda q: F.scaled_dot_product_attention(q * 2, q.half(), q), (_grid(1, 2, 4, 8),)
    ),
    "attention with a mask of integers": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m), (_grid(1, 2, 4, 8), torch.ones(4, 4).long())
    ),
    "a norm without its shape": BadCall(lambda x: F.layer_norm(x * 2, (4,)), (_X,)),
    "a norm of nothing": BadCall(lambda x: F.layer_norm(x * 2, ()), (_X,)),
    "a running mean of another size": BadCall(
        lambda x, m: F.batch_norm(x * 2, m, m), (_X, _grid(5)), (_X, _ROW)
    ),
    "a running mean that is missing": BadCall(lambda x: F.batch_norm(x * 2, None, None), (_X,)),
    "a cosine of unlike widths": BadCall(lambda x, y: F.cosine_similarity(x * 2, y), (_X, _MORE), (_X, _X)),
    "a triplet of unlike shapes": BadCall(
        lambda x, y: F.triplet_margin_loss(x * 2, x, y), (_X, _grid(3, 5)), (_X, _X)
    ),
    "a p of 3 in a margin": BadCall(
        lambda x, t: F.multi_margin_loss(x * 2, t, p=3), (_X, _ints(0, 1, 2, 3))
    ),
    "huber by a negative": BadCall(lambda x, d: F.huber_loss(x * 2, x, delta=d), (_X, -1.0), (_X, 1.0)),
    "smooth l1 by a negative": BadCall(lambda x, b: F.smooth_l1_loss(x * 2, x, beta=b), (_X, -1.0), (_X, 1.0)),
    "a celu by 0": BadCall(lambda x, a: F.celu(x * 2, a), (_X, 0.0), (_X, 1.0)),
    "a softplus of integers": BadCall(lambda x: F.softplus(x * 2), (_INTS,)),
    "a hardtanh with turned ends": BadCall(lambda x: F.hardtanh(x * 2, 1.0, -1.0), (_X,)),
    "a threshold of truth values": BadCall(lambda x: F.threshold(x, 1.0, 2.0), (_BOOLS,)),
    "a softshrink by a negative": BadCall(lambda x, n: F.softshrink(x * 2, n), (_X, -1.0), (_X, 1.0)),
    "a log_softmax of truth values": BadCall(lambda x: F.log_softmax(x, 1), (_BOOLS,)),
    "a gumbel softmax of integers": BadCall(lambda x: F.gumbel_softmax(x * 2), (_INTS,)),
    "lp pool by 0": BadCall(lambda x, n: F.lp_pool2d(x * 2, 2, n), (_PLANE, 0), (_PLANE, 2)),
    "unpool of unlike shapes": BadCall(
        lambda x, k: F.max_unpool2d(x * 2, k, 2), (_PLANE, torch.zeros(2, 3, 5, 6, dtype=torch.int64))
    ),
    "fold of another count": BadCall(
        lambda x: F.fold(x * 2, (4, 5), (2, 2)), (_grid(1, 12, 11),), (_grid(1, 12, 12),)
    ),
    "a grid by an unknown mode": BadCall(
        lambda x, g: F.grid_sample(x * 2, g, mode="cubic"), (_PLANE, _grid(2, 4, 4, 2))
    ),
    "a window with a negative length": BadCall(lambda x, n: torch.hann_window(n) + x[0, 0], (_X, -1), (_X, 3)),
    "a transform of no points": BadCall(lambda x, n: torch.fft.fft(x * 2, n), (_X, 0), (_X, 4)),
    "a transform of complex as real": BadCall(lambda x: torch.fft.rfft(x * 2), (_X.to(torch.complex64),)),
    "a transform by an unknown norm": BadCall(lambda x: torch.fft.fft(x * 2, norm="half"), (_X,)),
    "a gradient by unlike spacing": BadCall(lambda x: torch.gradient(x * 2, spacing=(1.0, 2.0, 3.0)), (_X,)),
    "a trapezoid of unlike": BadCall(lambda x, y: torch.trapezoid(x * 2, y), (_X, _MORE), (_X, _X)),
    "bucketize of a matrix of borders": BadCall(lambda x: torch.bucketize(x * 2, x), (_X,)),
    "searchsorted of other rows": BadCall(
        lambda x, y: torch.searchsorted(x * 2, y), (_X, _Y), (_X, _X)
    ),
    "histc of complex": BadCall(lambda x: torch.histc(x * 2), (_X.to(torch.complex64),)),
    "histc between turned ends": BadCall(lambda x: torch.histc(x * 2, 4, 5.0, 1.0), (_X,)),
    "bincount of negatives": BadCall(lambda k: torch.bincount(k), (_ints(-1, 2),), (_ints(1, 2),)),
    "bincount of floats": BadCall(lambda x: torch.bincount(x), (_ROW,)),
    "bincount of a matrix": BadCall(lambda x: torch.bincount(x), (_INTS,)),
    "combinations of a matrix": BadCall(lambda x: torch.combinations(x * 2), (_X,)),
    "vander of a number": BadCall(lambda x: torch.vander(x[0, 0] * 2), (_X,)),
    "tril of a row": BadCall(lambda x: torch.tril(x * 2), (_ROW,), (_X,)),
    "diag of a cube": BadCall(lambda x: torch.diag(x * 2), (_PLANE,), (_X,)),
    "a cross product along another size": BadCall(lambda x, y: torch.cross(x * 2, y, dim=0), (_X, _X)),
    "renorm below 0": BadCall(lambda x: torch.renorm(x * 2, -1.0, 0, 1.0), (_X,)),
    "cdist by a negative": BadCall(lambda x: torch.cdist(x * 2, x, p=-1.0), (_X,)),
    "pdist of a cube": BadCall(lambda x: torch.pdist(x * 2), (_grid(2, 2, 2),), (_X,)),
    "polygamma of a negative order": BadCall(lambda x, n: torch.polygamma(n, x * 2), (_X, -1), (_X, 1)),
    "mvlgamma of small": BadCall(lambda x: torch.mvlgamma(x * 0, 2), (_X,)),
    "a left shift by floats": BadCall(lambda k: k << 1.5, (_INTS,)),
    "numbers of unlike devices": BadCall(lambda x, y: x * 2 + y, (_X, _X.to("meta"))),
    "one position beyond": BadCall(
        lambda x, k: (x * 2)[k] + 1, (_X, _ints(0, 4)), (_X, _ints(0, 3))
    ),
    "one position below": BadCall(
        lambda x, k: (x * 2)[k] + 1, (_X, _ints(0, -5)), (_X, _ints(0, -4))
    ),
    "a position of no rows": BadCall(
        lambda x, k: (x * 2)[k] + 1, (torch.empty(0, 6), _ints(0)), (_X, _ints(0))
    ),
    "an embedding of a negative": BadCall(
        lambda w, k: F.embedding(k, w * 2) + 1, (_X, _ints(0, -1)), (_X, _ints(0, 1))
    ),
    "a label beyond": BadCall(
        lambda x, t: F.nll_loss(x * 2, t), (_X, _ints(0, 1, 2, 6)), (_X, _ints(0, 1, 2, 5))
    ),
    "a label below": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t), (_X, _ints(0, 1, 2, -1)), (_X, _ints(0, 1, 2, -100))
    ),
    "a label of an image beyond": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t),
        (_PLANE, torch.full((2, 6, 6), 3)),
        (_PLANE, torch.full((2, 6, 6), 2)),
    ),
    "a margin's label beyond": BadCall(
        lambda x, t: F.multi_margin_loss(x * 2, t), (_X, _ints(0, 1, 2, 6)), (_X, _ints(0, 1, 2, 5))
    ),
    "many margins' label beyond": BadCall(
        lambda x, t: F.multilabel_margin_loss(x * 2, t), (_X, torch.full((4, 6), 6)), (_X, torch.full((4, 6), -1))
    ),
    "gather of another rank": BadCall(lambda x, k: (x * 2).gather(1, k) + 1, (_X, _ints(0, 1)), (_X, _INTS % 4)),
    "gather of more rows": BadCall(
        lambda x, k: (x * 2).gather(1, k) + 1, (_X, torch.zeros(5, 2, dtype=torch.int64)), (_X, _INTS % 4)
    ),
    "scatter of a smaller source": BadCall(
        lambda x, k, s: (x * 2).scatter(1, k, s) + 1, (_X, _INTS % 4, _grid(4, 5)), (_X, _INTS % 4, _X)
    ),
    "scatter_add of other rows": BadCall(
        lambda x, k, s: (x * 2).scatter_add(1, k, s) + 1,
        (_X, torch.zeros(5, 2, dtype=torch.int64), _Y),
        (_X, _INTS % 4, _X),
    ),
    "index_add of another count": BadCall(
        lambda x, k, s: (x * 2).index_add(0, k, s) + 1, (_X, _ints(0, 1), _grid(3, 6)), (_X, _ints(0, 1), _grid(2, 6))
    ),
    "index_copy of another width": BadCall(
        lambda x, k, s: (x * 2).index_copy(0, k, s) + 1, (_X, _ints(0, 1), _grid(2, 5)), (_X, _ints(0, 1), _grid(2, 6))
    ),
    "index_put of another width": BadCall(
        lambda x, k, s: (x * 2).index_put((k,), s) + 1, (_X, _ints(0, 1), _grid(5)), (_X, _ints(0, 1), _ROW)
    ),
    "indices that do not broadcast": BadCall(
        lambda x, j, k: (x * 2)[j, k] + 1, (_X, _ints(0, 1), _ints(0, 1, 2)), (_X, _ints(0, 1), _ints(0, 1))
    ),
    "multinomial of negatives": BadCall(lambda x: torch.multinomial(-x, 1), (_X,)),
    "multinomial of infinities": BadCall(
        lambda x: torch.multinomial(x, 1), (torch.tensor([1.0, float("inf")]),), (_ROW,)
    ),
    "normal of negative deviations": BadCall(lambda x: torch.normal(x, -x), (_X,)),
    "a probability beyond 1": BadCall(
        lambda p, t: F.binary_cross_entropy(p, t), (_X, _X * 0), (_X / 100, _X * 0)
    ),
    "repeats that are negative": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0), (_X, _ints(1, 1, -1, 1)), (_X, _ints(1, 1, 2, 1))
    ),
    "repeats of another count": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0), (_X, _ints(1, 1, 1)), (_X, _ints(1, 1, 2, 1))
    ),
    "an output size of repeats": BadCall(
        lambda x, n: torch.repeat_interleave(x * 2, n, 0, output_size=7), (_X, _ints(1, 1, 1, 1)),
        (_X, _ints(1, 1, 4, 1)),
    ),
    "lengths of segments": BadCall(
        lambda x, n: torch.segment_reduce(x[:, 0] * 2, "sum", lengths=n), (_X, _ints(1, 4)), (_X, _ints(1, 3))
    ),
    "quantile beyond 1": BadCall(lambda x, q: torch.quantile(x * 2, q), (_X, 1.5), (_X, 0.5)),
    "quantile of integers": BadCall(lambda x: torch.quantile(x * 2, 0.5), (_INTS,)),
    "nonzero_static of a negative": BadCall(lambda x, n: torch.nonzero_static(x * 2, size=n), (_X, -1), (_X, 3)),
    "an item beyond the type": BadCall(lambda x: torch.zeros(int(x[0, 0].item())), (-_X,), (_X,)),
}


def all_calls() -> dict[str, BadCall]:
    """Every call by what it is; of those that tables of types make, some are good."""
    found: dict[str, BadCall] = {}
    for named in (SIZES, MEMORY, AUTOGRAD, OPTIONS):
        found.update(named)
    for made in (_type_calls(), _index_calls(), _binary_calls(), _outputs()):
        found.update(made)
    return found
