"""Modules over images and volumes whose speed depends on layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChannelNorm(nn.Module):
    """A layer norm over channels, which come second."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return found


class ConvNextBlock(nn.Module):
    """A depthwise convolution of 7 x 7, a norm, and two layers over channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        found: Tensor = x + y.permute(0, 3, 1, 2)
        return found


def build_convnext(depths: Sequence[int] = (1, 1, 2, 1)) -> nn.Module:
    """ConvNeXt-T with so many blocks in each of its stages."""
    widths = (96, 192, 384, 768)
    parts: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for k, depth in enumerate(depths):
        parts += [ConvNextBlock(widths[k]) for _ in range(depth)]
        if k < 3:
            parts += [ChannelNorm(widths[k]), nn.Conv2d(widths[k], widths[k + 1], 2, 2)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000))


def build_depthwise(size: int = 7, width: int = 96) -> nn.Module:
    """A depthwise convolution, a norm over channels, and an activation."""
    depthwise = nn.Conv2d(width, width, size, padding=size // 2, groups=width)
    return nn.Sequential(depthwise, ChannelNorm(width), nn.GELU())


def build_mobile() -> nn.Module:
    """Inverted residuals without the residual: wide by 1 x 1, depthwise of 3 x 3, narrow by 1 x 1."""
    parts: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()]
    for narrow, wide, stride in ((32, 96, 1), (32, 192, 2), (32, 192, 1)):
        parts += [nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()]
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        parts += [depthwise, nn.BatchNorm2d(wide), nn.SiLU()]
        parts += [nn.Conv2d(wide, 32, 1, bias=False), nn.BatchNorm2d(32)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def build_decoder() -> nn.Module:
    """Transposed convolutions of 4 x 4, each of which doubles an image, with batch norms."""
    parts: list[nn.Module] = []
    for given, made in ((512, 256), (256, 128), (128, 64)):
        parts += [nn.ConvTranspose2d(given, made, 4, 2, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU()]
    return nn.Sequential(*parts, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh())


def build_transposed() -> nn.Module:
    """A transposed convolution and what follows it."""
    return nn.Sequential(nn.ConvTranspose2d(128, 64, 3, 2, 1, 1), nn.GELU())


class NormedConvolution(nn.Module):
    """A group norm, SiLU and a convolution of 3 x 3, twice, with a residual."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            y = convolution(F.silu(norm(y)))
        return x + y


def build_normed() -> nn.Module:
    """A group norm, SiLU and a convolution of 3 x 3."""
    return nn.Sequential(nn.GroupNorm(32, 128), nn.SiLU(), nn.Conv2d(128, 128, 3, padding=1))


def build_volume() -> nn.Module:
    """Convolutions over volumes, with group norms."""
    parts: list[nn.Module] = []
    for given, made in ((4, 32), (32, 64)):
        parts += [nn.Conv3d(given, made, 3, padding=1), nn.GroupNorm(8, made), nn.SiLU()]
    return nn.Sequential(*parts, nn.ConvTranspose3d(64, 32, 2, 2))


def build_shuffled() -> nn.Module:
    """Convolutions, pixels that become channels and back, and a resize."""
    return nn.Sequential(
        nn.Conv2d(64, 256, 3, padding=1),
        nn.PixelShuffle(2),
        nn.LeakyReLU(0.1),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(64, 32, 3, padding=1),
    )
