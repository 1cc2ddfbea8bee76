"""Programs whose tensors are on a CPU and on another device, which each of them gets to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

CPU: Final = torch.device("cpu")
Two = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def factories(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """Small kernels of one kind on each device."""
    where = there.device
    made = [torch.full((3, 4), float(k), device=device) for k in range(4) for device in (CPU, where)]
    scalars = [torch.zeros((), device=device) for device in (CPU, where, CPU, where)]
    ranges = [torch.arange(7, device=device) * 2 for device in (CPU, where)]
    return (*made, *scalars, *ranges)


def likes(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    where = there.device
    return tuple(
        made
        for one in (host, there)
        for made in (
            torch.zeros_like(one),
            torch.ones_like(one, device=where),
            torch.full_like(one, 2.5, device=CPU),
            one.new_zeros(3),
            one.new_ones(3, device=CPU),
        )
    )


def alike(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """One kernel's text on two devices."""
    return torch.sin(host) * 2, torch.sin(there) * 2, host.sum(), there.sum(), host.cumsum(0), there.cumsum(0)


def moved(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    where = there.device
    back = (there * 2).to(CPU) + host
    forth = (host + 1).to(where, torch.float64) * there
    return back, forth, there.to(CPU, torch.bfloat16), host.to(where, torch.int32, copy=True)


def moved_by_parts(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    four = host.view(1, 1, *host.shape).expand(2, 3, *host.shape)
    last = (four * 2).to(there.device, torch.float64, memory_format=torch.channels_last)
    return last, host.t().to(there.device), host.narrow(1, 1, 5).to(there.device) + 1


def scalars(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """0-dimensional tensors of the CPU go everywhere."""
    scale = host.sum()
    return there * scale, torch.where(there > 0, there, scale), torch.addcmul(there, there, scale), scale * 2


def numbers(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    """Made of numbers alone: nothing of them has to cross."""
    where = there.device
    positions = torch.arange(there.shape[1]).to(where)
    kept = torch.where(there > 0, there, torch.full((), -1e9))
    return there * positions, kept, torch.arange(4, device=where).to(CPU) + host.sum(), positions * 2


def rows_and_columns(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    for x in (host, there):
        wide = x.repeat(64, 8)
        normal = functional.layer_norm(wide, wide.shape[1:])
        found += [normal, wide.sum(0), wide.softmax(-1), wide.sort(-1).values, wide.t() @ wide]
    return tuple(found)


def written(host: Tensor, there: Tensor) -> tuple[Tensor, ...]:
    counted = torch.zeros(4)
    counted += host.select(0, 0).narrow(0, 0, 4)
    result = torch.zeros(4, device=there.device)
    result += there.select(0, 0).narrow(0, 0, 4)
    result = torch.ops.aten.copy.default(result, counted)
    return counted, result


PROGRAMS: Final[Mapping[str, Two]] = MappingProxyType(
    {
        one.__name__: one
        for one in (
            factories,
            likes,
            alike,
            moved,
            moved_by_parts,
            scalars,
            numbers,
            rows_and_columns,
            written,
        )
    }
)
