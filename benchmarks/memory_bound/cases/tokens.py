"""What language models compute beside their products: positions, gates, modulated norms, scores, losses of
tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, first_bytes
from benchmarks.memory_bound.cases.inputs import normal

F32 = torch.float32
BACKWARD = "the backward pass reads the inputs again"


def tanh_gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def packed_gate(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return functional.silu(gate) * value


def heads(make: Make, b: int, length: int, count: int, width: int) -> Arguments:
    angles = (make.normal(length, width // 2), make.normal(length, width // 2))
    return make.normal(b, length, count, width), make.normal(b, length, count, width), *angles


def rotary_halves(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    c, s = torch.cat([cos, cos], -1)[:, None], torch.cat([sin, sin], -1)[:, None]

    def rotated(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * c + torch.cat([-second, first], -1) * s

    return rotated(q).transpose(1, 2).contiguous(), rotated(k).transpose(1, 2).contiguous()


def pair_and_weights(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), make.normal(n, m), make.near_one(m), make.normal(m)


def added_norm(x: Tensor, skip: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + skip
    return total, functional.layer_norm(total, total.shape[-1:], weight, bias)


def conditioned(make: Make, b: int, length: int, width: int) -> Arguments:
    return make.normal(b, length, width), make.normal(b, width), make.normal(b, width)


def modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


def scores_and_slopes(make: Make, b: int, count: int, length: int) -> Arguments:
    return make.normal(b, count, length, length), make.normal(count)


def distance_biased(x: Tensor, slopes: Tensor) -> Tensor:
    places = torch.arange(x.shape[-1], device=x.device)
    distance = (places - places[:, None]).abs().to(x.dtype)
    return torch.softmax(x * 0.125 - slopes[:, None, None] * distance, -1)


def capped(x: Tensor) -> Tensor:
    return torch.tanh(x / 30) * 30


def labelled(make: Make, n: int, classes: int) -> Arguments:
    return make.normal(n, classes, dtype=F32), make.integers(n, below=classes)


def smoothed_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y, label_smoothing=0.1, ignore_index=3)


def soft_labelled(make: Make, n: int, classes: int) -> Arguments:
    return make.normal(n, classes), make.near_one(n, classes)


def soft_loss(x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(x, y)


def accuracy(x: Tensor, y: Tensor) -> Tensor:
    return (x.argmax(-1) == y).float().mean()


def chosen_log_probabilities(x: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(x, -1).gather(1, y[:, None]).squeeze(1)


def entropies(x: Tensor) -> Tensor:
    logarithms = torch.log_softmax(x.float(), -1)
    return -(logarithms.exp() * logarithms).sum(-1)


def one_hot_inputs(make: Make, n: int, classes: int) -> Arguments:
    return (make.integers(n, below=classes),)


def one_hot(classes: Tensor) -> Tensor:
    return (classes[:, None] == torch.arange(1000, device=classes.device)).float()


CASES = (
    Case(
        name="tanh GELU fwd+bwd 8192x16384",
        function=tanh_gelu,
        inputs=normal,
        size=(8192, 16384),
        tiny=(5, 9),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="later",
    ),
    Case(
        name="packed gate fwd+bwd 8192x22016",
        function=packed_gate,
        inputs=normal,
        size=(8192, 22016),
        tiny=(5, 8),
        train=True,
        again=first_bytes,
        why=BACKWARD,
        set="later",
    ),
    Case(
        name="rotary halves, heads first 8x2048x32x128",
        function=rotary_halves,
        inputs=heads,
        size=(8, 2048, 32, 128),
        tiny=(2, 3, 2, 8),
        set="later",
    ),
    Case(
        name="added layer norm 32768x2048",
        function=added_norm,
        inputs=pair_and_weights,
        size=(32768, 2048),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="modulated layer norm 64x1024x1152",
        function=modulated,
        inputs=conditioned,
        size=(64, 1024, 1152),
        tiny=(2, 3, 8),
        set="later",
    ),
    Case(
        name="distance-biased softmax 4x16x2048x2048",
        function=distance_biased,
        inputs=scores_and_slopes,
        size=(4, 16, 2048),
        tiny=(2, 3, 5),
        set="later",
    ),
    Case(
        name="capped logits 8192x32000",
        function=capped,
        inputs=normal,
        size=(8192, 32000),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="smoothed cross-entropy 8192x32000 f32",
        function=smoothed_loss,
        inputs=labelled,
        size=(8192, 32000),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="cross-entropy with soft labels 8192x32000",
        function=soft_loss,
        inputs=soft_labelled,
        size=(8192, 32000),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="accuracy 131072x1000 f32",
        function=accuracy,
        inputs=labelled,
        size=(131072, 1000),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="chosen log probabilities 8192x32000 f32",
        function=chosen_log_probabilities,
        inputs=labelled,
        size=(8192, 32000),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="entropies 16384x16384",
        function=entropies,
        inputs=normal,
        size=(16384, 16384),
        tiny=(5, 9),
        set="later",
    ),
    Case(
        name="one-hot 131072x1000 f32",
        function=one_hot,
        inputs=one_hot_inputs,
        size=(131072, 1000),
        tiny=(5, 1000),
        set="later",
    ),
)
