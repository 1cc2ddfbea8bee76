"""The model that ranks share: a decoder of a few blocks, with the names that torch's plans use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of a model and of its batch."""

    width: int
    heads: int
    layers: int
    vocabulary: int
    batch: int
    length: int
    dtype: torch.dtype

    def tokens(self, number: int, *, rank: int = 0) -> tuple[Tensor, Tensor]:
        """Batch `number` of `rank`, on the CPU: tokens and their successors, of shape (batch, length)."""
        generator = torch.Generator().manual_seed(1000 * number + rank)
        shape = (self.batch, self.length + 1)
        drawn = torch.randint(self.vocabulary, shape, generator=generator)
        # every other token repeats the one before: something to learn
        drawn[:, 1::2] = drawn[:, 0::2][:, : drawn[:, 1::2].shape[1]]
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


class Attention(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.head_width = scale.width // scale.heads
        self.wq, self.wk, self.wv, self.wo = (
            nn.Linear(scale.width, scale.width, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length = x.shape[0], x.shape[1]
        # of as many heads as this rank has
        q, k, v = (
            part(x).view(batch, length, -1, self.head_width).transpose(1, 2)
            for part in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.w1 = nn.Linear(scale.width, 4 * scale.width)
        self.w2 = nn.Linear(4 * scale.width, scale.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x), approximate="tanh"))


class Block(nn.Module):
    """`checkpoints`: its activations are computed again in backward. `mixer` may stand for the feed-forward
    part."""

    def __init__(self, scale: Scale, *, checkpoints: bool = False, mixer: nn.Module | None = None) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.LayerNorm(scale.width), nn.LayerNorm(scale.width)
        self.attention = Attention(scale)
        self.feed_forward = FeedForward(scale) if mixer is None else mixer
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoints:
            mixed: Tensor = checkpoint(self.mix, x, use_reentrant=False)
            return mixed
        return self.mix(x)

    def mix(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Decoder(nn.Module):
    """Logits (batch, length, vocabulary) of tokens (batch, length)."""

    def __init__(self, scale: Scale, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(scale.vocabulary, scale.width)
        self.layers = nn.ModuleList(Block(scale, checkpoints=checkpoints) for _ in range(scale.layers))
        self.norm = nn.LayerNorm(scale.width)
        self.output = nn.Linear(scale.width, scale.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.output(self.norm(x))
        return logits


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross entropy, a scalar."""
    flat = logits.flatten(0, 1)
    return F.cross_entropy(flat.float() if flat.dtype.itemsize < 4 else flat, targets.flatten())
