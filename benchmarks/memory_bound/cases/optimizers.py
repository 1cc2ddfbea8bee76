"""Optimizers that look at whole tensors, or keep their state in 8 bits."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes
from benchmarks.memory_bound.cases.codes import near_eager

F32, I8, U8 = torch.float32, torch.int8, torch.uint8


def adafactor_inputs(make: Make, n: int, m: int) -> Arguments:
    moments = (make.near_one(n, dtype=F32), make.near_one(m, dtype=F32))
    return make.normal(n, m, dtype=F32), make.normal(n, m), *moments


def adafactor(param: Tensor, grad: Tensor, rows: Tensor, columns: Tensor) -> None:
    slope = grad.to(param.dtype)
    squares = slope.square() + 1e-30
    rows.lerp_(squares.mean(-1), 0.001)
    columns.lerp_(squares.mean(-2), 0.001)
    update = slope * (rows / rows.mean()).rsqrt()[:, None] * columns.rsqrt()
    size = update.square().mean().sqrt()
    param.add_(update / size.clamp(min=1), alpha=-0.01)


def gradients_twice(param: Tensor, grad: Tensor, rows: Tensor, columns: Tensor) -> int:
    return 2 * count_stored_bytes(grad)


def lamb_inputs(make: Make, n: int, m: int) -> Arguments:
    return (
        make.normal(n, m, dtype=F32),
        make.normal(n, m, dtype=F32),
        *(make.near_one(n, m, dtype=F32) for _ in range(2)),
    )


def lamb(param: Tensor, grad: Tensor, first: Tensor, second: Tensor) -> None:
    first.lerp_(grad, 0.1)
    second.mul_(0.999).addcmul_(grad, grad, value=0.001)
    update = first / (second.sqrt() + 1e-6) + 0.01 * param
    trust = param.norm() / update.norm()
    param.sub_(update * (0.001 * trust))


def state_bytes(param: Tensor, grad: Tensor, first: Tensor, second: Tensor) -> int:
    return count_stored_bytes(param) + count_stored_bytes(first) + count_stored_bytes(second)


def eight_bit_inputs(make: Make, n: int, m: int) -> Arguments:
    first = make.integers(n, m, below=128, dtype=I8)
    second = make.integers(n, m, below=256, dtype=U8)
    scales = (make.near_one(n * m // 256, dtype=F32), make.near_one(n * m // 256, dtype=F32))
    return make.normal(n, m), make.normal(n, m), first, second, *scales


def eight_bit_adamw(
    param: Tensor, grad: Tensor, first: Tensor, second: Tensor, first_scale: Tensor, second_scale: Tensor
) -> None:
    slope = grad.float().view(-1, 256)
    mean = torch.lerp(first.view(-1, 256).float() * first_scale[:, None], slope, 0.1)
    variance = torch.lerp(second.view(-1, 256).float() * second_scale[:, None], slope.square(), 0.001)
    weights = param.float().view(-1, 256) * (1 - 1e-5)
    param.copy_((weights - 0.001 * mean / (variance.sqrt() + 1e-8)).view(param.shape))
    first_scale.copy_((mean.abs().amax(-1) / 127).clamp(min=1e-12))
    second_scale.copy_((variance.amax(-1) / 255).clamp(min=1e-12))
    first.copy_((mean / first_scale[:, None]).round().view(first.shape))
    second.copy_((variance / second_scale[:, None]).round().view(second.shape))


CASES = (
    Case(
        name="Adafactor 8192x8192 f32",
        function=adafactor,
        inputs=adafactor_inputs,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0, 2, 3),
        again=gradients_twice,
        why="the update needs moments of the whole gradient, and its size those of the whole update",
        set="further",
    ),
    Case(
        name="LAMB 8192x8192 f32",
        function=lamb,
        inputs=lamb_inputs,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0, 2, 3),
        again=state_bytes,
        why="the norms of all come before the first new parameter",
        set="further",
    ),
    Case(
        name="AdamW with 8-bit states 8192x8192",
        function=eight_bit_adamw,
        inputs=eight_bit_inputs,
        size=(8192, 8192),
        tiny=(4, 128),
        mutates=(0, 2, 3, 4, 5),
        check=near_eager(eight_bit_adamw, mutates=(0, 2, 3, 4, 5)),
        set="further",
    ),
)
