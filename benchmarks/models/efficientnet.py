"""EfficientNet-B0 (Tan and Le 2019): depthwise 3x3 and 5x5 convolutions between 1x1 ones, with
squeeze-and-excitation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, normal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Blocks of one width; the first of them takes the stride and comes from the stage before."""

    widening: int
    kernel: int
    stride: int
    width: int
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    side: int
    stem: int
    stages: tuple[Stage, ...]
    head: int
    classes: int


SHAPES = {
    Size.SMALL: Shape(
        side=16,
        stem=8,
        stages=(
            Stage(widening=1, kernel=3, stride=1, width=8, depth=1),
            Stage(widening=6, kernel=5, stride=2, width=16, depth=1),
        ),
        head=32,
        classes=10,
    ),
    Size.REDUCED: Shape(
        side=32,
        stem=16,
        stages=(
            Stage(widening=1, kernel=3, stride=1, width=8, depth=1),
            Stage(widening=6, kernel=5, stride=2, width=16, depth=2),
        ),
        head=128,
        classes=100,
    ),
    Size.FULL: Shape(
        side=224,
        stem=32,
        stages=(
            Stage(widening=1, kernel=3, stride=1, width=16, depth=1),
            Stage(widening=6, kernel=3, stride=2, width=24, depth=2),
            Stage(widening=6, kernel=5, stride=2, width=40, depth=2),
            Stage(widening=6, kernel=3, stride=2, width=80, depth=3),
            Stage(widening=6, kernel=5, stride=1, width=112, depth=3),
            Stage(widening=6, kernel=5, stride=2, width=192, depth=4),
            Stage(widening=6, kernel=3, stride=1, width=320, depth=1),
        ),
        head=1280,
        classes=1000,
    ),
}


def normalized(incoming: int, outgoing: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Module:
    """A convolution that keeps the side (but for the stride), and batch norm."""
    return nn.Sequential(
        nn.Conv2d(incoming, outgoing, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outgoing),
    )


class Excitation(nn.Module):
    """Each channel times a number in (0, 1) that follows from all channels' means: [b, c, h, w] -> the same
    shape.
    """

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(width, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3), keepdim=True)
        return x * torch.sigmoid(self.excite(F.silu(self.squeeze(means))))


class Block(nn.Module):
    """1x1 widening, depthwise convolution, excitation, 1x1 narrowing; added to its input where shapes are
    equal.
    """

    def __init__(self, incoming: int, outgoing: int, *, widening: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = widening * incoming
        self.widen = nn.Sequential()
        if widening != 1:
            self.widen = nn.Sequential(normalized(incoming, width, 1), nn.SiLU())
        self.depthwise = normalized(width, width, kernel, stride=stride, groups=width)
        self.excitation = Excitation(width, incoming // 4)
        self.narrow = normalized(width, outgoing, 1)
        self.residual = stride == 1 and incoming == outgoing

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.depthwise(self.widen(x)))
        narrowed: Tensor = self.narrow(self.excitation(h))
        return x + narrowed if self.residual else narrowed


class EfficientNet(nn.Module):
    """images [b, 3, side, side] -> logits [b, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        shape = at(SHAPES, size)
        self.stem = normalized(3, shape.stem, 3, stride=2)
        blocks: list[nn.Module] = []
        incoming = shape.stem
        for stage in shape.stages:
            for index in range(stage.depth):
                stride = stage.stride if index == 0 else 1
                kind = {"widening": stage.widening, "kernel": stage.kernel, "stride": stride}
                blocks.append(Block(incoming, stage.width, **kind))
                incoming = stage.width
        self.blocks = nn.Sequential(*blocks)
        self.widen = normalized(incoming, shape.head, 1)
        self.head = nn.Linear(shape.head, shape.classes)
        # With torch's own weights next to nothing of the images would be left in the logits, whatever a
        # kernel does wrong.
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        x = self.blocks(F.silu(self.stem(images)))
        x = F.silu(self.widen(x))
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    side = at(SHAPES, setting.size).side
    batch = 64 if setting.large else 4
    return (normal((batch, 3, side, side), setting, generator),)


CASES = (
    ModelCase(
        name="efficientnet",
        build=EfficientNet,
        inputs=inputs,
        note="without dropout and stochastic depth, which training alone has",
    ),
)
