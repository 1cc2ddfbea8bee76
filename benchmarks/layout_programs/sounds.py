"""Modules over time whose speed depends on layouts."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual1d(nn.Module):
    """Dilated convolutions over time beside a residual, as HiFi-GAN's."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(
            nn.Conv1d(width, width, size, padding=d * (size // 2), dilation=d) for d in (1, 3)
        )
        self.plain = nn.ModuleList(nn.Conv1d(width, width, size, padding=size // 2) for _ in (1, 3))

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, 0.1)), 0.1))
        return x


class Vocoder(nn.Module):
    """A generator of waves like HiFi-GAN's: steps up in time, with residual blocks of several windows."""

    def __init__(self, width: int = 256, steps: int = 2) -> None:
        super().__init__()
        self.enter = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for _ in range(steps):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 16, 8, 4))
            width //= 2
            self.blocks.append(nn.ModuleList(Residual1d(width, size) for size in (3, 7)))
        self.leave = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            assert isinstance(blocks, nn.ModuleList)
            x = sum((block(x) for block in blocks), torch.zeros_like(x)) / len(blocks)
        return torch.tanh(self.leave(F.leaky_relu(x)))


class Audio(nn.Module):
    """Convolutions over time with group norms, as speech encoders begin."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(given, width, size, 2) for given, size in ((1, 10), (width, 3), (width, 3))
        )
        self.norm = nn.GroupNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for k, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = F.gelu(self.norm(x) if k == 0 else x)
        return x


class Conformer(nn.Module):
    """Conformer's convolution: two layers that gate, depthwise over time, a batch norm, and a residual."""

    def __init__(self, width: int = 512, size: int = 31) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depthwise = nn.Conv1d(width, width, size, padding=size // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
        y = self.leave(F.silu(self.batch_norm(self.depthwise(y))))
        found: Tensor = x + y.transpose(1, 2)
        return found


class Gated(nn.Module):
    """WaveNet's layers: dilated windows that gate each other, a residual, and a sum of what each gives."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(layers))
        self.mixed = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for k, (dilated, mixed) in enumerate(zip(self.dilated, self.mixed, strict=True)):
            first, second = dilated(F.pad(x, (2**k, 0))).chunk(2, 1)
            more, given = mixed(torch.tanh(first) * torch.sigmoid(second)).chunk(2, 1)
            x, total = x + more, total + given
        return total


class Codec(nn.Module):
    """EnCodec's encoder: residual windows and strided convolutions, padded on one side, with ELU."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 7)
        self.inner, self.outer, self.down = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for stride in (2, 4, 5):
            self.inner.append(nn.Conv1d(width, width // 2, 3))
            self.outer.append(nn.Conv1d(width // 2, width, 1))
            self.down.append(nn.Conv1d(width, 2 * width, 2 * stride, stride))
            width *= 2

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(F.pad(x, (6, 0)))
        for inner, outer, down in zip(self.inner, self.outer, self.down, strict=True):
            x = x + outer(F.elu(inner(F.pad(F.elu(x), (2, 0)))))
            assert isinstance(down, nn.Conv1d)
            x = down(F.pad(F.elu(x), (down.stride[0], 0)))
        return x


class Causal(nn.Module):
    """Mamba's stream: a layer, a depthwise window over the past, SiLU, and a layer back."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.window = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)

    def forward(self, x: Tensor) -> Tensor:
        y, gate = self.enter(self.norm(x)).chunk(2, -1)
        y = self.window(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2)
        found: Tensor = x + self.leave(F.silu(y) * F.silu(gate))
        return found
