"""Blocks of well-known networks over images, each small, with what makes its layouts hard."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def build_convolution(
    given: int, made: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """A convolution that keeps the image's size but for the stride, a batch norm, and a ReLU."""
    convolution = nn.Conv2d(given, made, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(made), nn.ReLU())


class Bottleneck(nn.Module):
    """ResNet's block: narrow by 1 x 1, 3 x 3 in groups, wide by 1 x 1, and a residual."""

    def __init__(self, width: int, groups: int = 1) -> None:
        super().__init__()
        inner = width // 4 if groups == 1 else width // 2
        self.first = build_convolution(width, inner, 1)
        self.second = build_convolution(inner, inner, groups=groups)
        self.third = nn.Sequential(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.third(self.second(self.first(x))))


def build_resnet(groups: int = 1) -> nn.Module:
    """The stem of ResNet and two blocks in each of two stages."""
    return nn.Sequential(
        build_convolution(3, 64, 7, 2),
        nn.MaxPool2d(3, 2, 1),
        build_convolution(64, 256, 1),
        Bottleneck(256, groups),
        Bottleneck(256, groups),
        build_convolution(256, 512, 3, 2),
        Bottleneck(512, groups),
        Bottleneck(512, groups),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


class Dense(nn.Module):
    """DenseNet's layers: each takes all channels before it."""

    def __init__(self, width: int = 64, growth: int = 32, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width + k * growth),
                nn.ReLU(),
                nn.Conv2d(width + k * growth, growth, 3, padding=1, bias=False),
            )
            for k in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat((x, layer(x)), 1)
        return F.avg_pool2d(x, 2)


