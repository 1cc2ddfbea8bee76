"""A Mamba-2 language model (Dao and Gu 2024): state-space layers, computed in chunks by the paper's listing
1.
"""

from __future__ import annotations

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
    layers: int
    state: int
    head_width: int
    chunk: int
    window: int = 4

    @property
    def inner(self) -> int:
        return 2 * self.width

    @property
    def heads(self) -> int:
        return self.inner // self.head_width


SHAPES = {
    Size.REDUCED: Shape(vocabulary=512, width=128, layers=2, state=16, head_width=32, chunk=16),
    Size.FULL: Shape(vocabulary=50288, width=768, layers=8, state=128, head_width=64, chunk=64),
}


def decays(steps: Tensor) -> Tensor:
    """exp of the sum of steps j+1 to i for j <= i, and 0 above. Shapes: [..., n] -> [..., n, n]."""
    length = steps.shape[-1]
    sums = steps.cumsum(-1)
    apart = sums[..., :, None] - sums[..., None, :]
    kept = torch.ones(length, length, dtype=torch.bool, device=steps.device).tril()
    return apart.masked_fill(~kept, float("-inf")).exp()


def scan(x: Tensor, steps: Tensor, into: Tensor, out_of: Tensor, chunk: int) -> Tensor:
    """The recurrence h = exp(step) h + into x, y = out_of h, chunk by chunk.

    Shapes: x [b, s, heads, head_width], steps [b, s, heads], into and out_of [b, s, state]; s is a multiple
    of `chunk`.
    """
    batch, length, heads, _ = x.shape
    x, into, out_of = (t.unflatten(1, (length // chunk, chunk)) for t in (x, into, out_of))
    steps = steps.view(batch, length // chunk, chunk, heads).permute(0, 3, 1, 2)
    sums = steps.cumsum(-1)
    within = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", out_of, into, decays(steps).to(x.dtype), x)
    to_end = (sums[..., -1:] - sums).exp().to(x.dtype)
    states = torch.einsum("bcln,bhcl,bclhp->bchpn", into, to_end, x)
    states = torch.cat((torch.zeros_like(states[:, :1]), states), dim=1)
    across = decays(F.pad(sums[..., -1], (1, 0))).to(x.dtype)
    states = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
    before = torch.einsum("bcln,bchpn,bhcl->bclhp", out_of, states, sums.exp().to(x.dtype))
    return (within + before).flatten(1, 2)


class Mixer(nn.Module):
    """Projection, causal convolution, state-space scan, gated norm. x [b, s, width] -> the same."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        mixed = shape.inner + 2 * shape.state
        self.enter = nn.Linear(shape.width, shape.inner + mixed + shape.heads, bias=False)
        self.window = nn.Conv1d(mixed, mixed, shape.window, groups=mixed, padding=shape.window - 1)
        self.step_bias = nn.Parameter(torch.linspace(-4.0, -1.0, shape.heads))
        self.log_rate = nn.Parameter(torch.linspace(1.0, 8.0, shape.heads).log())
        self.skip = nn.Parameter(torch.ones(shape.heads))
        self.norm = RMSNorm(shape.inner)
        self.leave = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        shape, length = self.shape, x.shape[1]
        gate, mixed, step = self.enter(x).split(
            (shape.inner, shape.inner + 2 * shape.state, shape.heads), dim=-1
        )
        mixed = F.silu(self.window(mixed.transpose(1, 2))[..., :length].transpose(1, 2))
        values, into, out_of = mixed.split((shape.inner, shape.state, shape.state), dim=-1)
        wide = torch.promote_types(x.dtype, torch.float32)
        step = F.softplus(step.to(wide) + self.step_bias.to(wide))
        values = values.unflatten(-1, (shape.heads, shape.head_width))
        moved = scan(
            values * step.to(x.dtype)[..., None],
            step * -self.log_rate.to(wide).exp(),
            into,
            out_of,
            shape.chunk,
        )
        moved = (moved + values * self.skip[:, None]).flatten(2)
        left: Tensor = self.leave(self.norm(moved * F.silu(gate)))
        return left


class Mamba(nn.Module):
    """tokens [b, s] -> logits [b, s, vocabulary]; the head is the embedding."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.norms = nn.ModuleList(RMSNorm(shape.width) for _ in range(shape.layers))
        self.mixers = nn.ModuleList(Mixer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.embedding(token_ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        logits: Tensor = self.norm(x) @ self.embedding.weight.t()
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    shape = (2, 64) if setting.size is not Size.FULL else (8, 1024) if setting.large else (1, 256)
    return (tokens(at(SHAPES, setting.size).vocabulary, shape, setting, generator),)


CASES = (ModelCase(name="mamba", build=Mamba, inputs=inputs),)
