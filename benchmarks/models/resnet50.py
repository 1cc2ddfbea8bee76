"""ResNet-50 (He et al. 2015, stride in the 3x3 convolution), contiguous and channels-last."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.models.case import ModelCase, Setting, Size, at, first_classes_loss, normal

# Blocks per stage, width of the first stage, image side, classes.
SHAPES = {
    Size.REDUCED: ((1, 1, 1, 1), 32, 64, 100),
    Size.FULL: ((3, 4, 6, 3), 64, 224, 1000),
}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with batch norm; the shortcut is projected where the shape changes."""

    def __init__(self, incoming: int, width: int, stride: int) -> None:
        super().__init__()
        outgoing = 4 * width
        self.reduce = nn.Conv2d(incoming, width, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(width)
        self.spatial = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, outgoing, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(outgoing)
        self.shortcut = nn.Sequential()
        if stride != 1 or incoming != outgoing:
            self.shortcut = nn.Sequential(
                nn.Conv2d(incoming, outgoing, 1, stride=stride, bias=False), nn.BatchNorm2d(outgoing)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.reduce_norm(self.reduce(x)))
        h = F.relu(self.spatial_norm(self.spatial(h)))
        return F.relu(self.expand_norm(self.expand(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """images [b, 3, side, side] -> logits [b, classes]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        depths, width, _, classes = at(SHAPES, size)
        self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.stem_norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        incoming = width
        for stage, depth in enumerate(depths):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(incoming, width << stage, stride))
                incoming = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(incoming, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem_norm(self.stem(images))), 3, stride=2, padding=1)
        x = self.blocks(x)
        logits: Tensor = self.head(x.mean(dim=(2, 3)))
        return logits


def inputs(setting: Setting, generator: torch.Generator) -> tuple[Tensor, ...]:
    side = at(SHAPES, setting.size)[2]
    batch = 64 if setting.large else 4
    return (normal((batch, 3, side, side), setting, generator),)


CONTIGUOUS = ModelCase(
    name="resnet50",
    build=ResNet,
    inputs=inputs,
    loss=first_classes_loss,
    note="evaluation uses running statistics, the training step batch statistics, which it also updates",
)

CASES = (CONTIGUOUS, replace(CONTIGUOUS, name="resnet50_channels_last", channels_last=True))
