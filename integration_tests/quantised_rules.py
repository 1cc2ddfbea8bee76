"""A table of values of 16 bits that jump: quantised, made whole, cut or counted, with what comes before.
`fast` numerics give eager's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from integration_tests.beside_eager import compiled

E4M3: Final = torch.float8_e4m3fn
HALVES: Final = (torch.bfloat16, torch.float16)


def divided(x: Tensor, *dims: int) -> tuple[Tensor, Tensor]:
    """`x` in 8 bits, over a scale by its largest element, of each row along `dims`."""
    largest = x.abs().amax(dims, keepdim=True) if dims else x.abs().amax()
    scale = (largest / 448.0).clamp(min=1e-6)
    return (x / scale).clamp(-448.0, 448.0).to(E4M3), scale.float()


def multiplied(x: Tensor, *dims: int) -> tuple[Tensor, Tensor]:
    largest = x.abs().amax(dims, keepdim=True) if dims else x.abs().amax()
    scale = 448.0 / largest.clamp(min=1e-6)
    return (x * scale).clamp(-448.0, 448.0).to(E4M3), (1 / scale).float()


BEFORE: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "nothing": lambda x: x,
        "relu": lambda x: torch.relu(x + 1),
        "arithmetic": lambda x: (x * 1.3 + 0.7) * 0.9 - x,
        "a norm": lambda x: (
            x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6).to(x.dtype) * 1.1
        ),
        "a mean": lambda x: x - x.mean(-1, keepdim=True),
        "rounding": lambda x: (x * 3.3 + 1).round() * 0.3,
    }
)
JUMPS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "float8_e4m3fn": lambda y: (y * 7.3).clamp(-448.0, 448.0).to(E4M3).view(torch.uint8),
        "float8_e5m2": lambda y: (y * 7.3).to(torch.float8_e5m2).view(torch.uint8),
        "float8_e4m3fnuz": lambda y: (y * 7.3).to(torch.float8_e4m3fnuz).view(torch.uint8),
        "float8_e8m0fnu": lambda y: (y.abs() * 7.3 + 1).to(torch.float8_e8m0fnu).view(torch.uint8),
        "int8": lambda y: (y * 7.3).clamp(-128.0, 127.0).to(torch.int8),
        "int64": lambda y: (y * 7.3 + 0.3).long(),
        "floor": lambda y: (y * 7.3 + 0.3).floor(),
        "ceil": lambda y: (y * 7.3 + 0.3).ceil(),
        "round": lambda y: (y * 7.3).round(),
        "round and clamp": lambda y: ((y * 7.3).round() + 8).clamp(0, 15).to(torch.uint8),
        "trunc": lambda y: (y * 7.3).trunc(),
        "sign": lambda y: (y * 7.3 - 7.3 * y).sign() + (y * 1.1 - 1).sign(),
        "a part": lambda y: (y * 7.3).frac(),
        "remainder": lambda y: (y * 7.3).remainder(1.5),
        "floor division": lambda y: (y * 7.3) // 1.5,
        "comparison": lambda y: y * 7.3 > (y * 2.1).flip(0),
        "argmax": lambda y: (y * 7.3 + 1).argmax(-1),
        "topk": lambda y: (y * 7.3 + 1).sort(dim=-1, stable=True).indices[..., :5],
        "bucketize": lambda y: torch.bucketize(
            y * 7.3, torch.arange(-20.0, 20.0, 0.25, device=y.device).to(y.dtype)
        ),
    }
)


def products(
    quantise: Callable[..., tuple[Tensor, Tensor]], before: str, *dims: int
) -> Callable[..., tuple[Tensor, ...]]:
    """A scaled product of two quantised matrices, and its operands."""

    def product(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        (a, of_a), (b, of_b) = quantise(BEFORE[before](x), *dims), quantise(w, *dims)
        of_b = of_b.t() if dims else of_b
        made = torch._scaled_mm(a, b.t(), scale_a=of_a, scale_b=of_b, out_dtype=torch.bfloat16)
        return made, a.view(torch.uint8), b.view(torch.uint8), of_a, of_b

    return product


def wrong_products(dtype: torch.dtype, device: str, names: tuple[str, ...] = tuple(BEFORE)) -> list[str]:
    """Products of matrices of `dtype` that are not eager's, to the bit."""
    torch.manual_seed(0)
    x, w = (torch.randn(rows, 256, device=device).to(dtype) for rows in (128, 96))
    wrong = []
    for name in names:
        for quantise, dims in ((divided, (1,)), (multiplied, ())):
            function = products(quantise, name, *dims)
            torch._dynamo.reset()
            got, wanted = compiled(function)(x, w), function(x, w)
            if not all(map(torch.equal, got, wanted)):
                wrong.append(f"{quantise.__name__} {name} {dims}")
    return wrong


def wrong_jumps(dtype: torch.dtype, device: str) -> list[str]:
    """Jumps behind arithmetic of `dtype` that are elsewhere than eager's."""
    torch.manual_seed(0)
    x = torch.randn(64, 200, device=device).to(dtype)

    def jumps(x: Tensor) -> list[Tensor]:
        y = (x * 1.3 + 0.7) * 0.9 - x
        return [jump(y) for jump in JUMPS.values()]

    torch._dynamo.reset()
    got, wanted = compiled(jumps)(x), jumps(x)
    return [name for name, a, b in zip(JUMPS, got, wanted, strict=True) if not torch.equal(a, b)]
