"""Gradients between the matrix products of a transformer, where a tensor's sum over all tokens goes to a bias
or a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make

aten = torch.ops.aten


def tokens(make: Make, batch: int, length: int, width: int) -> Arguments:
    """Two tensors as linear layers see them: all tokens in rows."""
    return make.normal(batch * length, width), make.normal(batch, length, width)


def gelu_and_bias(gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what goes on to the product before an activation, and the gradient of that product's bias."""
    found = aten.gelu_backward(gradient.view(x.shape), x, approximate="tanh")
    rows = found.view(gradient.shape)
    return rows, rows.sum(0)


def heads(make: Make, batch: int, length: int, width: int) -> Arguments:
    return tuple(make.normal(batch, length, width) for _ in range(3))


def joined_and_bias(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries, keys and values as that of one product, and its bias's."""
    joined = torch.cat((query, key, value), -1).flatten(0, 1)
    return joined, joined.sum(0)


def norm_inputs(make: Make, batch: int, length: int, width: int) -> Arguments:
    rows = (batch, length, 1)
    # what eager's kernels take there
    kind = torch.float32 if make.device.type == "cuda" else torch.bfloat16
    return (
        make.normal(batch * length, width),
        make.normal(batch, length, width),
        make.normal(width),
        make.normal(*rows, dtype=kind),
        make.near_one(*rows, dtype=kind),
        make.normal(batch, length, width),
    )


def norm_and_residual(
    gradient: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, residual: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer norm's gradients, that of its input added to the residual's."""
    found, of_weight, of_bias = aten.native_layer_norm_backward(
        gradient.view(x.shape), x, weight.shape, mean, scale, weight, weight, [True, True, True]
    )
    return found + residual, of_weight, of_bias


CASES: tuple[Case, ...] = (
    *(
        Case(
            name=f"{name} {size[0]}x{size[1]}x{size[2]}",
            function=function,
            inputs=inputs,
            size=size,
            tiny=(2, 5, 24),
            set="more",
        )
        for name, function, inputs, sizes in (
            ("GELU and bias gradients", gelu_and_bias, tokens, ((8, 1024, 3072), (64, 197, 3072))),
            ("joined heads' and bias gradients", joined_and_bias, heads, ((8, 1024, 768), (16, 512, 1024))),
            (
                "layer norm and residual gradients",
                norm_and_residual,
                norm_inputs,
                ((8, 1024, 768), (64, 197, 768), (8, 2048, 2048)),
            ),
        )
        for size in sizes
    ),
)
