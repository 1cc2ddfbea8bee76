"""Running sums and products, sorting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make

F32 = torch.float32


def matrix(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m),)


def matrix_f32(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m, dtype=F32),)


def factors(make: Make, n: int, m: int) -> Arguments:
    return (make.near_one(n, m, dtype=F32),)


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def column_cumsum(x: Tensor) -> Tensor:
    return x.cumsum(0)


def cumprod(x: Tensor) -> Tensor:
    return x.cumprod(-1)


def logcumsumexp(x: Tensor) -> Tensor:
    return x.logcumsumexp(-1)


def cummax(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.cummax(-1)
    return values, indices


def sort_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.sort(-1)
    return values, indices


def topk(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.topk(64, dim=-1)
    return values, indices


def picked(inputs: Arguments, results: Sequence[Tensor]) -> str:
    """Values must be eager's; among equal ones any index will do, but each index once."""
    (x,) = inputs
    values, indices = results
    expected = x.sort(-1, descending=bool(values[0, 0] > values[0, -1])).values[:, : values.shape[1]]
    if not torch.equal(values, expected):
        return "other values than eager's"
    if not torch.equal(x.gather(-1, indices), values):
        return "indices do not lead to the values"
    ordered = indices.sort(-1).values
    return "an index occurs twice" if (ordered[:, 1:] == ordered[:, :-1]).any() else ""


CASES = (
    Case(name="cumsum 8192x8192", function=cumsum, inputs=matrix, size=(8192, 8192), tiny=(5, 90)),
    Case(name="cumprod 8192x8192 f32", function=cumprod, inputs=factors, size=(8192, 8192), tiny=(5, 90)),
    Case(
        name="logcumsumexp 8192x8192 f32",
        function=logcumsumexp,
        inputs=matrix_f32,
        size=(8192, 8192),
        tiny=(5, 90),
    ),
    Case(
        name="sort rows of 1024 32768x1024",
        function=sort_rows,
        inputs=matrix,
        size=(32768, 1024),
        tiny=(5, 64),
        check=picked,
    ),
    Case(
        name="top 64 of 16384x4096",
        function=topk,
        inputs=matrix,
        size=(16384, 4096),
        tiny=(5, 128),
        check=picked,
    ),
    Case(
        name="cumsum of columns 8192x8192",
        function=column_cumsum,
        inputs=matrix,
        size=(8192, 8192),
        tiny=(90, 5),
        set="more",
    ),
    Case(
        name="cumsum 64x1048576 f32",
        function=cumsum,
        inputs=matrix_f32,
        size=(64, 1 << 20),
        tiny=(2, 3000),
        set="more",
    ),
    Case(
        name="cumsum of rows of 128 524288x128",
        function=cumsum,
        inputs=matrix,
        size=(524288, 128),
        tiny=(50, 128),
        set="more",
    ),
    Case(
        name="cummax 16384x4096", function=cummax, inputs=matrix, size=(16384, 4096), tiny=(5, 90), set="more"
    ),
    Case(
        name="sort rows of 128 262144x128 f32",
        function=sort_rows,
        inputs=matrix_f32,
        size=(262144, 128),
        tiny=(5, 64),
        check=picked,
        set="more",
    ),
    Case(
        name="top 64 of 65536x512 f32",
        function=topk,
        inputs=matrix_f32,
        size=(65536, 512),
        tiny=(5, 128),
        check=picked,
        set="more",
    ),
    Case(
        name="cumsum 2048x4096 in cache",
        function=cumsum,
        inputs=matrix,
        size=(2048, 4096),
        tiny=(5, 90),
        set="cached",
    ),
)