class Branches(nn.Module):
    """Inception's branches of several windows, concatenated."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.one = build_convolution(width, 64, 1)
        self.three = nn.Sequential(build_convolution(width, 96, 1), build_convolution(96, 128))
        self.five = nn.Sequential(build_convolution(width, 16, 1), build_convolution(16, 32, 5))
        self.pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), build_convolution(width, 32, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((self.one(x), self.three(x), self.five(x), self.pooled(x)), 1)


class Excited(nn.Module):
    """EfficientNet's block: wide by 1 x 1, depthwise, channels scaled by their means, narrow, a residual."""

    def __init__(self, width: int = 40, size: int = 5) -> None:
        super().__init__()
        wide = 6 * width
        self.enter = nn.Sequential(nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU())
        self.depthwise = nn.Sequential(
            nn.Conv2d(wide, wide, size, padding=size // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.SiLU(),
        )
        self.squeeze, self.excite = nn.Conv2d(wide, width // 4, 1), nn.Conv2d(width // 4, wide, 1)
        self.leave = nn.Sequential(nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.enter(x))
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        found: Tensor = x + self.leave(y * scale)
        return found


class Pyramid(nn.Module):
    """Feature pyramid: stages of an image, resized and added from the coarsest to the finest."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256)
        self.stem = build_convolution(3, 64, 3, 2)
        self.stages = nn.ModuleList(
            build_convolution(given, made, 3, 2)
            for given, made in zip((64, *widths[:-1]), widths, strict=True)
        )
        self.sides = nn.ModuleList(nn.Conv2d(width, 128, 1) for width in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(128, 128, 3, padding=1) for _ in widths)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        above: Tensor | None = None
        total = x.new_zeros(())
        for level, side, smooth in zip(found[::-1], self.sides[::-1], self.smooth[::-1], strict=True):
            here = side(level)
            above = here if above is None else here + F.interpolate(above, scale_factor=2.0)
            total = total + smooth(above).mean((2, 3))
        return total


class Dilated(nn.Module):
    """Segmentation's head: dilated windows beside a mean of the image, resized bilinearly."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.windows = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, 128, 3, padding=d, dilation=d, bias=False), nn.BatchNorm2d(128), nn.ReLU()
            )
            for d in (6, 12)
        )
        self.one = build_convolution(width, 128, 1)
        self.mean = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 128, 1), nn.ReLU())
        self.leave = nn.Conv2d(4 * 128, 21, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean(x).expand(-1, -1, *x.shape[2:])
        y = torch.cat((self.one(x), *(window(x) for window in self.windows), mean), 1)
        return F.interpolate(self.leave(y), scale_factor=4, mode="bilinear")


class Shuffled(nn.Module):
    """ShuffleNet's unit: half of the channels pass by, and both halves are mixed."""

    def __init__(self, width: int = 232) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            build_convolution(half, half, 1),
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            build_convolution(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, 1)
        y = torch.cat((kept, self.branch(changed)), 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Crossed(nn.Module):
    """Half of YOLO's channels through two convolutions, and the largest of three pools beside each other."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        half = width // 2
        self.enter = nn.Sequential(nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width), nn.SiLU())
        self.inner = nn.Sequential(
            *(
                part
                for _ in range(2)
                for part in (nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half), nn.SiLU())
            )
        )
        self.leave = nn.Conv2d(width + half, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, changed = self.enter(x).chunk(2, 1)
        made = changed + self.inner(changed)
        y = self.leave(torch.cat((kept, changed, made), 1))
        first = F.max_pool2d(y, 5, 1, 2)
        return torch.cat((y, first, F.max_pool2d(first, 5, 1, 2)), 1)


class SpatialAttention(nn.Module):
    """Attention between the pixels of an image, as in U-Nets that remove noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(32, width), width // 64
        self.enter, self.leave = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        parts = self.enter(self.norm(x)).view(n, 3, self.heads, c // self.heads, h * w).transpose(3, 4)
        mixed = F.scaled_dot_product_attention(*parts.unbind(1))
        found: Tensor = x + self.leave(mixed.transpose(2, 3).reshape(n, c, h, w))
        return found


class Denoiser(nn.Module):
    """One level of a U-Net: normed convolutions with a step's vector, attention, down, up, and a skip."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.step = nn.Linear(256, 2 * width)
        self.norms = nn.ModuleList(nn.GroupNorm(32, each) for each in (width, 2 * width, 3 * width))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(given, made, 3, padding=1)
            for given, made in ((width, width), (2 * width, 2 * width), (3 * width, width))
        )
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.attention = SpatialAttention(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        step = self.step(x.new_ones(x.shape[0], 256))[:, :, None, None]
        x = self.enter(x)
        x = x + self.convolutions[0](F.silu(self.norms[0](x)))
        y = self.down(x)
        y = y + self.convolutions[1](F.silu(self.norms[1](y) + step))
        y = F.interpolate(self.attention(y), scale_factor=2.0)
        joined = torch.cat((x, y), 1)
        found: Tensor = self.leave(self.convolutions[2](F.silu(self.norms[2](joined))))
        return found


class Styled(nn.Module):
    """StyleGAN's convolution: weights scaled by a vector of each image, as a convolution in groups."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.style = nn.Linear(512, width)
        self.weight = nn.Parameter(torch.randn(width, width, 3, 3) / (3 * width**0.5))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        style = self.style(x.new_ones(n, 512))
        weight = self.weight * style[:, None, :, None, None]
        weight = weight * torch.rsqrt(weight.square().sum((2, 3, 4), keepdim=True) + 1e-8)
        y = F.conv2d(x.reshape(1, n * c, h, w), weight.view(n * c, c, 3, 3).to(x.dtype), padding=1, groups=n)
        return F.leaky_relu(y.view(n, c, h, w), 0.2) * 2**0.5


class Windows(nn.Module):
    """Swin's attention in shifted windows behind a patch embedding."""

    def __init__(self, width: int = 128, window: int = 7) -> None:
        super().__init__()
        self.patches, self.window, self.heads = nn.Conv2d(3, width, 4, 4), window, width // 32
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.enter = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.mix = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )

    def _attend(self, x: Tensor, turn: int) -> Tensor:
        n, h, w, c = x.shape
        size, shift = self.window, turn * (self.window // 2)
        x = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
        x = x.view(n, h // size, size, w // size, size, c).transpose(2, 3).reshape(-1, size * size, c)
        parts = (
            self.enter[turn](x).view(-1, size * size, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(*parts.unbind(0)).transpose(1, 2).reshape(-1, size * size, c)
        y = self.leave[turn](y).view(n, h // size, w // size, size, size, c).transpose(2, 3)
        y = y.reshape(n, h, w, c)
        return torch.roll(y, (shift, shift), (1, 2)) if shift else y

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](self.patches(x).permute(0, 2, 3, 1))
        for turn in range(2):
            x = x + self._attend(self.norms[1 + 2 * turn](x), turn)
            x = x + self.mix[turn](self.norms[2 + 2 * turn](x))
        return x.mean((1, 2))


class Mixer(nn.Module):
    """MLP-Mixer: layers over patches, and over channels, in turn."""

    def __init__(self, width: int = 512, patches: int = 196) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.along = nn.ModuleList(
            nn.Sequential(nn.Linear(patches, 256), nn.GELU(), nn.Linear(256, patches)) for _ in range(2)
        )
        self.across = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2048), nn.GELU(), nn.Linear(2048, width)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for turn in range(2):
            x = x + self.along[turn](self.norms[2 * turn](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.across[turn](self.norms[2 * turn + 1](x))
        return x.mean(1)


class Pooled(nn.Module):
    """PoolFormer: means of windows mix pixels, layers of 1 x 1 mix channels, with norms over both."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 7, 4, 2)
        self.norms = nn.ModuleList(nn.GroupNorm(1, width) for _ in range(4))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        for turn in range(2):
            y = self.norms[2 * turn](x)
            x = x + F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y
            x = x + self.layers[turn](self.norms[2 * turn + 1](x))
        return x


class Restored(nn.Module):
    """NAFNet's block: layer norms over channels, a depthwise window, halves that gate each other."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Conv2d(width, 2 * width, 1)
        self.depthwise = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.scale, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        first, second = self.depthwise(self.wide(y)).chunk(2, 1)
        y = first * second
        found: Tensor = x + self.leave(y * self.scale(y.mean((2, 3), keepdim=True)))
        return found


def build_style_transfer() -> nn.Module:
    """Padding by reflection, convolutions and instance norms, and a step up by resizing."""
    return nn.Sequential(
        nn.ReflectionPad2d(4),
        nn.Conv2d(3, 32, 9),
        nn.InstanceNorm2d(32, affine=True),
        nn.ReLU(),
        nn.ReflectionPad2d(1),
        nn.Conv2d(32, 64, 3, 2),
        nn.InstanceNorm2d(64, affine=True),
        nn.ReLU(),
        nn.Upsample(scale_factor=2),
        nn.ReflectionPad2d(1),
        nn.Conv2d(64, 32, 3),
        nn.InstanceNorm2d(32, affine=True),
        nn.ReLU(),
    )


def build_critic() -> nn.Module:
    """A discriminator of images: strided convolutions of 4 x 4 with leaky activations."""
    parts: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for given, made in ((64, 128), (128, 256), (256, 512)):
        parts += [nn.Conv2d(given, made, 4, 2, 1, bias=False), nn.BatchNorm2d(made), nn.LeakyReLU(0.2)]
    return nn.Sequential(*parts, nn.Conv2d(512, 1, 4))


def build_video() -> nn.Module:
    """Convolutions over frames: windows in space, then in time, with batch norms."""
    parts: list[nn.Module] = []
    for given, made in ((3, 64), (64, 64)):
        parts += [nn.Conv3d(given, made, (1, 3, 3), padding=(0, 1, 1), bias=False), nn.BatchNorm3d(made)]
        parts += [nn.ReLU(), nn.Conv3d(made, made, (3, 1, 1), padding=(1, 0, 0), bias=False)]
        parts += [nn.BatchNorm3d(made), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool3d(1), nn.Flatten())


def build_compressor() -> nn.Module:
    """An autoencoder of images: down by strides, up by transposed convolutions, with group norms."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1),
        nn.GroupNorm(8, 64),
        nn.SiLU(),
        nn.Conv2d(64, 128, 3, 2, 1),
        nn.GroupNorm(8, 128),
        nn.SiLU(),
        nn.Conv2d(128, 8, 1),
        nn.Conv2d(8, 128, 1),
        nn.ConvTranspose2d(128, 64, 2, 2),
        nn.GroupNorm(8, 64),
        nn.SiLU(),
        nn.ConvTranspose2d(64, 3, 2, 2),
    )
