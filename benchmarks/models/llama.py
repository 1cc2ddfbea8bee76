"""A Llama-style decoder (Touvron et al. 2023): RMS norm, rotary positions, SwiGLU, grouped-query
attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, next_token_loss, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    heads: int
    key_heads: int
    hidden: int
    layers: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


SHAPES = {
    Size.SMALL: Shape(vocabulary=512, width=128, heads=4, key_heads=2, hidden=352, layers=2),
    Size.REDUCED: Shape(vocabulary=512, width=256, heads=8, key_heads=2, hidden=704, layers=2),
    Size.FULL: Shape(vocabulary=32000, width=1024, heads=16, key_heads=4, hidden=2816, layers=12),
}


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, computed in float32 (float64 stays float64)."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * self.weight


def rotary_angles(
    length: int, head_width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of position times frequency, each [length, head_width] in `dtype` (Su et
    al. 2021).
    """
    exponents = torch.arange(0, head_width, 2, device=device, dtype=dtype) / head_width
    positions = torch.arange(length, device=device, dtype=dtype)
    angles = positions[:, None] * (10000.0**-exponents)[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + half]) of x [b, h, s, d] by its angle."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class Attention(nn.Module):
    """Causal attention in which `heads / key_heads` query heads share each key and value head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.query = nn.Linear(shape.width, shape.heads * shape.head_width, bias=False)
        self.key = nn.Linear(shape.width, shape.key_heads * shape.head_width, bias=False)
        self.value = nn.Linear(shape.width, shape.key_heads * shape.head_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        batch, length, width = x.shape
        per_head = (batch, length, -1, self.shape.head_width)
        query = rotate(self.query(x).view(per_head).transpose(1, 2), cosines, sines)
        key = rotate(self.key(x).view(per_head).transpose(1, 2), cosines, sines)
        value = self.value(x).view(per_head).transpose(1, 2)
        group = self.shape.heads // self.shape.key_heads
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.output(attended.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Layer(nn.Module):
    """Pre-norm attention and SwiGLU feed-forward."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = RMSNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        h = self.feed_norm(x)
        fed: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return fed


class Llama(nn.Module):
    """tokens [b, s] -> logits [b, s, vocabulary]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.shape = at(SHAPES, size)
        self.embedding = nn.Embedding(self.shape.vocabulary, self.shape.width)
        self.layers = nn.ModuleList(Layer(self.shape) for _ in range(self.shape.layers))
        self.norm = RMSNorm(self.shape.width)
        self.head = nn.Linear(self.shape.width, self.shape.vocabulary, bias=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        wide = torch.promote_types(x.dtype, torch.float32)
        cosines, sines = rotary_angles(token_ids.shape[1], self.shape.head_width, token_ids.device, wide)
        cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        logits: Tensor = self.head(self.norm(x))
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (2, 64) if setting.size is not Size.FULL else (8, 1024) if setting.large else (1, 256)
    return (tokens(at(SHAPES, setting.size).vocabulary, shape, setting, generator),)


CASES = (
    ModelCase(name="llama", build=Llama, inputs=inputs, loss=next_token_loss, dynamic_dims=((0, 0), (0, 1))),
)
