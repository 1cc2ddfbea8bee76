"""ConvNeXt (Liu et al. 2022): depthwise 7x7, channel layer norm, inverted bottleneck, layer scale."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, normal

# Width, number of blocks, side of the feature map: stage 3 of ConvNeXt-T behind the downsampling into it.
SHAPES = {Size.REDUCED: (128, 2, 14), Size.FULL: (384, 9, 28)}


class Block(nn.Module):
    """x [b, c, h, w] -> the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(x).permute(0, 2, 3, 1)
        h = self.scale * self.narrow(F.gelu(self.widen(self.norm(h))))
        mixed: Tensor = x + h.permute(0, 3, 1, 2)
        return mixed


class Stage(nn.Module):
    """Channel norm and 2x2 downsampling, then the blocks: [b, c/2, side, side] -> [b, c, side/2, side/2]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, depth, _ = at(SHAPES, size)
        self.norm = nn.LayerNorm(width // 2, eps=1e-6)
        self.down = nn.Conv2d(width // 2, width, 2, stride=2)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        features: Tensor = self.blocks(self.down(x))
        return features


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    width, _, side = at(SHAPES, setting.size)
    batch = 64 if setting.large else 2
    return (normal((batch, width // 2, side, side), setting, generator),)


CASES = (ModelCase(name="convnext", build=Stage, inputs=inputs, note="one stage of ConvNeXt-T"),)
