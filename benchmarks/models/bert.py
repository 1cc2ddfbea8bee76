"""BERT-base (Devlin et al. 2018): post-norm encoder with padding mask and masked-token head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.attention import SelfAttention
from benchmarks.models.case import ModelCase, Setting, Size, at, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    vocabulary: int
    width: int
    heads: int
    layers: int
    positions: int = 512


SHAPES = {
    Size.SMALL: Shape(vocabulary=512, width=128, heads=2, layers=2),
    Size.REDUCED: Shape(vocabulary=512, width=256, heads=4, layers=2),
    Size.FULL: Shape(vocabulary=30522, width=768, heads=12, layers=12),
}


class Layer(nn.Module):
    """Attention and a GELU feed-forward, each followed by residual add and layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        normed: Tensor = self.output_norm(x + self.narrow(F.gelu(self.widen(x))))
        return normed


class Bert(nn.Module):
    """tokens [b, s], padding mask [b, s] (True on real tokens) -> logits [b, s, vocabulary]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.words = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.positions, shape.width)
        self.segments = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=1e-12)
        self.layers = nn.ModuleList(Layer(shape.width, shape.heads) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, shape.width)
        self.head_norm = nn.LayerNorm(shape.width, eps=1e-12)
        self.decoder = nn.Linear(shape.width, shape.vocabulary)

    def forward(self, token_ids: Tensor, padding: Tensor) -> Tensor:
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)
        segments = torch.zeros_like(token_ids)
        x = self.norm(self.words(token_ids) + self.positions(positions) + self.segments(segments))
        mask = padding[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        logits: Tensor = self.decoder(self.head_norm(F.gelu(self.head(x))))
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    batch, length = (2, 64) if setting.size is not Size.FULL else (16, 512) if setting.large else (1, 256)
    token_ids = tokens(at(SHAPES, setting.size).vocabulary, (batch, length), setting, generator)
    lengths = length - torch.arange(batch, device=setting.device) * (length // (2 * batch))
    return token_ids, torch.arange(length, device=setting.device) < lengths[:, None]


def masked_token_loss(logits: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """Mean cross entropy of each seventh token, padding left out. Shapes: [b, s, v]; [b, s] and [b, s]."""
    token_ids, padding = inputs
    asked = padding & (torch.arange(token_ids.shape[1], device=token_ids.device) % 7 == 3)
    return F.cross_entropy(logits.flatten(0, 1), token_ids.masked_fill(~asked, -100).flatten())


CASES = (ModelCase(name="bert", build=Bert, inputs=inputs, loss=masked_token_loss),)
