"""What attention needs beside its products: windows, turned and normalised heads, caches, decays, routing of
tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes
from benchmarks.memory_bound.cases.codes import near_eager
from benchmarks.memory_bound.cases.inputs import normal, two_f32
from benchmarks.memory_bound.cases.states import routing_inputs

F32 = torch.float32


def sliding_window(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[-1], device=x.device)
    distance = places[:, None] - places
    return torch.softmax(x.masked_fill((distance < 0) | (distance >= 512), float("-inf")), -1)


def turned_heads(make: Make, b: int, length: int, count: int, width: int) -> Arguments:
    turns = torch.view_as_complex(make.normal(length, width // 2, 2, dtype=F32))
    return make.normal(b, length, count, width), make.normal(b, length, count, width), turns


def complex_rotary(q: Tensor, k: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    def rotated(x: Tensor) -> Tensor:
        numbers = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(numbers * turns[:, None]).flatten(3).type_as(x)

    return rotated(q), rotated(k)


def grid_heads(make: Make, b: int, side: int, count: int, width: int) -> Arguments:
    angles = (make.normal(side, width // 4), make.normal(side, width // 4))
    return make.normal(b, side, side, count, width), *angles


def grid_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    def rotated(half: Tensor, c: Tensor, s: Tensor) -> Tensor:
        first, second = half.chunk(2, -1)
        return torch.cat([first * c - second * s, second * c + first * s], -1)

    rows, columns = x.chunk(2, -1)
    by_row = rotated(rows, cos[:, None, None], sin[:, None, None])
    return torch.cat([by_row, rotated(columns, cos[:, None], sin[:, None])], -1)


def packed_heads(make: Make, b: int, length: int, groups: int, width: int) -> Arguments:
    return make.normal(b, length, 6 * groups * width), make.near_one(width), make.near_one(width)


def normalised_heads(x: Tensor, q_weight: Tensor, k_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    width = q_weight.shape[0]
    groups = x.shape[-1] // (6 * width)
    heads = x.view(*x.shape[:2], -1, width).transpose(1, 2)
    q, k, v = heads.split([4 * groups, groups, groups], 1)
    q = functional.rms_norm(q, (width,), q_weight, 1e-6).contiguous()
    k = functional.rms_norm(k, (width,), k_weight, 1e-6)
    return q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1)


def shift_inputs(make: Make, b: int, length: int, width: int) -> Arguments:
    return make.normal(b, length, width), *(make.normal(width) for _ in range(3))


def token_shift(x: Tensor, r: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    change = functional.pad(x, (0, 0, 1, -1)) - x
    return torch.addcmul(x, change, r), torch.addcmul(x, change, k), torch.addcmul(x, change, v)


def gated_decay(x: Tensor, gates: Tensor) -> Tensor:
    decay = (functional.logsigmoid(gates) / 16).cumsum(1)
    return (x * (-decay).exp()).cumsum(1) * decay.exp()


def cache_inputs(make: Make, b: int, length: int, count: int, width: int) -> Arguments:
    cache = torch.zeros(b, count, length, width, dtype=torch.int8, device=make.device)
    scales = make.normal(b, count, length, dtype=F32)
    return cache, scales, make.normal(b, length, count, width), torch.randperm(length, device=make.device)


def cached_keys(cache: Tensor, scales: Tensor, keys: Tensor, positions: Tensor) -> None:
    heads = keys.float().transpose(1, 2)
    scale = (heads.abs().amax(-1) / 127).clamp(min=1e-8)
    cache.index_copy_(2, positions, (heads / scale[..., None]).round().to(torch.int8))
    scales.index_copy_(2, positions, scale.to(scales.dtype))


def key_bytes(cache: Tensor, scales: Tensor, keys: Tensor, positions: Tensor) -> int:
    return count_stored_bytes(keys) + count_stored_bytes(positions)


def routed_with_capacity(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    gate, expert = torch.softmax(x, -1).max(-1)
    chosen = functional.one_hot(expert, x.shape[-1])
    place = (chosen.cumsum(0) * chosen).sum(-1) - 1
    return gate * (place < 1.25 * x.shape[0] / x.shape[-1]), expert, place


CASES = (
    Case(
        name="sliding-window softmax 4x8x2048x2048",
        function=sliding_window,
        inputs=normal,
        size=(4, 8, 2048, 2048),
        tiny=(2, 3, 5, 5),
        set="further",
    ),
    Case(
        name="rotary of complex numbers 8x2048x32x128",
        function=complex_rotary,
        inputs=turned_heads,
        size=(8, 2048, 32, 128),
        tiny=(2, 3, 2, 8),
        set="further",
    ),
    Case(
        name="rotary by rows and columns 128x32x32x16x72",
        function=grid_rotary,
        inputs=grid_heads,
        size=(128, 32, 16, 72),
        tiny=(2, 3, 2, 8),
        set="further",
    ),
    Case(
        name="normalised and repeated heads 8x2048x48x128",
        function=normalised_heads,
        inputs=packed_heads,
        size=(8, 2048, 8, 128),
        tiny=(2, 3, 2, 8),
        set="further",
    ),
    Case(
        name="token shift 16x2048x2560",
        function=token_shift,
        inputs=shift_inputs,
        size=(16, 2048, 2560),
        tiny=(2, 3, 5),
        set="further",
    ),
    Case(
        name="gated decay 16x1024x2048 f32",
        function=gated_decay,
        inputs=two_f32,
        size=(16, 1024, 2048),
        tiny=(2, 9, 5),
        set="further",
    ),
    Case(
        name="keys cached in i8 16x8192x8x128",
        function=cached_keys,
        inputs=cache_inputs,
        size=(16, 8192, 8, 128),
        tiny=(2, 5, 3, 8),
        mutates=(0, 1),
        reads=key_bytes,
        check=near_eager(cached_keys, mutates=(0, 1)),
        set="further",
    ),
    Case(
        name="one of 64 experts with capacity, 1048576 tokens f32",
        function=routed_with_capacity,
        inputs=routing_inputs,
        size=(1 << 20, 64),
        tiny=(9, 5),
        set="further",
    ),
)
