"""Sums, extremes, variances and tests, along rows, columns and everything."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.memory_bound.case import Arguments, Case, Make

F32 = torch.float32


def matrix(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m),)


def matrix_f32(make: Make, n: int, m: int) -> Arguments:
    return (make.normal(n, m, dtype=F32),)


def vector_f32(make: Make, n: int) -> Arguments:
    return (make.normal(n, dtype=F32),)


def boolean_rows(make: Make, n: int, m: int) -> Arguments:
    return (make.bits(n, m, one_in=2 * m),)


def cube(make: Make, a: int, b: int, c: int) -> Arguments:
    return (make.normal(a, b, c),)


def channels_last(make: Make, n: int, c: int, h: int, w: int) -> Arguments:
    return (make.normal(n, h, w, c).permute(0, 3, 1, 2),)


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1)


def column_argmax(x: Tensor) -> Tensor:
    return x.argmax(0)


def row_max(x: Tensor) -> tuple[Tensor, Tensor]:
    values, indices = x.max(-1)
    return values, indices


def var_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim=-1)


def column_var_mean(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.var_mean(x, dim=0)


def column_sums(x: Tensor) -> Tensor:
    return x.sum(0)


def row_sums(x: Tensor) -> Tensor:
    return x.sum(-1)


def rows_and_columns(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(-1), x.sum(0)


def middle_amax(x: Tensor) -> Tensor:
    return x.amax(1)


def norm_of_all(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm


def row_norms(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norms


def any_and_all(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.any(-1), x.all(-1)


def normalized(x: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / norms


def pooled(x: Tensor) -> Tensor:
    return x.mean((2, 3))


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


CASES = (
    Case(name="argmax 8192x32768", function=argmax, inputs=matrix, size=(8192, 32768), tiny=(5, 90)),
    Case(name="var_mean 16384x8192", function=var_mean, inputs=matrix, size=(16384, 8192), tiny=(5, 90)),
    Case(name="sum of 64M f32", function=torch.sum, inputs=vector_f32, size=(1 << 26,), tiny=(5000,)),
    Case(
        name="column sums 16384x4096", function=column_sums, inputs=matrix, size=(16384, 4096), tiny=(60, 12)
    ),
    Case(
        name="any and all of rows 65536x4096",
        function=any_and_all,
        inputs=boolean_rows,
        size=(65536, 4096),
        tiny=(9, 40),
    ),
    Case(
        name="norms of rows of 64 2097152x64",
        function=row_norms,
        inputs=matrix,
        size=(1 << 21, 64),
        tiny=(40, 64),
    ),
    Case(
        name="row sums 1x64000000 f32",
        function=row_sums,
        inputs=matrix_f32,
        size=(1, 64_000_000),
        tiny=(1, 5000),
    ),
    Case(name="row sums 4000000x32", function=row_sums, inputs=matrix, size=(4_000_000, 32), tiny=(70, 32)),
    Case(
        name="row sums 1000000x32 f32",
        function=row_sums,
        inputs=matrix_f32,
        size=(1_000_000, 32),
        tiny=(70, 32),
        set="more",
    ),
    Case(
        name="standardized row 1x4000000 f32",
        function=standardized,
        inputs=matrix_f32,
        size=(1, 4_000_000),
        tiny=(1, 5000),
        set="cached",
    ),
    Case(
        name="standardized rows 1000000x32",
        function=standardized,
        inputs=matrix,
        size=(1_000_000, 32),
        tiny=(70, 32),
        set="more",
    ),
    Case(
        name="max with indices 16384x8192",
        function=row_max,
        inputs=matrix,
        size=(16384, 8192),
        tiny=(5, 90),
        set="more",
    ),
    Case(
        name="argmax of columns 8192x16384",
        function=column_argmax,
        inputs=matrix,
        size=(8192, 16384),
        tiny=(90, 9),
        set="more",
    ),
    Case(
        name="var_mean of columns 32768x4096",
        function=column_var_mean,
        inputs=matrix,
        size=(32768, 4096),
        tiny=(90, 9),
        set="more",
    ),
    Case(
        name="sums of rows and columns 16384x8192",
        function=rows_and_columns,
        inputs=matrix,
        size=(16384, 8192),
        tiny=(30, 20),
        set="more",
    ),
    Case(
        name="amax of the middle 64x1024x2048",
        function=middle_amax,
        inputs=cube,
        size=(64, 1024, 2048),
        tiny=(3, 20, 9),
        set="more",
    ),
    Case(
        name="norm of 128M",
        function=norm_of_all,
        inputs=matrix,
        size=(16384, 8192),
        tiny=(30, 20),
        set="more",
    ),
    Case(
        name="divided by its norm 262144x512",
        function=normalized,
        inputs=matrix,
        size=(262144, 512),
        tiny=(9, 40),
        set="more",
    ),
    Case(
        name="mean of images NHWC 256x256x56x56",
        function=pooled,
        inputs=channels_last,
        size=(256, 256, 56, 56),
        tiny=(2, 8, 5, 6),
        set="more",
    ),
    Case(
        name="row sums 4096x2048 in cache",
        function=row_sums,
        inputs=matrix,
        size=(4096, 2048),
        tiny=(9, 40),
        set="cached",
    ),
    Case(
        name="column sums 4096x2048 in cache",
        function=column_sums,
        inputs=matrix,
        size=(4096, 2048),
        tiny=(60, 12),
        set="cached",
    ),
)
