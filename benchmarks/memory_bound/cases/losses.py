"""Losses, distances, and sums over some of the dimensions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, first_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f16, normal_f32, two, two_f32

F16, F32 = torch.float16, torch.float32


def cosine(x: Tensor, y: Tensor) -> Tensor:
    similarity: Tensor = functional.cosine_similarity(x, y, dim=-1)
    return similarity


def unit_columns(x: Tensor) -> Tensor:
    return functional.normalize(x, dim=0)


def mean_square(x: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(x, y)


def divergence(x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(
        functional.log_softmax(x, -1), functional.log_softmax(y, -1), reduction="batchmean", log_target=True
    )


def bits_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(x, y.sigmoid())


def pooled_inputs(make: Make, b: int, length: int, width: int) -> Arguments:
    return make.normal(b, length, width), make.bits(b, length, one_in=2)


def pooled(x: Tensor, mask: Tensor) -> Tensor:
    weight = mask.to(x.dtype)[..., None]
    return (x * weight).sum(1) / weight.sum(1).clamp(min=1)


def outer_sums(x: Tensor) -> Tensor:
    return x.sum((0, 2))


def middle_sums(x: Tensor) -> Tensor:
    return x.sum(1)


def plane_means(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def column_std(x: Tensor) -> Tensor:
    deviations: Tensor = x.std(0)
    return deviations


def column_logsumexp(x: Tensor) -> Tensor:
    return x.logsumexp(0)


CASES = (
    Case(
        name="cosine similarity 65536x1024",
        function=cosine,
        inputs=two,
        size=(65536, 1024),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="unit columns 4096x16384 f32",
        function=unit_columns,
        inputs=normal_f32,
        size=(4096, 16384),
        tiny=(9, 5),
        again=first_bytes,
        why="all columns are larger than the memory on chip, and their norms come before the first result",
        set="other",
    ),
    Case(
        name="mean square of 64M f32",
        function=mean_square,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="divergence 16384x8192",
        function=divergence,
        inputs=two,
        size=(16384, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="binary cross-entropy of 64M f32",
        function=bits_loss,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="mean of tokens 128x512x1024",
        function=pooled,
        inputs=pooled_inputs,
        size=(128, 512, 1024),
        tiny=(2, 5, 8),
        set="other",
    ),
    Case(
        name="sums of first and last 256x512x1024",
        function=outer_sums,
        inputs=normal,
        size=(256, 512, 1024),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="sums of the middle 128x512x1024 f32",
        function=middle_sums,
        inputs=normal_f32,
        size=(128, 512, 1024),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="means of planes 128x512x28x28 f16",
        function=plane_means,
        inputs=normal_f16,
        size=(128, 512, 28, 28),
        tiny=(2, 3, 5, 7),
        set="other",
    ),
    Case(
        name="deviations of columns 3000x20000 f32",
        function=column_std,
        inputs=normal_f32,
        size=(3000, 20000),
        tiny=(9, 5),
        set="other",
    ),
    Case(
        name="logsumexp of columns 16384x4096",
        function=column_logsumexp,
        inputs=normal,
        size=(16384, 4096),
        tiny=(9, 5),
        set="other",
    ),
)
