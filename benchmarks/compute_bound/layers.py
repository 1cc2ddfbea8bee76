"""Layers of networks: recurrences, blocks of transformers and mixers, and steps of decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.compute_bound.case import Case, Program, draw
from benchmarks.compute_bound.products import gelu, normalise_root, rotate


class Recurrent(nn.Module):
    """A recurrent layer, and its results alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x)[0]
        return result


class Block(nn.Module):
    """A block of a transformer with norms before its parts."""

    def __init__(self, width: int, heads: int, *, is_causal: bool) -> None:
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(gelu(self.up(self.second(x))))
        return result


class GatedBlock(nn.Module):
    """The parts of a block as in Llama: root mean squares, rotary positions, groups of heads and SwiGLU."""

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, width // heads
        self.first, self.second = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        linear = partial(nn.Linear, bias=False)
        self.q, self.out = linear(width, width), linear(width, width)
        self.k, self.v = (linear(width, key_heads * self.size) for _ in range(2))
        self.gate, self.up, self.down = linear(width, hidden), linear(width, hidden), linear(hidden, width)

    def split(self, x: Tensor, heads: int) -> Tensor:
        """Return heads beside the batch."""
        return x.view(x.shape[0], -1, heads, self.size).transpose(1, 2)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of the normalised `x`."""
        y = normalise_root(x, self.first)
        q, k = self.split(self.q(y), self.heads), self.split(self.k(y), self.key_heads)
        return rotate(q, cos, sin), rotate(k, cos, sin), self.split(self.v(y), self.key_heads)

    def finish(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the block's result, from its input and what its heads found."""
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        z = normalise_root(x, self.second)
        result: Tensor = x + self.down(F.silu(self.gate(z)) * self.up(z))
        return result


class Prefill(GatedBlock):
    """A block over all tokens."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))


class Step(GatedBlock):
    """A step of decoding: one token, keys and values of all before it in memory of a fixed size."""

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, at: Tensor
    ) -> Tensor:
        q, k, v = self.project(x, cos, sin)
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, v)
        mask = torch.arange(keys.shape[2], device=x.device) <= at
        return self.finish(
            x, F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[None], enable_gqa=True)
        )


class ByteLinear(nn.Module):
    """A linear layer whose weight has 8 bits, and a scale for each column."""

    weight: Tensor
    scale: Tensor

    def __init__(self, inner: int, outer: int, bias: bool = False) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (outer, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(outer) * 0.03 / inner**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class Mixer(nn.Module):
    """A block of an MLP-mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token_up, self.token_down = nn.Linear(tokens, 2 * tokens), nn.Linear(2 * tokens, tokens)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.token_down(gelu(self.token_up(self.first(x).mT))).mT
        x = x + y
        result: Tensor = x + self.down(gelu(self.up(self.second(x))))
        return result


class SparseExperts(nn.Module):
    """A mixture of experts whose rows all experts see, weighed by a router: small, and in batches."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(torch.softmax(self.router(x), -1), 2)
        shares = torch.zeros(x.shape[0], self.up.shape[0], dtype=x.dtype, device=x.device)
        shares = shares.scatter(1, chosen, weights)
        hidden = F.silu(torch.einsum("td,edh->eth", x, self.up))
        return torch.einsum("eth,ehd,te->td", hidden, self.down, shares)


def build(make: Callable[[], nn.Module], *shape: int) -> Program:
    """Return a program of a module and its input."""
    return Program(function=make().bfloat16(), given=(draw(*shape),))


def build_gated(batch: int, length: int) -> Program:
    block = Prefill(2048, 16, 8, 5632).bfloat16()
    angles = torch.rand(length, block.size)
    return Program(
        function=block,
        given=(draw(batch, length, 2048), angles.cos().bfloat16(), angles.sin().bfloat16()),
    )


def build_step(batch: int, *, narrow: bool) -> Program:
    step = Step(4096, 32, 8, 14336)
    if narrow:
        for name, part in list(step.named_children()):
            if isinstance(part, nn.Linear):
                setattr(step, name, ByteLinear(part.in_features, part.out_features))
    angles, cache = torch.rand(1, step.size), (batch, 8, 2048, step.size)
    given = (
        draw(batch, 1, 4096),
        angles.cos().bfloat16(),
        angles.sin().bfloat16(),
        draw(*cache),
        draw(*cache),
    )
    return Program(function=step.bfloat16(), given=(*given, torch.tensor([1500])))


CASES: Final = (
    Case(
        name="lstm", build=partial(build, lambda: Recurrent(nn.LSTM(512, 512, batch_first=True)), 32, 64, 512)
    ),
    Case(
        name="gru", build=partial(build, lambda: Recurrent(nn.GRU(512, 512, batch_first=True)), 32, 64, 512)
    ),
    Case(name="block", build=partial(build, lambda: Block(1024, 16, is_causal=True), 4, 1024, 1024)),
    Case(name="block-vit", build=partial(build, lambda: Block(768, 12, is_causal=False), 32, 197, 768)),
    Case(name="block-gated", build=partial(build_gated, 2, 2048)),
    Case(name="mixer", build=partial(build, lambda: Mixer(196, 512), 64, 196, 512)),
    Case(name="experts-dense", build=partial(build, lambda: SparseExperts(512, 1024, 8), 2048, 512)),
    Case(name="step-1", build=partial(build_step, 1, narrow=False)),
    Case(name="step-16", build=partial(build_step, 16, narrow=False)),
    Case(name="step-int8-1", build=partial(build_step, 1, narrow=True)),
    Case(name="step-int8-16", build=partial(build_step, 16, narrow=True)),
    Case(
        name="block",
        build=partial(build, lambda: Block(1024, 16, is_causal=True), 4, 1024, 1024),
        trains=True,
    ),
    Case(name="block-gated", build=partial(build_gated, 1, 2048), trains=True),
    Case(name="mixer", build=partial(build, lambda: Mixer(196, 512), 64, 196, 512), trains=True),
    Case(
        name="lstm",
        build=partial(build, lambda: Recurrent(nn.LSTM(512, 512, batch_first=True)), 32, 64, 512),
        trains=True,
    ),
)
"""Cases of layers."""
