"""A small diffusion U-Net (Ho et al. 2020): timestep embedding, group norm and SiLU, attention at the lowest
level.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.attention import SelfAttention
from benchmarks.models.case import ModelCase, Setting, Size, at, normal

# Width of the first level, levels, image side.
SHAPES = {Size.REDUCED: (32, 2, 16), Size.FULL: (128, 3, 64)}


def timestep_embedding(steps: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sines and cosines of the steps [b] at geometric frequencies: [b, width] in `dtype`."""
    half = width // 2
    exponents = torch.arange(half, device=steps.device, dtype=dtype) / half
    angles = steps[:, None].to(dtype) * torch.exp(-math.log(10000.0) * exponents)[None, :]
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions behind group norm and SiLU, with the timestep's embedding added in between."""

    def __init__(self, incoming: int, outgoing: int, embedding: int) -> None:
        super().__init__()
        self.first_norm = nn.GroupNorm(8, incoming)
        self.first = nn.Conv2d(incoming, outgoing, 3, padding=1)
        self.time = nn.Linear(embedding, outgoing)
        self.second_norm = nn.GroupNorm(8, outgoing)
        self.second = nn.Conv2d(outgoing, outgoing, 3, padding=1)
        self.shortcut = nn.Identity() if incoming == outgoing else nn.Conv2d(incoming, outgoing, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(F.silu(self.first_norm(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        h = self.second(F.silu(self.second_norm(h)))
        added: Tensor = h + self.shortcut(x)
        return added


class SpatialAttention(nn.Module):
    """Self-attention over the positions of a feature map [b, c, h, w]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.attention = SelfAttention(width, heads=4)

    def forward(self, x: Tensor) -> Tensor:
        sequence = self.norm(x).flatten(2).transpose(1, 2)
        mixed: Tensor = x + self.attention(sequence).transpose(1, 2).reshape(x.shape)
        return mixed


class UNet(nn.Module):
    """noisy images [b, 3, side, side], steps [b] -> predicted noise, same shape as the images."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.width, levels, _ = at(SHAPES, size)
        embedding = 4 * self.width
        widths = [self.width << level for level in range(levels)]
        self.time = nn.Sequential(
            nn.Linear(self.width, embedding), nn.SiLU(), nn.Linear(embedding, embedding)
        )
        self.enter = nn.Conv2d(3, self.width, 3, padding=1)
        self.down = nn.ModuleList()
        self.shrink = nn.ModuleList()
        incoming = self.width
        for width in widths:
            self.down.append(ResidualBlock(incoming, width, embedding))
            self.shrink.append(nn.Conv2d(width, width, 3, stride=2, padding=1))
            incoming = width
        self.middle_first = ResidualBlock(incoming, incoming, embedding)
        self.middle_attention = SpatialAttention(incoming)
        self.middle_second = ResidualBlock(incoming, incoming, embedding)
        self.up = nn.ModuleList()
        for width in reversed(widths):
            self.up.append(ResidualBlock(incoming + width, width, embedding))
            incoming = width
        self.leave_norm = nn.GroupNorm(8, incoming)
        self.leave = nn.Conv2d(incoming, 3, 3, padding=1)

    def forward(self, images: Tensor, steps: Tensor) -> Tensor:
        wide = torch.promote_types(images.dtype, torch.float32)
        time = self.time(timestep_embedding(steps, self.width, wide).to(images.dtype))
        x = self.enter(images)
        skips = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, time)
            skips.append(x)
            x = shrink(x)
        x = self.middle_second(self.middle_attention(self.middle_first(x, time)), time)
        for block in self.up:
            x = torch.cat((F.interpolate(x, scale_factor=2.0, mode="nearest"), skips.pop()), dim=1)
            x = block(x, time)
        noise: Tensor = self.leave(F.silu(self.leave_norm(x)))
        return noise


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    side = at(SHAPES, setting.size)[2]
    batch = 16 if setting.large else 2
    steps = torch.randint(1000, (batch,), generator=generator).to(setting.device)
    return normal((batch, 3, side, side), setting, generator), steps


CASES = (ModelCase(name="unet", build=UNet, inputs=inputs),)
