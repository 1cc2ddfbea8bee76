"""T5-small (Raffel et al. 2019): encoder and decoder, RMS norm, relative position bias, no
attention scaling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, tokens
from benchmarks.models.llama import RMSNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    heads: int
    hidden: int
    layers: int
    head_width: int = 64


SHAPES = {
    Size.SMALL: Shape(vocabulary=512, width=128, heads=2, hidden=256, layers=2),
    Size.REDUCED: Shape(vocabulary=512, width=256, heads=4, hidden=512, layers=2),
    Size.FULL: Shape(vocabulary=32128, width=512, heads=8, hidden=2048, layers=6),
}


class PositionBias(nn.Module):
    """A learnt bias per head and bucket of the distance key - query; near distances exact, far ones
    logarithmic.

    Shape: [1, heads, queries, keys]. Source: section 2.1 of the paper; 32 buckets, distances beyond 128 share
    one.
    """

    def __init__(self, heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(32, heads)
        self.bidirectional = bidirectional

    def forward(self, length: int, device: torch.device) -> Tensor:
        positions = torch.arange(length, device=device)
        distance = positions[None, :] - positions[:, None]
        if self.bidirectional:
            buckets, start = 16, (distance > 0).long() * 16
            distance = distance.abs()
        else:
            buckets, start = 32, torch.zeros_like(distance)
            distance = (-distance).clamp(min=0)
        exact = buckets // 2
        ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(128 / exact)
        # Powers of two fall on bucket borders; the shift keeps them on one side under any rounding of the
        # logarithm.
        far = (exact + (ratio * (buckets - exact) + 1e-3).long()).clamp(max=buckets - 1)
        bucket = start + torch.where(distance < exact, distance, far)
        bias: Tensor = self.table(bucket).permute(2, 0, 1).unsqueeze(0)
        return bias


class Attention(nn.Module):
    """Attention of x [b, q, width] to source [b, k, width], with a bias [1, heads, q, k] or none,
    unscaled.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.heads * shape.head_width
        self.query = nn.Linear(shape.width, inner, bias=False)
        self.key = nn.Linear(shape.width, inner, bias=False)
        self.value = nn.Linear(shape.width, inner, bias=False)
        self.output = nn.Linear(inner, shape.width, bias=False)
        nn.init.normal_(self.query.weight, std=(shape.width * shape.head_width) ** -0.5)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor | None) -> Tensor:
        def per_head(value: Tensor) -> Tensor:
            batch, length, _ = value.shape
            return value.view(batch, length, self.shape.heads, self.shape.head_width).transpose(1, 2)

        query, key, value = per_head(self.query(x)), per_head(self.key(source)), per_head(self.value(source))
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=1.0)
        mixed: Tensor = self.output(attended.transpose(1, 2).flatten(-2))
        return mixed


class Layer(nn.Module):
    """Self-attention, in a decoder attention to the encoder's output, and a ReLU feed-forward."""

    def __init__(self, shape: Shape, *, decoder: bool) -> None:
        super().__init__()
        self.self_norm = RMSNorm(shape.width, eps=1e-6)
        self.self_attention = Attention(shape)
        self.cross_norm = RMSNorm(shape.width, eps=1e-6) if decoder else None
        self.cross_attention = Attention(shape) if decoder else None
        self.feed_norm = RMSNorm(shape.width, eps=1e-6)
        self.widen = nn.Linear(shape.width, shape.hidden, bias=False)
        self.narrow = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        h = self.self_norm(x)
        x = x + self.self_attention(h, h, bias)
        if self.cross_norm is not None and self.cross_attention is not None and encoded is not None:
            x = x + self.cross_attention(self.cross_norm(x), encoded, None)
        fed: Tensor = x + self.narrow(F.relu(self.widen(self.feed_norm(x))))
        return fed


class T5(nn.Module):
    """source tokens [b, s], target tokens [b, t] -> logits [b, t, vocabulary]; the embedding is also the
    head.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.encoder_bias = PositionBias(shape.heads, bidirectional=True)
        self.decoder_bias = PositionBias(shape.heads, bidirectional=False)
        self.encoder = nn.ModuleList(Layer(shape, decoder=False) for _ in range(shape.layers))
        self.decoder = nn.ModuleList(Layer(shape, decoder=True) for _ in range(shape.layers))
        self.encoder_norm = RMSNorm(shape.width, eps=1e-6)
        self.decoder_norm = RMSNorm(shape.width, eps=1e-6)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        encoded = self.embedding(source)
        bias = self.encoder_bias(source.shape[1], source.device)
        for layer in self.encoder:
            encoded = layer(encoded, bias, None)
        encoded = self.encoder_norm(encoded)

        x = self.embedding(target)
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        causal = self.decoder_bias(length, target.device).masked_fill(future, float("-inf"))
        for layer in self.decoder:
            x = layer(x, causal, encoded)
        x = self.decoder_norm(x) * self.embedding.embedding_dim**-0.5
        return F.linear(x, self.embedding.weight)


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    batch, source, target = (2, 64, 32) if setting.size is not Size.FULL else (1, 256, 128)
    if setting.large:
        batch, source, target = 16, 512, 256
    vocabulary = at(SHAPES, setting.size).vocabulary
    return (
        tokens(vocabulary, (batch, source), setting, generator),
        tokens(vocabulary, (batch, target), setting, generator),
    )


CASES = (ModelCase(name="t5", build=T5, inputs=inputs),)
