"""A Mixtral-style decoder (Jiang et al. 2024): each token's feed-forward is computed by two of eight experts.

Every expert takes the rows of the tokens that chose it, however many they are: sizes that only the data know.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models import llama
from benchmarks.models.case import ModelCase, Setting, Size, at, tokens
from benchmarks.models.llama import Attention, RMSNorm, rotary_angles


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    decoder: llama.Shape
    experts: int = 8
    chosen: int = 2


SHAPES = {
    Size.REDUCED: Shape(
        decoder=llama.Shape(vocabulary=512, width=128, heads=4, key_heads=2, hidden=192, layers=2), experts=4
    ),
    Size.FULL: Shape(
        decoder=llama.Shape(vocabulary=32000, width=1024, heads=16, key_heads=4, hidden=1792, layers=4)
    ),
}


class Expert(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        fed: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return fed


class Mixture(nn.Module):
    """The weighted sum of what the chosen experts make of each token. x [tokens, width] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.chosen = shape.chosen
        self.router = nn.Linear(shape.decoder.width, shape.experts, bias=False)
        self.experts = nn.ModuleList(
            Expert(shape.decoder.width, shape.decoder.hidden) for _ in range(shape.experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        weights, chosen = torch.topk(self.router(x).to(wide).softmax(-1), self.chosen, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return mixed


class Layer(nn.Module):
    """Pre-norm attention and mixture of experts."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = RMSNorm(shape.decoder.width), RMSNorm(shape.decoder.width)
        self.attention = Attention(shape.decoder)
        self.mixture = Mixture(shape)

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosines, sines)
        mixed: Tensor = x + self.mixture(self.feed_norm(x).flatten(0, 1)).view(x.shape)
        return mixed


class Mixtral(nn.Module):
    """tokens [b, s] -> logits [b, s, vocabulary]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.head_width = shape.decoder.head_width
        self.embedding = nn.Embedding(shape.decoder.vocabulary, shape.decoder.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.decoder.layers))
        self.norm = RMSNorm(shape.decoder.width)
        self.head = nn.Linear(shape.decoder.width, shape.decoder.vocabulary, bias=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        wide = torch.promote_types(x.dtype, torch.float32)
        cosines, sines = rotary_angles(token_ids.shape[1], self.head_width, token_ids.device, wide)
        cosines, sines = cosines.to(x.dtype), sines.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosines, sines)
        logits: Tensor = self.head(self.norm(x))
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (2, 32) if setting.size is not Size.FULL else (4, 512) if setting.large else (1, 128)
    return (tokens(at(SHAPES, setting.size).decoder.vocabulary, shape, setting, generator),)


CASES = (
    ModelCase(
        name="mixtral",
        build=Mixtral,
        inputs=inputs,
        dynamo={"capture_dynamic_output_shape_ops": True},
        note="a token whose second and third expert score alike may be routed differently after rounding",
    ),
)
