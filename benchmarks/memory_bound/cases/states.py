"""Quantisation, updates of state, running sums, and rows and columns that data choose."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make, count_stored_bytes, first_bytes
from benchmarks.memory_bound.cases.inputs import normal, normal_f32, two_f32

F32 = torch.float32


def quantised(x: Tensor) -> Tensor:
    return (x.float() * 31.5).round().clamp(-128, 127).to(torch.int8)


def quantised_by_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax().float() / 127
    return (x.float() / scale).round().clamp(-127, 127).to(torch.int8), scale


def momentum_inputs(make: Make, count: int, n: int, m: int) -> Arguments:
    def tensors() -> list[Tensor]:
        return [make.normal(n, m, dtype=F32) for _ in range(count)]

    return tensors(), tensors(), tensors()


def momentum(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor]) -> None:
    torch._foreach_mul_(buffers, 0.9)
    torch._foreach_add_(buffers, grads)
    torch._foreach_add_(params, buffers, alpha=-0.01)


def averaged(average: Tensor, x: Tensor) -> None:
    average.lerp_(x, 0.001)


def bits(make: Make, n: int, m: int) -> Arguments:
    return (make.bits(n, m, one_in=2),)


def positions(mask: Tensor) -> Tensor:
    return mask.long().cumsum(-1) - 1


def sums_from_the_end(x: Tensor) -> Tensor:
    return x.flip(-1).cumsum(-1).flip(-1)


def column_sums_so_far(x: Tensor) -> Tensor:
    return x.cumsum(0)


def indexed_columns(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), torch.randperm(m, device=make.device)


def chosen_columns(x: Tensor, index: Tensor) -> Tensor:
    return x[:, index]


def bags(make: Make, entries: int, width: int, count: int, size: int) -> Arguments:
    return make.normal(entries, width), make.integers(count, size, below=entries)


def bag_sums(table: Tensor, index: Tensor) -> Tensor:
    return table[index].sum(1)


def bag_bytes(table: Tensor, index: Tensor) -> int:
    rows = int(index.unique().numel())
    return rows * table.shape[1] * table.element_size() + count_stored_bytes(index)


def routed(x: Tensor) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(x.float(), -1).topk(2, dim=-1)
    return weights / weights.sum(-1, True), experts


def routing_inputs(make: Make, n: int, m: int) -> Arguments:
    # Distinct by more than rounding, so that every implementation chooses the same experts.
    order = torch.rand(n, m, device=make.device).argsort(-1)
    return (order.to(F32) * 0.05,)


def permuted_rows(make: Make, n: int, m: int) -> Arguments:
    return make.normal(n, m), torch.randperm(n, device=make.device)


def written_rows(x: Tensor, index: Tensor) -> Tensor:
    return torch.empty_like(x).index_copy(0, index, x * 2)


CASES = (
    Case(
        name="quantised 16384x8192 to i8",
        function=quantised,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="quantised by the largest 16384x8192 to i8",
        function=quantised_by_largest,
        inputs=normal,
        size=(16384, 8192),
        tiny=(5, 9),
        again=first_bytes,
        why="the largest of all comes before the first result",
        set="other",
    ),
    Case(
        name="momentum over 30 tensors f32",
        function=momentum,
        inputs=momentum_inputs,
        size=(30, 1024, 1536),
        tiny=(3, 5, 7),
        mutates=(0, 2),
        set="other",
    ),
    Case(
        name="moving average of 64M f32",
        function=averaged,
        inputs=two_f32,
        size=(8192, 8192),
        tiny=(5, 9),
        mutates=(0,),
        set="other",
    ),
    Case(
        name="positions 8192x8192",
        function=positions,
        inputs=bits,
        size=(8192, 8192),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="sums from the end 8192x4096 f32",
        function=sums_from_the_end,
        inputs=normal_f32,
        size=(8192, 4096),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="cumsum of columns 2048x32768 f32",
        function=column_sums_so_far,
        inputs=normal_f32,
        size=(2048, 32768),
        tiny=(9, 5),
        set="other",
    ),
    Case(
        name="columns in another order 16384x4096",
        function=chosen_columns,
        inputs=indexed_columns,
        size=(16384, 4096),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="sums of bags of 20, 500000x128",
        function=bag_sums,
        inputs=bags,
        size=(500000, 128, 65536, 20),
        tiny=(30, 8, 5, 3),
        reads=bag_bytes,
        set="other",
    ),
    Case(
        name="two of 64 experts for 524288 tokens f32",
        function=routed,
        inputs=routing_inputs,
        size=(524288, 64),
        tiny=(5, 9),
        set="other",
    ),
    Case(
        name="rows written in another order 131072x1024",
        function=written_rows,
        inputs=permuted_rows,
        size=(131072, 1024),
        tiny=(9, 5),
        set="other",
    ),
)
