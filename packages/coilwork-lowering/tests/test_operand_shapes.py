"""Shapes, and types of results, that eager's kernels refuse: the call stays ATen's, which refuses it, or
tracing does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import externs
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions, lower

aten = torch.ops.aten
ZEROS = torch.zeros(4, 1, dtype=torch.int64)
WIDE = torch.zeros(1, 9, 2, 2, dtype=torch.uint16)
EIGHT_BITS = torch.ones(5, 5).to(torch.float8_e4m3fn)

REFUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "index_put of more dimensions": (
        lambda x, i, v: x.index_put((i,), v),
        (torch.ones(5, 5), ZEROS[:1, 0], torch.ones(1, 1, 5)),
    ),
    "index_put at places that differ": (
        lambda x, i, k: x.index_put((i, k), x[0, 0]),
        (torch.ones(5, 5), ZEROS, torch.zeros(2, 3, dtype=torch.int64)),
    ),
    "index_select by a matrix": (lambda x, i: x.index_select(0, i), (torch.ones(()), ZEROS[:1])),
    "embedding_bag by a matrix": (
        lambda w, i, offsets: aten._embedding_bag(w, i, offsets)[0],
        (torch.ones(5, 2), ZEROS[:, 0], ZEROS[:2]),
    ),
    "bucketize": (torch.bucketize, (torch.ones(3), torch.ones(3, 4))),
    "searchsorted of other rows": (torch.searchsorted, (torch.ones(3, 4), torch.ones(2, 4))),
    "searchsorted by another order": (
        lambda b, v, k: torch.searchsorted(b, v, sorter=k),
        (torch.ones(4), torch.ones(4), torch.zeros(3, dtype=torch.int64)),
    ),
    "softmax's gradient": (
        lambda g, y: aten._softmax_backward_data(g, y, 0, torch.float32),
        (torch.ones(1, 5), torch.ones(5)),
    ),
    "batch_norm by one statistic": (
        lambda x, mean: F.batch_norm(x, mean, None, training=True),
        (torch.ones(5, 5, 5), torch.zeros(5)),
    ),
    "batch_norm by a matrix": (
        lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
        (torch.ones(5, 5, 5), torch.zeros(1, 5), torch.zeros(5)),
    ),
    "binary_cross_entropy": (
        lambda x, w: F.binary_cross_entropy(x, x, weight=w),
        (torch.ones(5, 5), torch.ones(1, 5, 5)),
    ),
    "binary_cross_entropy_with_logits of more": (
        aten.binary_cross_entropy_with_logits,
        (torch.ones(2, 5), torch.ones(5)),
    ),
    "index_copy of a number": (
        lambda x, i, y: aten.index_copy(x, 0, i, y),
        (torch.ones(()), ZEROS[:2, 0], torch.ones(())),
    ),
    "index_copy of fewer dimensions": (
        lambda x, i, y: aten.index_copy(x, 0, i, y),
        (torch.ones(1, 1), ZEROS[:1, 0], torch.ones(())),
    ),
    "index_copy of more slices": (
        lambda x, i, y: aten.index_copy(x, 0, i, y),
        (torch.ones(3, 2), ZEROS[:1, 0], torch.ones(2, 2)),
    ),
    "segments along no dimension": (
        lambda x, n: torch.segment_reduce(x, "max", lengths=n, axis=1),
        (torch.ones(4), ZEROS[:1, 0] + 4),
    ),
    "layer norm's gradient by other weights": (
        lambda x, w: aten.native_layer_norm_backward(
            x, x, [3], x[:, :1], x[:, :1], w, None, [True, True, False]
        )[0],
        (torch.ones(2, 3), torch.ones(4)),
    ),
    "binary_cross_entropy_with_logits": (
        lambda x, w: F.binary_cross_entropy_with_logits(x, x, weight=w),
        (torch.ones(5, 5), torch.ones(1, 5, 5)),
    ),
    "soft_margin_loss": (F.soft_margin_loss, (torch.ones(()), torch.ones(5))),
    "logsumexp of no dimensions": (lambda x: torch.logsumexp(x, []), (torch.ones(5, 5),)),
    "empty_strided": (lambda x: x.new_empty_strided((5,), (-1,)), (torch.ones(5),)),
    "index_select of a number": (lambda x, k: x.index_select(0, k), (torch.ones(()), torch.zeros(2).long())),
    "put into nothing": (
        lambda x, k: torch.ops.aten.put(x, k, k.float()),
        (torch.ones(0), torch.zeros(2).long()),
    ),
    "labels of a narrower image": (F.nll_loss, (torch.zeros(2, 3, 5, 6), torch.zeros(2, 5, 5).long())),
    "channel_shuffle": (lambda x: torch.native_channel_shuffle(x, 3), (WIDE,)),
    "col2im of integers": (lambda x: F.fold(x, (4, 5), (2, 2)), (torch.ones(1, 12, 12).long(),)),
    "slice_scatter": (lambda x, v: x.slice_scatter(v), (torch.ones(()), torch.ones(3))),
    "kthvalue": (lambda x: torch.kthvalue(x, 2), (torch.ones(3, 3) > 0,)),
    "topk": (lambda x: torch.topk(x, 2), (torch.ones(3, 3) > 0,)),
    "linspace": (lambda x: torch.linspace(0, x, 5, dtype=torch.bool), (torch.tensor(5),)),
    "eye": (lambda x: torch.eye(3, dtype=x.dtype), (WIDE,)),
    "relu6": (F.relu6, (WIDE,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (WIDE,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 3), (WIDE,)),
    **{
        f"{name} into uint16": (partial(getattr(torch, name), dim=1, dtype=torch.uint16), (torch.ones(3, 3),))
        for name in ("cumsum", "cumprod", "prod")
    },
    **{
        f"{name} of 8 bits": (getattr(torch, name), (EIGHT_BITS,)) for name in ("acosh", "sum", "neg", "amax")
    },
    "replication_pad2d": (
        lambda x: aten.replication_pad2d(x, [1, 1, 1, 1]),
        (torch.ones(1, 1, 3, 4, 4),),
    ),
    "grid_sampler_2d's gradient": (
        lambda x, grid: aten.grid_sampler_2d_backward(x, x, grid, 0, 0, False, [True, True]),
        (torch.ones(2, 1, 3, 3), torch.ones(1, 3, 3, 2)),
    ),
    "adaptive_max_pool2d's gradient of nothing": (
        lambda x: aten.adaptive_max_pool2d_backward(x[:, :, :0], x, x[:, :, :0].long()),
        (torch.ones(2, 3, 4, 4),),
    ),
    "fractional_max_pool3d": (
        lambda x, samples: aten.fractional_max_pool3d(x, [2, 2, 2], [1, 1, 1], samples),
        (torch.ones(3, 1, 4, 4, 4), torch.ones(2, 1, 3)),
    ),
    **{
        f"{name}'s gradient of another type": (call, (torch.ones(1, 2, 2), torch.ones(1, 4, 4).double()))
        for name, call in {
            "avg_pool2d": lambda g, x: aten.avg_pool2d_backward(
                g, x, [2, 2], [2, 2], [0, 0], False, True, None
            ),
            "mish": lambda g, x: aten.mish_backward(x[:, :2, :2].long(), x[:, :2, :2].long()),
        }.items()
    },
    "median": (lambda x: torch.median(x, 0), (torch.ones(3, 3) > 0,)),
    "add of 8 bits": (torch.add, (EIGHT_BITS, torch.ones(5, 5))),
    "gather of 8 bits": (lambda x, i: x.gather(0, i), (EIGHT_BITS, ZEROS)),
    "mean of 8 bits": (lambda x: F.mse_loss(x, x), (EIGHT_BITS,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_eager_refuses_are_refused(name: str) -> None:
    function, inputs = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        function(*inputs)
    try:
        gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(*inputs)
    except (RuntimeError, IndexError, ValueError):
        return  # tracing itself refuses
    assert externs(lower(gm, name="graph").graph) != []


GENERATED: dict[str, Callable[[Tensor], Any]] = {
    "convert": lambda x: x.float() * 2,
    "move": lambda x: torch.cat((x.t(), x)),
    "choose": lambda x: torch.where(x == x, x, x[0]),
    "fill": lambda x: x.new_zeros(3, 3),
}


@pytest.mark.parametrize("name", GENERATED)
def test_floats_of_8_bits_are_moved_and_converted(name: str) -> None:
    gm = make_fx(GENERATED[name], tracing_mode="fake", decomposition_table=decompositions())(EIGHT_BITS)
    assert externs(lower(gm, name="graph").graph) == []
