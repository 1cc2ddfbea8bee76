"""Stacks of random layers, by which copies of layers are looked for mistakes (`repeated_layers.py`).

Layers of a stack are equal, and some stacks have what makes copying hard: layers that read values of layers
before, take turns, share weights or read them transposed, results of each layer, and an end that reads some
layers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

TOKENS: Final = 4
WIDTH: Final = 8


def _by_heads(y: Tensor) -> Tensor:
    heads: Tensor = y.unflatten(-1, (2, -1)).transpose(1, 2)
    return heads


Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
OPERATIONS: Final[Mapping[str, Operation]] = {
    "product": lambda y, weight, bias, mask: F.linear(y, weight, bias),
    "transposed": lambda y, weight, bias, mask: y @ weight,
    "norm": lambda y, weight, bias, mask: F.layer_norm(y, (WIDTH,), bias),
    "mean square": lambda y, weight, bias, mask: (
        y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1) * bias
    ),
    "gelu": lambda y, weight, bias, mask: F.gelu(y),
    "gate": lambda y, weight, bias, mask: y * torch.sigmoid(y + bias),
    "scores": lambda y, weight, bias, mask: torch.softmax(y + mask, -1),
    "attention": lambda y, weight, bias, mask: torch.softmax(y @ y.mT, -1) @ y,
    "halves": lambda y, weight, bias, mask: torch.cat([y[..., 4:] * 2, y[..., :4].sin()], -1),
    "flip": lambda y, weight, bias, mask: y.flip(1).cumsum(1),
    "heads": lambda y, weight, bias, mask: _by_heads(y).exp().transpose(1, 2).flatten(-2),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A stack of layers.

    Attributes:
        body: operations of a layer.
        turns: how many kinds of layers take turns, which differ in the mask that they read.
        skips: a layer reads the value so many layers before, 0 for none.
        shares: how many layers in a row have one weight.
        end: what is read behind all layers.
        returns: what of each layer is a result.
        makes_mask: the mask is computed: never, before all layers, or in each.
    """

    body: tuple[str, ...]
    layers: int
    turns: int
    residual: bool
    skips: int
    shares: int
    end: str
    returns: str
    makes_mask: str

    def __call__(self, x: Tensor, mask: Tensor, *weights: Tensor) -> list[Tensor]:
        """Shapes: `x` and `mask` are [2, TOKENS, WIDTH], weights alternate [WIDTH, WIDTH] and [WIDTH]."""
        hidden, results, given = [x], [], mask
        if self.makes_mask == "before":
            mask = (given > 0).to(x.dtype) * -1.0
        masks = [mask * (kind + 1) if kind else mask for kind in range(self.turns)]
        for layer in range(self.layers):
            place = layer // self.shares
            weight, bias = weights[2 * place], weights[2 * layer + 1]
            own = masks[layer % self.turns]
            if self.makes_mask == "in each":
                own = torch.where(given > 0, 0.0, -1.0).to(x.dtype)
            y = x
            for operation in self.body:
                y = OPERATIONS[operation](y, weight, bias, own)
            if self.skips and layer >= self.skips:
                y = y + hidden[layer + 1 - self.skips]
            x = x + y if self.residual else y
            hidden.append(x)
            if self.returns:
                results += {"sums": [x], "weights": [bias * 2, y.transpose(0, 1)]}[self.returns]
        if self.end == "last four":
            x = torch.cat(hidden[-4:], -1)
        elif self.end == "early":
            x = x * hidden[1]
        elif self.end == "weights":
            x = x @ weights[2 * (self.layers - 1) // self.shares // 2 * 2] + weights[1]
        return [x.exp().sum(-1), *reversed(results)]

    def draw_arguments(self, dtype: torch.dtype) -> list[Tensor]:
        """Random arguments; all but the mask want gradients."""
        shapes = [(2, TOKENS, WIDTH)] * 2 + [(WIDTH, WIDTH), (WIDTH,)] * self.layers
        made = [torch.randn(*shape) * 0.3 for shape in shapes]
        return [one.to(dtype).requires_grad_(place != 1) for place, one in enumerate(made)]


def draw_stack(seed: int) -> Stack:
    """The stack of `seed`."""
    rng = random.Random(seed)
    return Stack(
        body=tuple(rng.choices(tuple(OPERATIONS), k=rng.randint(1, 5))),
        layers=rng.randint(7, 13),
        turns=rng.choice((1, 1, 1, 2)),
        residual=rng.random() < 0.6,
        skips=rng.choice((0, 0, 0, 1, 2, 3)),
        shares=rng.choice((1, 1, 1, 1, 2, 13)),
        end=rng.choice(("", "", "last four", "early", "weights")),
        returns=rng.choice(("", "", "sums", "weights")),
        makes_mask=rng.choice(("", "before", "in each")),
    )
