"""Sizes, dimensions and numbers that come of sizes, or of numbers that the function is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F

from integration_tests.operators.kinds.call import (
    FLAGS,
    LONGER,
    MATRIX,
    PLANE,
    ROW,
    WIDER,
    BadCall,
    grid,
    integers,
)

SIZES: Final[Mapping[str, BadCall]] = {
    "dim of a sum by a size": BadCall(lambda x: (x * 2).sum(x.shape[0]), (MATRIX,), (grid(1, 6),)),
    "dim of a softmax by a number": BadCall(lambda x, d: torch.softmax(x * 2, d), (MATRIX, 5), (MATRIX, 1)),
    "dim of a cat by a number": BadCall(lambda x, d: torch.cat([x, x + 1], d), (MATRIX, 2), (MATRIX, 1)),
    "dim of a transpose": BadCall(lambda x, d: (x * 2).transpose(0, d) + 1, (MATRIX, -4), (MATRIX, -1)),
    "dim of an unsqueeze": BadCall(lambda x, d: (x * 2).unsqueeze(d) + 1, (MATRIX, 4), (MATRIX, 2)),
    "dim of a squeeze": BadCall(lambda x, d: (x * 2).squeeze(d) + 1, (MATRIX, 3), (MATRIX, 1)),
    "dim of a cumsum": BadCall(lambda x, d: (x * 2).cumsum(d), (MATRIX, 2), (MATRIX, 1)),
    "dim of a flip": BadCall(lambda x, d: (x * 2).flip(d) + 1, (MATRIX, 2), (MATRIX, 1)),
    "dim of a select": BadCall(lambda x, d: (x * 2).select(d, 0) + 1, (MATRIX, 2), (MATRIX, 1)),
    "row of a select": BadCall(lambda x, k: (x * 2).select(0, k) + 1, (MATRIX, 4), (MATRIX, 3)),
    "row of a select from below": BadCall(lambda x, k: (x * 2).select(0, k) + 1, (MATRIX, -5), (MATRIX, -4)),
    "row by a subscript": BadCall(lambda x, k: (x * 2)[k] + 1, (MATRIX, 4), (MATRIX, 3)),
    "row by a size": BadCall(lambda x: (x * 2)[x.shape[0] + 2] + 1, (MATRIX,), None),
    "row by another's size": BadCall(lambda x, y: x[y.shape[0] - 1] + 1, (MATRIX, LONGER), (MATRIX, MATRIX)),
    "column by another's size": BadCall(
        lambda x, y: x[:, y.shape[0]] + 1, (MATRIX, grid(7)), (MATRIX, grid(5))
    ),
    "narrow beyond the end": BadCall(lambda x, k: x.narrow(0, k, 2) + 1, (MATRIX, 3), (MATRIX, 2)),
    "narrow by a negative length": BadCall(lambda x, k: x.narrow(0, 0, k) + 1, (MATRIX, -1), (MATRIX, 2)),
    "narrow by another's size": BadCall(
        lambda x, y: x.narrow(0, 0, y.shape[0]) + 1, (MATRIX, LONGER), (MATRIX, MATRIX)
    ),
    "a negative size of zeros": BadCall(lambda x, n: x.new_zeros(n, 2) + 1, (MATRIX, -1), (MATRIX, 3)),
    "a negative size of zeros by sizes": BadCall(
        lambda x: x.new_zeros(x.shape[0] - 5, 2) + 1, (MATRIX,), (grid(6, 2),)
    ),
    "a negative size of full": BadCall(
        lambda x, n: torch.full((n,), 1.0) + x[0, 0], (MATRIX, -3), (MATRIX, 3)
    ),
    "a negative size of ones": BadCall(lambda x, n: torch.ones(n) + x[0, 0], (MATRIX, -3), (MATRIX, 3)),
    "a negative size of empty": BadCall(
        lambda x, n: torch.empty(n).sum() + x[0, 0], (MATRIX, -3), (MATRIX, 3)
    ),
    "a negative size of rand": BadCall(lambda x, n: torch.rand(n).sum() + x[0, 0], (MATRIX, -3), (MATRIX, 3)),
    "a negative size of an eye": BadCall(
        lambda x, n: torch.eye(n).sum() + x[0, 0], (MATRIX, -3), (MATRIX, 3)
    ),
    "arange that goes down": BadCall(lambda x, n: torch.arange(0, n) + x[0, 0], (MATRIX, -3), (MATRIX, 3)),
    "arange in no steps": BadCall(lambda x, n: torch.arange(0, 5, n) + x[0, 0], (MATRIX, 0), (MATRIX, 2)),
    "linspace in negative steps": BadCall(
        lambda x, n: torch.linspace(0, 1, n) + x[0, 0], (MATRIX, -1), (MATRIX, 2)
    ),
    "a random permutation of negatives": BadCall(
        lambda x, n: torch.randperm(n) + 1, (MATRIX, -1), (MATRIX, 3)
    ),
    "randint without a range": BadCall(lambda x, n: torch.randint(n, (3,)) + 1, (MATRIX, 0), (MATRIX, 3)),
    "randint by a negative range": BadCall(
        lambda x, n: torch.randint(5, n, (3,)) + 1, (MATRIX, 3), (MATRIX, 9)
    ),
    "view of another size": BadCall(lambda x, n: (x * 2).view(n, -1) + 1, (MATRIX, 5), (MATRIX, 3)),
    "view with two unknown sizes": BadCall(lambda x: (x * 2).view(-1, -1) + 1, (MATRIX,), None),
    "view by another's size": BadCall(
        lambda x, y: (x * 2).view(y.shape) + 1, (MATRIX, LONGER), (MATRIX, grid(6, 4))
    ),
    "reshape by a number": BadCall(lambda x, n: (x * 2).reshape(n) + 1, (MATRIX, 23), (MATRIX, 24)),
    "reshape to a negative size": BadCall(lambda x, n: (x * 2).reshape(n, 6) + 1, (MATRIX, -2), (MATRIX, 4)),
    "expand of rows": BadCall(lambda x, n: (x * 2).expand(n, 6) + 1, (MATRIX, 5), (MATRIX, 4)),
    "expand to less": BadCall(lambda x, n: (x * 2).expand(n) + 1, (ROW, 5), (ROW, 6)),
    "expand to a negative size": BadCall(lambda x, n: (x * 2).expand(n, 6) + 1, (ROW, -2), (ROW, 3)),
    "expand as another": BadCall(lambda x, y: x.expand_as(y) + 1, (MATRIX, LONGER), (MATRIX, MATRIX)),
    "repeat by a negative": BadCall(lambda x, n: (x * 2).repeat(n, 1) + 1, (MATRIX, -1), (MATRIX, 2)),
    "tile by a negative": BadCall(lambda x, n: (x * 2).tile((n, 1)) + 1, (MATRIX, -1), (MATRIX, 2)),
    "repeat_interleave by a negative": BadCall(
        lambda x, n: (x * 2).repeat_interleave(n, 0), (MATRIX, -1), (MATRIX, 2)
    ),
    "split by a negative": BadCall(lambda x, n: (x * 2).split(n)[0] + 1, (MATRIX, -1), (MATRIX, 2)),
    "split by nothing": BadCall(lambda x, n: (x * 2).split(n)[0] + 1, (MATRIX, 0), (MATRIX, 2)),
    "split with another sum": BadCall(lambda x, n: (x * 2).split([n, 2])[0] + 1, (MATRIX, 3), (MATRIX, 2)),
    "split with a negative": BadCall(lambda x, n: (x * 2).split([n, 5])[0] + 1, (MATRIX, -1), None),
    "chunk by nothing": BadCall(lambda x, n: (x * 2).chunk(n)[0] + 1, (MATRIX, 0), (MATRIX, 2)),
    "tensor_split by nothing": BadCall(lambda x, n: (x * 2).tensor_split(n)[0] + 1, (MATRIX, 0), (MATRIX, 2)),
    "unflatten by a wrong factor": BadCall(
        lambda x, n: (x * 2).unflatten(1, (n, 2)) + 1, (MATRIX, 4), (MATRIX, 3)
    ),
    "unfold with a long window": BadCall(lambda x, n: (x * 2).unfold(0, n, 1) + 1, (MATRIX, 5), (MATRIX, 4)),
    "unfold in no steps": BadCall(lambda x, n: (x * 2).unfold(0, 2, n) + 1, (MATRIX, 0), (MATRIX, 1)),
    "unfold in negative steps": BadCall(lambda x, n: (x * 2).unfold(0, 2, n) + 1, (MATRIX, -1), (MATRIX, 1)),
    "slice in negative steps": BadCall(lambda x, n: x[::n] + 1, (MATRIX, -1), (MATRIX, 2)),
    "slice in no steps": BadCall(lambda x, n: x[::n] + 1, (MATRIX, 0), (MATRIX, 2)),
    "diagonal with one dimension twice": BadCall(
        lambda x, d: (x * 2).diagonal(0, 0, d) + 1, (MATRIX, 0), (MATRIX, 1)
    ),
    "topk of more": BadCall(lambda x, n: (x * 2).topk(n)[0] + 1, (MATRIX, 7), (MATRIX, 6)),
    "topk of a negative": BadCall(lambda x, n: (x * 2).topk(n)[0] + 1, (MATRIX, -1), (MATRIX, 6)),
    "kthvalue of more": BadCall(lambda x, n: (x * 2).kthvalue(n)[0] + 1, (MATRIX, 7), (MATRIX, 6)),
    "kthvalue of nothing": BadCall(lambda x, n: (x * 2).kthvalue(n)[0] + 1, (MATRIX, 0), (MATRIX, 6)),
    "one_hot of fewer classes": BadCall(
        lambda k, n: F.one_hot(k, n) * 2, (integers(0, 3), 3), (integers(0, 3), 4)
    ),
    "one_hot of no classes": BadCall(
        lambda k, n: F.one_hot(k, n) * 2, (integers(0, 3), 0), (integers(0, 3), 4)
    ),
    "as_strided beyond memory": BadCall(
        lambda x, n: x.as_strided((n, 6), (6, 1)) + 1, (MATRIX, 5), (MATRIX, 4)
    ),
    "as_strided by negative strides": BadCall(
        lambda x, n: x.as_strided((3, 2), (n, 1)) + 1, (MATRIX, -2), (MATRIX, 2)
    ),
    "as_strided at a negative offset": BadCall(
        lambda x, n: x.as_strided((3, 2), (2, 1), n) + 1, (MATRIX, -2), (MATRIX, 2)
    ),
    "as_strided beyond computed memory": BadCall(
        lambda x, n: (x * 2).as_strided((n, 6), (6, 1)) + 1, (MATRIX, 5), (MATRIX, 4)
    ),
    "pad by too much less": BadCall(lambda x, n: F.pad(x * 2, (n, 0)) + 1, (MATRIX, -7), (MATRIX, -5)),
    "reflection of more than the row": BadCall(
        lambda x, n: F.pad(x * 2, (n, 0), mode="reflect") + 1, (MATRIX, 6), (MATRIX, 5)
    ),
    "circular pad of more than the row": BadCall(
        lambda x, n: F.pad(x * 2, (n, 0), mode="circular") + 1, (MATRIX, 7), (MATRIX, 6)
    ),
    "pad of an odd count": BadCall(lambda x, n: F.pad(x * 2, (n, 0, 1)) + 1, (MATRIX, 1), None),
    "window larger than the image": BadCall(lambda x, n: F.max_pool2d(x * 2, n) + 1, (PLANE, 7), (PLANE, 2)),
    "average by no window": BadCall(lambda x, n: F.avg_pool2d(x * 2, n) + 1, (PLANE, 0), (PLANE, 2)),
    "padding of a pool beyond half": BadCall(
        lambda x, n: F.max_pool2d(x * 2, 2, 1, n) + 1, (PLANE, 2), (PLANE, 1)
    ),
    "pool with no dilation": BadCall(
        lambda x, n: F.max_pool2d(x * 2, 2, 1, 0, n) + 1, (PLANE, 0), (PLANE, 1)
    ),
    "pool with no stride": BadCall(lambda x, n: F.max_pool2d(x * 2, 2, n) + 1, (PLANE, 0), (PLANE, 1)),
    "adaptive pool to a negative": BadCall(
        lambda x, n: F.adaptive_avg_pool2d(x * 2, n) + 1, (PLANE, -1), (PLANE, 2)
    ),
    "interpolate to nothing": BadCall(
        lambda x, n: F.interpolate(x * 2, size=(n, 3)) + 1, (PLANE, 0), (PLANE, 2)
    ),
    "interpolate to a negative": BadCall(
        lambda x, n: F.interpolate(x * 2, size=(n, 3), mode="bilinear") + 1, (PLANE, -2), (PLANE, 2)
    ),
    "pixel_shuffle by another factor": BadCall(
        lambda x, n: F.pixel_shuffle(x * 2, n) + 1, (grid(1, 8, 2, 2), 3), (grid(1, 8, 2, 2), 2)
    ),
    "pixel_unshuffle by another factor": BadCall(
        lambda x, n: F.pixel_unshuffle(x * 2, n) + 1, (PLANE, 4), (PLANE, 3)
    ),
    "groups of a norm": BadCall(lambda x, n: F.group_norm(x * 2, n) + 1, (PLANE, 2), (PLANE, 3)),
    "no group of a norm": BadCall(lambda x, n: F.group_norm(x * 2, n) + 1, (PLANE, 0), (PLANE, 3)),
    "groups of a shuffle": BadCall(lambda x, n: F.channel_shuffle(x * 2, n) + 1, (PLANE, 2), (PLANE, 3)),
    "groups of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, groups=n) + 1,
        (PLANE, grid(3, 1, 2, 2), 2),
        (PLANE, grid(3, 1, 2, 2), 3),
    ),
    "stride of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, stride=n) + 1,
        (PLANE, grid(3, 3, 2, 2), 0),
        (PLANE, grid(3, 3, 2, 2), 1),
    ),
    "padding of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, padding=n) + 1,
        (PLANE, grid(3, 3, 2, 2), -1),
        (PLANE, grid(3, 3, 2, 2), 1),
    ),
    "dilation of a convolution": BadCall(
        lambda x, w, n: F.conv2d(x * 2, w, dilation=n) + 1,
        (PLANE, grid(3, 3, 2, 2), 0),
        (PLANE, grid(3, 3, 2, 2), 1),
    ),
    "output padding of a convolution": BadCall(
        lambda x, w, n: F.conv_transpose2d(x * 2, w, stride=2, output_padding=n) + 1,
        (PLANE, grid(3, 3, 2, 2), 2),
        (PLANE, grid(3, 3, 2, 2), 1),
    ),
    "kernel larger than the image": BadCall(
        lambda x, w: F.conv2d(x * 2, w) + 1, (PLANE, grid(3, 3, 7, 7)), (PLANE, grid(3, 3, 2, 2))
    ),
    "windows of an unfold larger than the image": BadCall(
        lambda x, n: F.unfold(x * 2, n) + 1, (PLANE, 7), (PLANE, 2)
    ),
    "a matrix power below 0 of a singular": BadCall(
        lambda x, n: torch.linalg.matrix_power(x * 2, n), (torch.zeros(3, 3), -1), (torch.eye(3), -1)
    ),
    "bincount to a negative": BadCall(
        lambda k, n: torch.bincount(k, minlength=n), (integers(1, 2), -1), None
    ),
    "histogram of no bins": BadCall(lambda x, n: torch.histc(x * 2, n), (MATRIX, 0), (MATRIX, 4)),
    "samples of nothing": BadCall(lambda x, n: torch.multinomial(x * 2, n), (MATRIX, 0), (MATRIX, 2)),
    "more samples than categories": BadCall(
        lambda x, n: torch.multinomial(x * 2, n), (MATRIX, 7), (MATRIX, 2)
    ),
    "a glu of an odd size": BadCall(lambda x: F.glu(x * 2) + 1, (WIDER,), (MATRIX,)),
    "rows of a matrix product": BadCall(lambda x, y: (x * 2) @ y + 1, (MATRIX, MATRIX), (MATRIX, grid(6, 5))),
    "rows of a batched product": BadCall(
        lambda x, y: torch.bmm(x * 2, y), (grid(2, 3, 4), grid(3, 4, 5)), (grid(2, 3, 4), grid(2, 4, 5))
    ),
    "bias of a linear layer": BadCall(
        lambda x, w, b: F.linear(x * 2, w, b), (MATRIX, grid(5, 6), grid(4)), (MATRIX, grid(5, 6), grid(5))
    ),
    "shapes that do not broadcast": BadCall(lambda x, y: x * 2 + y, (MATRIX, LONGER), (MATRIX, MATRIX)),
    "rows that do not broadcast": BadCall(lambda x, y: x * 2 + y, (MATRIX, grid(5)), (MATRIX, ROW)),
    "shapes in place": BadCall(lambda x, y: (x * 2).add_(y), (ROW, MATRIX), (MATRIX, ROW)),
    "rows that are copied": BadCall(lambda x, y: (x * 2).copy_(y), (MATRIX, LONGER), (MATRIX, MATRIX)),
    "rows that are assigned": BadCall(
        lambda x, y: (x * 2).slice_scatter(y, 0, 0, 3), (MATRIX, LONGER), (MATRIX, grid(3, 6))
    ),
    "masks of another shape": BadCall(
        lambda x, m: x.masked_fill(m, 0.0) + 1, (MATRIX, torch.ones(5, dtype=torch.bool)), (MATRIX, FLAGS)
    ),
    "mask as an index of another shape": BadCall(
        lambda x, m: x[m] + 1,
        (MATRIX, torch.ones(5, dtype=torch.bool)),
        (MATRIX, torch.ones(4, dtype=torch.bool)),
    ),
    "fewer values than a mask has": BadCall(
        lambda x, m, v: (x * 2).masked_scatter(m, v) + 1, (MATRIX, FLAGS, grid(3)), (MATRIX, FLAGS, grid(24))
    ),
    "stack of unlike shapes": BadCall(
        lambda x, y: torch.stack([x * 2, y]) + 1, (MATRIX, LONGER), (MATRIX, MATRIX)
    ),
    "cat of unlike rows": BadCall(lambda x, y: torch.cat([x * 2, y]) + 1, (MATRIX, WIDER), (MATRIX, LONGER)),
    "a product of unlike vectors": BadCall(lambda x, y: torch.dot(x * 2, y), (ROW, grid(5)), (ROW, ROW)),
    "a cross product of four": BadCall(lambda x: torch.linalg.cross(x * 2, x), (MATRIX,), (grid(5, 3),)),
    "einsum of unlike sizes": BadCall(
        lambda x, y: torch.einsum("ij,jk->ik", x * 2, y), (MATRIX, MATRIX), (MATRIX, grid(6, 5))
    ),
    "trace of a cube": BadCall(lambda x: torch.trace(x * 2), (grid(2, 2, 2),), None),
    "the largest of nothing": BadCall(lambda x: (x * 2).max(), (torch.empty(0),), (ROW,)),
    "the largest along nothing": BadCall(lambda x: (x * 2).amax(0), (torch.empty(0, 3),), (MATRIX,)),
    "the place of the largest of nothing": BadCall(lambda x: (x * 2).argmax(), (torch.empty(0),), (ROW,)),
    "the place of the smallest along nothing": BadCall(
        lambda x: (x * 2).argmin(1), (torch.empty(3, 0),), (MATRIX,)
    ),
    "the largest and smallest of nothing": BadCall(lambda x: (x * 2).aminmax(), (torch.empty(0),), (ROW,)),
    "the middle of nothing along a dimension": BadCall(
        lambda x: (x * 2).median(1), (torch.empty(3, 0),), (MATRIX,)
    ),
    "the mode of nothing": BadCall(lambda x: (x * 2).mode(1), (torch.empty(3, 0),), (MATRIX,)),
    "a quantile of nothing": BadCall(lambda x: (x * 2).quantile(0.5), (torch.empty(0),), (ROW,)),
    "the norm of nothing, infinite": BadCall(
        lambda x: torch.linalg.vector_norm(x * 2, float("inf")), (torch.empty(0),), (ROW,)
    ),
    "a running maximum of no rows": BadCall(lambda x: (x * 2).cummax(3), (MATRIX,), None),
    "an item of many": BadCall(lambda x: (x * 2).item(), (MATRIX,), (grid(1),)),
    "a number as a condition": BadCall(lambda x: x + 1 if x > 3 else x - 1, (MATRIX,), (grid(1),)),
    "a batch norm of one value": BadCall(
        lambda x: F.batch_norm(x * 2, None, None, training=True), (grid(1, 6),), (MATRIX,)
    ),
    "an instance norm of one value": BadCall(
        lambda x: F.instance_norm(x * 2), (grid(1, 6, 1),), (grid(1, 6, 2),)
    ),
    "a layer norm over other sizes": BadCall(
        lambda x, w: F.layer_norm(x * 2, w.shape, w), (MATRIX, grid(5)), (MATRIX, ROW)
    ),
    "weights of a prelu": BadCall(lambda x, w: F.prelu(x * 2, w), (PLANE, grid(2)), (PLANE, grid(3))),
    "labels of another batch": BadCall(
        lambda x, t: F.cross_entropy(x * 2, t), (MATRIX, integers(0, 1, 2)), (MATRIX, integers(0, 1, 2, 3))
    ),
    "weights of classes": BadCall(
        lambda x, t, w: F.cross_entropy(x * 2, t, w),
        (MATRIX, integers(0, 1, 2, 3), grid(5)),
        (MATRIX, integers(0, 1, 2, 3), ROW),
    ),
    "probabilities of another shape": BadCall(
        lambda x, y: F.binary_cross_entropy(torch.sigmoid(x), y * 0), (MATRIX, LONGER), (MATRIX, MATRIX)
    ),
    "a loss between unlike shapes": BadCall(
        lambda x, y: F.mse_loss(x * 2, y), (MATRIX, LONGER), (MATRIX, MATRIX)
    ),
    "heads of another width": BadCall(
        lambda q, k: F.scaled_dot_product_attention(q * 2, k, k),
        (grid(1, 2, 4, 8), grid(1, 2, 4, 6)),
        (grid(1, 2, 4, 8), grid(1, 2, 4, 8)),
    ),
    "a mask of attention of another length": BadCall(
        lambda q, m: F.scaled_dot_product_attention(q * 2, q, q, m),
        (grid(1, 2, 4, 8), grid(4, 5)),
        (grid(1, 2, 4, 8), grid(4, 4)),
    ),
    "a table of the wrong width": BadCall(
        lambda x, w: F.bilinear(x * 2, x, w), (MATRIX, grid(2, 6, 5)), (MATRIX, grid(2, 6, 6))
    ),
    "a grid of three": BadCall(
        lambda x, g: F.grid_sample(x * 2, g, align_corners=False),
        (PLANE, grid(2, 4, 4, 3)),
        (PLANE, grid(2, 4, 4, 2)),
    ),
}
