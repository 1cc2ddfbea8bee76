"""Pictures and sounds: windows, resizing, differences of neighbours, scaling by what a whole picture says."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, first_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f16, normal_f32

F16, F32 = torch.float16, torch.float32


def excited(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(b, c, h, w), make.normal(b, c), make.normal(b, c, h, w)


def excitation(x: Tensor, scale: Tensor, skip: Tensor) -> Tensor:
    return functional.relu(x * scale.sigmoid()[:, :, None, None] + skip)


def response_norm(x: Tensor) -> Tensor:
    lengths = x.float().square().sum((1, 2), keepdim=True).sqrt()
    return (x * (lengths / (lengths.mean(-1, keepdim=True) + 1e-6))).to(x.dtype) + x


def windows(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    shifted = x.roll((-3, -3), (1, 2)).view(b, h // 7, 7, w // 7, 7, c)
    return shifted.permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def patches(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return x.view(b, c, h // 8, 8, w // 8, 8).permute(0, 2, 4, 3, 5, 1).reshape(b, -1, 64 * c)


def unfolded(x: Tensor) -> Tensor:
    return functional.unfold(x, 3, padding=1)


def unshuffled(x: Tensor) -> Tensor:
    return functional.pixel_unshuffle(x, 2)


def twice_as_large(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


def bicubic(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="bicubic")


def bilinear_gradient(gradient: Tensor) -> Tensor:
    """Return what goes on from a picture twice as large to the one that it was made of."""
    *outer, height, width = gradient.shape
    size = [*outer, height // 2, width // 2]
    found: Tensor = torch.ops.aten.upsample_bilinear2d_backward(
        gradient, [height, width], size, False, 2.0, 2.0
    )
    return found


def total_variation(x: Tensor) -> Tensor:
    return (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()


def edges(x: Tensor) -> Tensor:
    across = x[..., 2:] - x[..., :-2]
    down = x[..., 2:, :] - x[..., :-2, :]
    return (across[..., 1:-1, :].square() + down[..., 1:-1].square()).sqrt()


def standardized(x: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(x, (2, 3), keepdim=True)
    return (x - mean) / (deviation + 1e-5)


def loudest(x: Tensor) -> Tensor:
    return x / x.abs().amax(-1, keepdim=True).clamp(min=1e-6)


def decibels(x: Tensor) -> Tensor:
    logarithms = x.abs().clamp(min=1e-10).log10()
    return (torch.maximum(logarithms, logarithms.amax((1, 2), keepdim=True) - 8) + 4) / 4


def channel_variances(x: Tensor) -> Tensor:
    return x.var(1)


CASES = (
    Case(
        name="excitation+skip 64x256x56x56",
        function=excitation,
        inputs=excited,
        size=(64, 256, 56, 56),
        tiny=(2, 3, 4, 5),
        set="later",
    ),
    Case(
        name="response norm NHWC 64x56x56x384",
        function=response_norm,
        inputs=normal,
        size=(64, 56, 56, 384),
        tiny=(2, 3, 4, 5),
        again=first_bytes,
        why=(
            "all pictures in flight are larger than the memory on chip, and their norms come before the "
            "first result"
        ),
        set="later",
    ),
    Case(
        name="shifted windows 64x112x112x96",
        function=windows,
        inputs=normal,
        size=(64, 112, 112, 96),
        tiny=(2, 14, 7, 5),
        set="later",
    ),
    Case(
        name="patches 256x3x384x384 f16",
        function=patches,
        inputs=normal_f16,
        size=(256, 3, 384, 384),
        tiny=(2, 3, 16, 8),
        set="later",
    ),
    Case(
        name="unfolded 3x3 16x64x112x112",
        function=unfolded,
        inputs=normal,
        size=(16, 64, 112, 112),
        tiny=(2, 3, 5, 6),
        set="later",
    ),
    Case(
        name="pixel unshuffle 16x64x256x256",
        function=unshuffled,
        inputs=normal,
        size=(16, 64, 256, 256),
        tiny=(2, 3, 4, 6),
        set="later",
    ),
    Case(
        name="nearest x2 16x256x64x64",
        function=twice_as_large,
        inputs=normal,
        size=(16, 256, 64, 64),
        tiny=(2, 3, 4, 5),
        set="later",
    ),
    Case(
        name="bicubic x2 16x64x128x128 f32",
        function=bicubic,
        inputs=normal_f32,
        size=(16, 64, 128, 128),
        tiny=(2, 3, 4, 5),
        set="later",
    ),
    Case(
        name="gradient of bilinear x2 16x64x128x128 f32",
        function=bilinear_gradient,
        inputs=normal_f32,
        size=(16, 64, 256, 256),
        tiny=(2, 3, 8, 10),
        set="later",
    ),
    Case(
        name="total variation 64x3x768x768 f32",
        function=total_variation,
        inputs=normal_f32,
        size=(64, 3, 768, 768),
        tiny=(2, 3, 6, 5),
        set="later",
    ),
    Case(
        name="edges 64x1x1024x1024 f32",
        function=edges,
        inputs=normal_f32,
        size=(64, 1, 1024, 1024),
        tiny=(2, 1, 6, 5),
        set="later",
    ),
    Case(
        name="standardized planes 64x128x96x96 f32",
        function=standardized,
        inputs=normal_f32,
        size=(64, 128, 96, 96),
        tiny=(2, 3, 4, 5),
        set="later",
    ),
    Case(
        name="loudest sample 128x480000 f32",
        function=loudest,
        inputs=normal_f32,
        size=(128, 480000),
        tiny=(2, 9),
        again=first_bytes,
        why=(
            "all sounds in flight are larger than the memory on chip, and the largest sample comes before "
            "the first result"
        ),
        set="later",
    ),
    Case(
        name="decibels 256x80x3000 f32",
        function=decibels,
        inputs=normal_f32,
        size=(256, 80, 3000),
        tiny=(2, 3, 9),
        again=first_bytes,
        why=(
            "all sounds in flight are larger than the memory on chip, and the largest number comes before "
            "the first result"
        ),
        set="later",
    ),
    Case(
        name="variances of channels 64x96x128x128 f16",
        function=channel_variances,
        inputs=normal_f16,
        size=(64, 96, 128, 128),
        tiny=(2, 5, 4, 3),
        set="later",
    ),
)
