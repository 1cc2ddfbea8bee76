"""Pictures on their way to a model: cropped, mixed, coloured, counted; tokens, too, are counted."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes, first_bytes
from benchmarks.memory_bound.cases.codes import near_eager

F16, F32, U8 = torch.float16, torch.float32, torch.uint8
SIDE = 224


def cropped_inputs(make: Make, b: int, side: int) -> Arguments:
    corners = make.integers(b, below=side - SIDE), make.integers(b, below=side - SIDE)
    return make.integers(b, side, side, 3, below=256, dtype=U8), *corners


def cropped(x: Tensor, top: Tensor, left: Tensor) -> Tensor:
    side = torch.arange(SIDE, device=x.device)
    pictures = torch.arange(x.shape[0], device=x.device)[:, None, None]
    cut = x[pictures, (top[:, None] + side)[:, :, None], (left[:, None] + side)[:, None]]
    mean = torch.tensor([0.485, 0.456, 0.406], device=x.device)
    deviation = torch.tensor([0.229, 0.224, 0.225], device=x.device)
    return ((cut / 255 - mean) / deviation).to(F16).permute(0, 3, 1, 2).contiguous()


def cropped_bytes(x: Tensor, top: Tensor, left: Tensor) -> int:
    return x.shape[0] * SIDE * SIDE * x.shape[3] + count_stored_bytes(top) + count_stored_bytes(left)


def mixed_inputs(make: Make, b: int, c: int, h: int, w: int) -> Arguments:
    boxes = tuple(make.integers(b, below=side // 2) for side in (h, h, w, w))
    return make.normal(b, c, h, w, dtype=F16), torch.randperm(b, device=make.device), *boxes


def cut_and_mixed(
    x: Tensor, order: Tensor, top: Tensor, rows: Tensor, left: Tensor, columns: Tensor
) -> Tensor:
    y = torch.arange(x.shape[2], device=x.device)
    z = torch.arange(x.shape[3], device=x.device)
    within_rows = (y >= top[:, None]) & (y < (top + rows)[:, None])
    within_columns = (z >= left[:, None]) & (z < (left + columns)[:, None])
    inside = within_rows[:, None, :, None] & within_columns[:, None, None]
    return torch.where(inside, x[order], x)


def coloured_inputs(make: Make, b: int, h: int, w: int) -> Arguments:
    factors = tuple(make.near_one(b, dtype=F32) for _ in range(3))
    return make.integers(b, 3, h, w, below=256, dtype=U8), *factors


def coloured(x: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    def grey(picture: Tensor) -> Tensor:
        red, green, blue = picture.unbind(1)
        return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]

    def factor(values: Tensor) -> Tensor:
        return values[:, None, None, None]

    bright = (x.float() * factor(brightness)).clamp(0, 255)
    even = grey(bright).mean((1, 2, 3), keepdim=True)
    contrasted = (even + (bright - even) * factor(contrast)).clamp(0, 255)
    pale = grey(contrasted)
    return (pale + (contrasted - pale) * factor(saturation)).clamp(0, 255).to(U8)


def counted_inputs(make: Make, b: int, size: int) -> Arguments:
    return (make.integers(b, size, below=256, dtype=U8),)


def histograms(x: Tensor) -> Tensor:
    counts = torch.zeros(x.shape[0], 256, dtype=torch.int32, device=x.device)
    return counts.scatter_add(1, x.long(), torch.ones_like(x, dtype=torch.int32))


def expert_inputs(make: Make, n: int, experts: int) -> Arguments:
    return make.integers(n, below=experts), make.integers(experts, below=1, dtype=torch.int32)


def per_expert(expert: Tensor, before: Tensor) -> Tensor:
    return before.scatter_add(0, expert, torch.ones_like(expert, dtype=torch.int32))


CASES = (
    Case(
        name="normalised crops 1024x256x256x3 u8 to f16",
        function=cropped,
        inputs=cropped_inputs,
        size=(1024, 256),
        tiny=(2, 226),
        reads=cropped_bytes,
        set="further",
    ),
    Case(
        name="cut and mixed 1024x3x224x224 f16",
        function=cut_and_mixed,
        inputs=mixed_inputs,
        size=(1024, 3, 224, 224),
        tiny=(3, 2, 6, 8),
        set="further",
    ),
    Case(
        name="coloured 512x3x384x384 u8",
        function=coloured,
        inputs=coloured_inputs,
        size=(512, 384, 384),
        tiny=(2, 5, 6),
        again=first_bytes,
        why=(
            "all pictures in flight are larger than the memory on chip, and their mean comes before the "
            "first result"
        ),
        check=near_eager(coloured),
        set="further",
    ),
    Case(
        name="histograms 512x786432 u8",
        function=histograms,
        inputs=counted_inputs,
        size=(512, 786432),
        tiny=(2, 600),
        set="further",
    ),
    Case(
        name="tokens per expert 4194304x64",
        function=per_expert,
        inputs=expert_inputs,
        size=(4194304, 64),
        tiny=(600, 5),
        set="further",
    ),
)
