"""Numbers on grids: stencils, spectra, distances, integrals, trends; pools and what undoes them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make
from benchmarks.memory_bound.cases.inputs import normal, normal_f32

F32 = torch.float32


def heat_step(x: Tensor) -> Tensor:
    inner = x[1:-1, 1:-1, 1:-1]
    around = x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1] + x[1:-1, 2:, 1:-1]
    around = around + x[1:-1, :-2, 1:-1] + x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2]
    result = x.clone()
    result[1:-1, 1:-1, 1:-1] = inner + 0.1 * (around - 6 * inner)
    return result


def spectra(make: Make, b: int, h: int, w: int) -> Arguments:
    return (torch.view_as_complex(make.normal(b, h, w, 2, dtype=F32)),)


def centred_power(x: Tensor) -> Tensor:
    centred: Tensor = torch.fft.fftshift(x, dim=(-2, -1))
    return centred.abs().square()


def places(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, 3, dtype=F32), make.normal(m, 3, dtype=F32)


def nearness(a: Tensor, b: Tensor) -> Tensor:
    return (-0.5 * (a[:, None] - b).square().sum(-1)).exp()


def integrals(x: Tensor) -> Tensor:
    return torch.cumulative_trapezoid(x, dx=0.01)


def seasonal(x: Tensor) -> tuple[Tensor, Tensor]:
    padded = functional.pad(x, (12, 12), mode="replicate")
    trend = functional.avg_pool1d(padded, 25, stride=1)
    return x - trend, trend


def adaptive_means(x: Tensor) -> Tensor:
    return functional.adaptive_avg_pool2d(x, 7)


def pooled_maxima(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    rows, columns = torch.arange(h, device=make.device) * 2, torch.arange(w, device=make.device) * 2
    corners = rows[:, None] * 2 * w + columns
    moved = make.integers(b, c, h, w, below=4)
    return make.normal(b, c, h, w, dtype=F32), corners + (moved >> 1) * 2 * w + (moved & 1)


def unpooled(x: Tensor, index: Tensor) -> Tensor:
    return functional.max_unpool2d(x, index, [2, 2])


def channels_last(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    return (make.normal(b, h, w, c).permute(0, 3, 1, 2),)


def overlapping_maxima(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, stride=2, padding=1)


CASES = (
    Case(
        name="heat step 512x512x512 f32",
        function=heat_step,
        inputs=normal_f32,
        size=(512, 512, 512),
        tiny=(5, 6, 7),
        set="further",
    ),
    Case(
        name="centred power spectra 64x1000x1000 complex",
        function=centred_power,
        inputs=spectra,
        size=(64, 1000, 1000),
        tiny=(2, 5, 6),
        set="further",
    ),
    Case(
        name="nearness of 16384x8192 points f32",
        function=nearness,
        inputs=places,
        size=(16384, 8192),
        tiny=(5, 9),
        set="further",
    ),
    Case(
        name="integrals so far 8192x8193 f32",
        function=integrals,
        inputs=normal_f32,
        size=(8192, 8193),
        tiny=(5, 9),
        set="further",
    ),
    Case(
        name="seasons and trends 8192x3x3000 f32",
        function=seasonal,
        inputs=normal_f32,
        size=(8192, 3, 3000),
        tiny=(2, 3, 40),
        set="further",
    ),
    Case(
        name="adaptive means 128x1024x30x30",
        function=adaptive_means,
        inputs=normal,
        size=(128, 1024, 30, 30),
        tiny=(2, 3, 10, 9),
        set="further",
    ),
    Case(
        name="unpooled maxima 32x64x112x112 f32",
        function=unpooled,
        inputs=pooled_maxima,
        size=(32, 64, 112, 112),
        tiny=(2, 3, 4, 5),
        set="further",
    ),
    Case(
        name="overlapping maxima fwd+bwd NHWC 64x112x112x64",
        function=overlapping_maxima,
        inputs=channels_last,
        size=(64, 64, 112, 112),
        tiny=(2, 3, 6, 7),
        train=True,
        set="further",
    ),
)
