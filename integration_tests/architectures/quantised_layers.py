"""Linear layers with quantised weights, written as users of quantisation libraries write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

# Columns of a weight of 4 bits that share a scale.
GROUP: Final = 16


class Int8Linear(nn.Module):
    """Weights of 8 bits, one scale for each row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale, weight = _quantise_rows(linear.weight.detach())
        self.register_buffer("weight_8", weight)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_8.to(x.dtype) * self.scale.to(x.dtype), self.bias)


class Int4Linear(nn.Module):
    """Weights of 4 bits, two in a byte, with a scale and a smallest number for each `GROUP` of a row."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns = linear.weight.shape
        groups = linear.weight.detach().reshape(rows, columns // GROUP, GROUP)
        lowest = groups.amin(-1, keepdim=True)
        scale = (groups.amax(-1, keepdim=True) - lowest).clamp(min=1e-8) / 15
        numbers = ((groups - lowest) / scale).round().to(torch.uint8).reshape(rows, columns)
        self.register_buffer("packed", numbers[:, ::2] | (numbers[:, 1::2] << 4))
        self.register_buffer("lowest", lowest)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        rows = self.packed.shape[0]
        numbers = torch.stack([self.packed & 15, self.packed >> 4], dim=-1).reshape(rows, -1, GROUP)
        weight = (numbers.to(x.dtype) * self.scale + self.lowest).reshape(rows, -1)
        return functional.linear(x, weight.to(x.dtype), self.bias)


class DynamicInt8Linear(nn.Module):
    """Weights of 8 bits, and operands that are quantised row by row when they arrive."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale, weight = _quantise_rows(linear.weight.detach())
        self.register_buffer("weight_8", weight)
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        scale, numbers = _quantise_rows(x.reshape(-1, x.shape[-1]))
        product = torch._int_mm(numbers, self.weight_8.t()).to(x.dtype)
        result = (product * scale * self.scale.t().to(x.dtype)).reshape(*x.shape[:-1], -1)
        return result if self.bias is None else result + self.bias


class Float8Linear(nn.Module):
    """Weights of 8-bit floats, and one scale."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax().clamp(min=1e-8) / torch.finfo(torch.float8_e4m3fn).max
        self.register_buffer("weight_8", (weight / scale).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight_8.to(x.dtype) * self.scale.to(x.dtype), self.bias)


SCHEMES: Final[tuple[Callable[[nn.Linear], nn.Module], ...]] = (
    Int8Linear,
    Int4Linear,
    DynamicInt8Linear,
    Float8Linear,
)


def quantise_layers(model: nn.Module) -> int:
    """Replace the linear layers inside of `model`, by each of `SCHEMES` in turn; returns how many.

    Layers whose rows `GROUP` does not divide are left.
    """
    layers = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear and layer.in_features % GROUP == 0
    ]
    for k, (parent, name, layer) in enumerate(layers):
        setattr(parent, name, SCHEMES[k % len(SCHEMES)](layer))
    return len(layers)


def _quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of each row, and the row in 8 bits."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127
    return scale, (rows / scale).round().clamp(-128, 127).to(torch.int8)
