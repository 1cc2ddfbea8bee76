"""ViT-B/16 (Dosovitskiy et al. 2020): patch embedding, class token, pre-norm encoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.attention import SelfAttention
from benchmarks.models.case import ModelCase, Setting, Size, at, first_classes_loss, normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    image: int
    patch: int
    width: int
    heads: int
    layers: int
    classes: int


SHAPES = {
    Size.SMALL: Shape(image=64, patch=16, width=128, heads=2, layers=2, classes=100),
    Size.REDUCED: Shape(image=64, patch=16, width=256, heads=4, layers=2, classes=100),
    Size.FULL: Shape(image=224, patch=16, width=768, heads=12, layers=12, classes=1000),
}


class Layer(nn.Module):
    """Pre-norm attention and GELU feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = SelfAttention(width, heads)
        self.feed_norm = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        fed: Tensor = x + self.narrow(F.gelu(self.widen(self.feed_norm(x))))
        return fed


class ViT(nn.Module):
    """images [b, 3, side, side] -> logits [b, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.patches = nn.Conv2d(3, shape.width, shape.patch, stride=shape.patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, shape.width) * 0.02)
        count = (shape.image // shape.patch) ** 2 + 1
        self.positions = nn.Parameter(torch.randn(1, count, shape.width) * 0.02)
        self.layers = nn.ModuleList(Layer(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width, eps=1e-6)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(images.shape[0], -1, -1), patches), dim=1) + self.positions
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    side = at(SHAPES, setting.size).image
    batch = 64 if setting.large else 2
    return (normal((batch, 3, side, side), setting, generator),)


CASES = (ModelCase(name="vit", build=ViT, inputs=inputs, loss=first_classes_loss),)
