"""Whisper-tiny (Radford et al. 2022): convolutions over a spectrogram, an encoder, a decoder with
cross-attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, normal, tokens

BANDS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    heads: int
    layers: int
    frames: int
    positions: int


SHAPES = {
    Size.REDUCED: Shape(vocabulary=515, width=128, heads=4, layers=2, frames=96, positions=64),
    Size.FULL: Shape(vocabulary=51865, width=384, heads=6, layers=4, frames=3000, positions=448),
}


def sinusoids(length: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Sines and cosines of positions at geometric wavelengths up to 10,000. Shape: [length, width]."""
    half = width // 2
    rates = torch.exp(
        -math.log(10000.0) / (half - 1) * torch.arange(half, device=device, dtype=torch.float64)
    )
    angles = torch.arange(length, device=device, dtype=torch.float64)[:, None] * rates[None, :]
    return torch.cat((angles.sin(), angles.cos()), dim=1).to(dtype)


class Attention(nn.Module):
    """Attention of `x` [b, s, width] to `source` [b, t, width]; keys have no bias."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def _per_head(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor, source: Tensor, *, causal: bool = False) -> Tensor:
        query = self._per_head(self.query(x))
        key, value = self._per_head(self.key(source)), self._per_head(self.value(source))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
        mixed: Tensor = self.output(attended.transpose(1, 2).reshape(x.shape))
        return mixed


class Layer(nn.Module):
    """Pre-norm attention, in a decoder also attention to what was heard, and feed-forward."""

    def __init__(self, shape: Shape, *, decodes: bool) -> None:
        super().__init__()
        width = shape.width
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, shape.heads)
        self.cross_norm = nn.LayerNorm(width) if decodes else None
        self.cross = Attention(width, shape.heads) if decodes else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, heard: Tensor | None = None) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, causal=heard is not None)
        if heard is not None and self.cross is not None and self.cross_norm is not None:
            x = x + self.cross(self.cross_norm(x), heard)
        fed: Tensor = x + self.down(F.gelu(self.up(self.feed_norm(x))))
        return fed


class Whisper(nn.Module):
    """Spectrogram [b, bands, frames] and tokens [b, s] -> logits [b, s, vocabulary]; the head is the
    embedding.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.shape = shape = at(SHAPES, size)
        self.first = nn.Conv1d(BANDS, shape.width, 3, padding=1)
        self.second = nn.Conv1d(shape.width, shape.width, 3, stride=2, padding=1)
        self.encoder = nn.ModuleList(Layer(shape, decodes=False) for _ in range(shape.layers))
        self.encoder_norm = nn.LayerNorm(shape.width)
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.randn(shape.positions, shape.width) * 0.02)
        self.decoder = nn.ModuleList(Layer(shape, decodes=True) for _ in range(shape.layers))
        self.decoder_norm = nn.LayerNorm(shape.width)

    def forward(self, spectrogram: Tensor, token_ids: Tensor) -> Tensor:
        heard = F.gelu(self.second(F.gelu(self.first(spectrogram)))).transpose(1, 2)
        heard = heard + sinusoids(heard.shape[1], self.shape.width, heard.dtype, heard.device)
        for layer in self.encoder:
            heard = layer(heard)
        heard = self.encoder_norm(heard)
        x = self.words(token_ids) + self.positions[: token_ids.shape[1]]
        for layer in self.decoder:
            x = layer(x, heard)
        logits: Tensor = self.decoder_norm(x) @ self.words.weight.t()
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = at(SHAPES, setting.size)
    batch = 2 if setting.size is not Size.FULL else 8 if setting.large else 1
    length = min(shape.positions, 32 if setting.size is not Size.FULL else 128)
    spectrogram = normal((batch, BANDS, shape.frames), setting, generator)
    return spectrogram, tokens(shape.vocabulary, (batch, length), setting, generator)


CASES = (ModelCase(name="whisper", build=Whisper, inputs=inputs),)
