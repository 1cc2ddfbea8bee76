"""Activations, softmax and norms as layers have them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes, first_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f16, normal_f32, two

F16, F32 = torch.float16, torch.float32
BACKWARD = "the backward pass reads the inputs again"


def both_bytes(x: Tensor, y: Tensor) -> int:
    return count_stored_bytes(x) + count_stored_bytes(y)


def gated(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x) * y


def mish(x: Tensor) -> Tensor:
    return functional.mish(x)


def masked(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.bits(n, m, one_in=3)


def masked_scores(x: Tensor, mask: Tensor) -> Tensor:
    return (x * 0.125).masked_fill(mask, -1e4)


def causal_softmax(x: Tensor) -> Tensor:
    length = x.shape[-1]
    places = torch.arange(length, device=x.device)
    return torch.softmax(x.masked_fill(places > places[:, None], float("-inf")), dim=-1)


def causal_bytes(x: Tensor) -> int:
    length = x.shape[-1]
    return x.numel() // (2 * length) * (length + 1) * x.element_size()


def middle_softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=-1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, dim=-1)


def plain_layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def normed(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.near_one(m), make.normal(m)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def heads(make: Make, b: int, length: int, count: int, width: int) -> Arguments:
    return make.normal(b, length, 3 * count * width), make.near_one(width)


def normed_queries(x: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[0]
    queries = x[..., : x.shape[-1] // 3].unflatten(-1, (-1, width)).float()
    scale = torch.rsqrt(queries.square().mean(-1, keepdim=True) + 1e-6)
    normed: Tensor = ((queries * scale).to(x.dtype) * weight).transpose(1, 2)
    return normed


def third_bytes(x: Tensor, weight: Tensor) -> int:
    return count_stored_bytes(x) // 3 + count_stored_bytes(weight)


def grouped(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(n, c, h, w, dtype=F32), make.near_one(c, dtype=F32), make.normal(c, dtype=F32)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.group_norm(x, 32, weight, bias)


def trained_norm(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    parameters = [make.near_one(c, dtype=F32) for _ in range(3)]
    return make.normal(n, c, h, w), make.normal(n, c, h, w), *parameters, make.near_one(c, dtype=F32).abs()


def inference_norm(
    x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    return (functional.batch_norm(x, mean, variance, weight, bias) + skip).relu()


CASES = (
    Case(
        name="SiLU gate fwd+bwd 8192x11008",
        function=gated,
        inputs=two,
        size=(8192, 11008),
        tiny=(5, 9),
        train=True,
        again=both_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="mish 8192x8192 f32",
        function=mish,
        inputs=normal_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="mish fwd+bwd 8192x8192 f16",
        function=mish,
        inputs=normal_f16,
        size=(8192, 8192),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="masked scores 8192x16384",
        function=masked_scores,
        inputs=masked,
        size=(8192, 16384),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="causal softmax 64x1024x1024",
        function=causal_softmax,
        inputs=normal,
        size=(64, 1024, 1024),
        tiny=(2, 9, 9),
        reads=causal_bytes,
        set="other",
    ),
    Case(
        name="softmax of the middle 64x256x4096",
        function=middle_softmax,
        inputs=normal,
        size=(64, 256, 4096),
        tiny=(3, 5, 7),
        set="other",
    ),
    Case(
        name="softmax 32768x5003 f16",
        function=softmax,
        inputs=normal_f16,
        size=(32768, 5003),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="log softmax fwd+bwd 16384x5003 f32",
        function=log_softmax,
        inputs=normal_f32,
        size=(16384, 5003),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why="the backward pass reads the log softmax, or what it was made of",
        set="other",
    ),
    Case(
        name="layer norm without weights 16384x5120",
        function=plain_layer_norm,
        inputs=normal,
        size=(16384, 5120),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="layer norm fwd+bwd 8192x12288",
        function=layer_norm,
        inputs=normed,
        size=(8192, 12288),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="other",
    ),
    Case(
        name="norms of queries 8x2048x32x128",
        function=normed_queries,
        inputs=heads,
        size=(8, 2048, 32, 128),
        tiny=(2, 5, 3, 8),
        reads=third_bytes,
        set="other",
    ),
    Case(
        name="group norm 16x256x128x128 f32",
        function=group_norm,
        inputs=grouped,
        size=(16, 256, 128, 128),
        tiny=(2, 64, 3, 5),
        again=first_bytes,
        why="all groups in flight are larger than the memory on chip",
        set="other",
    ),
    Case(
        name="inference batch norm+skip+ReLU 64x256x56x56",
        function=inference_norm,
        inputs=trained_norm,
        size=(64, 256, 56, 56),
        tiny=(2, 3, 5, 7),
        set="other",
    ),
)
