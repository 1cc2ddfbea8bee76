"""What diffusion models, radiance fields and speech models compute beside their products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes, first_bytes

F16, F32 = torch.float16, torch.float32


def step_inputs(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    noise, x = make.normal(2 * b, c, h, w, dtype=F16), make.normal(b, c, h, w, dtype=F16)
    alphas = torch.linspace(0.999, 0.01, 1000, device=make.device)
    return noise, x, make.integers(b, below=1000), alphas


def guided_step(noise: Tensor, x: Tensor, steps: Tensor, alphas: Tensor) -> Tensor:
    free, told = noise.chunk(2)
    guided = free + 7.5 * (told - free)
    now = alphas[steps].view(-1, 1, 1, 1)
    then = alphas[(steps - 20).clamp(min=0)].view(-1, 1, 1, 1)
    clean = ((x - (1 - now).sqrt() * guided) / now.sqrt()).clamp(-1, 1)
    return (then.sqrt() * clean + (1 - then).sqrt() * guided).to(x.dtype)


def gated_inputs(make: Make, b: int, length: int, width: int) -> Arguments:
    return make.normal(b, length, width), make.normal(b, length, width), make.normal(b, width)


def gated_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return x + gate[:, None] * y


def gated_bytes(x: Tensor, y: Tensor, gate: Tensor) -> int:
    # the gradient of `x` is that of the result, which nobody writes: what it counts for, `x` does not
    return count_stored_bytes(y) + count_stored_bytes(gate)


def second_bytes(x: Tensor, y: Tensor, gate: Tensor) -> int:
    return count_stored_bytes(y)


def points(make: Make, n: int) -> Arguments:
    return (make.normal(n, 3, dtype=F32),)


def encoded_points(x: Tensor) -> Tensor:
    factors = 2.0 ** torch.arange(10, device=x.device, dtype=x.dtype)
    angles = x[:, None] * factors[:, None]
    return torch.cat([x, angles.sin().flatten(1), angles.cos().flatten(1)], -1)


def channels_last(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    return make.normal(b, h, w, c).permute(0, 3, 1, 2), make.near_one(c), make.normal(c)


def four_times(x: Tensor, *_: Tensor) -> int:
    return 4 * count_stored_bytes(x)


def grouped_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, x.shape[1] // 10, weight, bias))


def sounds(make: Make, b: int, length: int, width: int) -> Arguments:
    lengths = make.integers(b, below=length // 2) + length // 2 + 1
    return make.normal(b, length, width, dtype=F32), lengths


def normalised_frames(x: Tensor, lengths: Tensor) -> Tensor:
    valid = torch.arange(x.shape[1], device=x.device)[:, None] < lengths[:, None, None]
    count = lengths[:, None, None]
    mean = (x * valid).sum(1, keepdim=True) / count
    variance = ((x - mean).square() * valid).sum(1, keepdim=True) / count
    return (x - mean) * (variance + 1e-5).rsqrt() * valid


def framed_inputs(make: Make, b: int, length: int) -> Arguments:
    return make.normal(b, length, dtype=F32), make.near_one(400, dtype=F32)


def frames(x: Tensor, window: Tensor) -> Tensor:
    return x.unfold(-1, 400, 160) * window


CASES = (
    Case(
        name="guided step 256x4x256x256 f16",
        function=guided_step,
        inputs=step_inputs,
        size=(256, 4, 256, 256),
        tiny=(2, 3, 4, 5),
        set="further",
    ),
    Case(
        name="gated residual fwd+bwd 64x1024x1152",
        function=gated_residual,
        inputs=gated_inputs,
        size=(64, 1024, 1152),
        tiny=(2, 3, 8),
        train=True,
        reads=gated_bytes,
        again=second_bytes,
        why="the backward pass reads what was gated again",
        set="further",
    ),
    Case(
        name="encoded points 2097152x3 to 63 f32",
        function=encoded_points,
        inputs=points,
        size=(1 << 21,),
        tiny=(5,),
        set="further",
    ),
    Case(
        name="group norm+SiLU fwd+bwd NHWC 64x64x64x320",
        function=grouped_norm,
        inputs=channels_last,
        size=(64, 320, 64, 64),
        tiny=(2, 20, 3, 4),
        train=True,
        again=four_times,
        why=(
            "the input is there again in the backward pass, and statistics need one more pass of what "
            "follows from them"
        ),
        set="further",
    ),
    Case(
        name="normalised frames of unequal lengths 256x3000x80 f32",
        function=normalised_frames,
        inputs=sounds,
        size=(256, 3000, 80),
        tiny=(2, 9, 5),
        again=first_bytes,
        why=(
            "all sounds in flight are larger than the memory on chip, and their moments come before the "
            "first result"
        ),
        set="further",
    ),
    Case(
        name="windowed frames 128x480000 f32",
        function=frames,
        inputs=framed_inputs,
        size=(128, 480000),
        tiny=(2, 1000),
        set="further",
    ),
)
