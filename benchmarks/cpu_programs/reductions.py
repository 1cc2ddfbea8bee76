"""Programs that reduce, scan and look up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cpu_programs.case import Case
from benchmarks.cpu_programs.pointwise import COLUMNS, ROWS, matrices, normal


def images(*, channels_last: bool = False, affine: bool = False) -> Callable[[], tuple[Tensor, ...]]:
    def make() -> tuple[Tensor, ...]:
        (x,) = normal((8, 32, 64, 64))
        if channels_last:
            x = x.to(memory_format=torch.channels_last)
        return (x, *normal((32,), (32,))) if affine else (x,)

    return make


def rows_at(count: int, rows: int, width: int) -> Callable[[], tuple[Tensor, ...]]:
    def make() -> tuple[Tensor, ...]:
        table, source = normal((rows, width), (count, width))
        return table, torch.randint(0, rows, (count,)), source

    return make


def places() -> tuple[Tensor, ...]:
    x, source = normal((ROWS, COLUMNS), (ROWS, COLUMNS // 2))
    return x, torch.randint(0, COLUMNS, source.shape), source


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.silu(functional.group_norm(x, 8, weight, bias))


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.relu(functional.batch_norm(x, None, None, weight, bias, training=True))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (COLUMNS,), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def of_rows(name: str, function: Callable[..., Any], **settings: Any) -> Case:
    return Case(name=name, function=function, inputs=matrices(**settings))


def pooled(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, 2, 1)


def with_weights(count: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: normal((ROWS, COLUMNS), *[(COLUMNS,)] * count)


CASES: Final = (
    of_rows("softmax", lambda x: x.softmax(-1)),
    of_rows("softmax, bf16", lambda x: x.softmax(-1), dtype=torch.bfloat16),
    of_rows("softmax across memory", lambda x: x.softmax(0)),
    Case(name="softmax of 32", function=lambda x: x.softmax(-1), inputs=lambda: normal((65536, 32))),
    of_rows("extremes of rows", lambda x: (x.amax(-1), x.amin(-1))),
    of_rows("argmax", lambda x: x.argmax(-1)),
    of_rows("sums of rows", lambda x: x.sum(-1)),
    of_rows("sums of columns", lambda x: x.sum(0)),
    of_rows("variance", lambda x: torch.var_mean(x, -1)),
    of_rows("running sums", lambda x: x.cumsum(-1)),
    of_rows("running sums across memory", lambda x: x.cumsum(0)),
    Case(
        name="columns of a sum with a transpose",
        function=lambda x, y: (x.t() + y).sum(0),
        inputs=lambda: normal((2048, 2048), (2048, 2048)),
    ),
    Case(name="layer norm", function=layer_norm, inputs=with_weights(2)),
    Case(name="layer norm, gradients", function=layer_norm, inputs=with_weights(2), backward=True),
    Case(name="RMS norm", function=rms_norm, inputs=with_weights(1)),
    Case(name="RMS norm, gradients", function=rms_norm, inputs=with_weights(1), backward=True),
    Case(name="group norm", function=group_norm, inputs=images(affine=True)),
    Case(
        name="group norm, channels last",
        function=group_norm,
        inputs=images(affine=True, channels_last=True),
    ),
    Case(name="batch norm, gradients", function=batch_norm, inputs=images(affine=True), backward=True),
    Case(
        name="batch norm, gradients, channels last",
        function=batch_norm,
        inputs=images(affine=True, channels_last=True),
        backward=True,
    ),
    Case(name="max pooling", function=pooled, inputs=images()),
    Case(name="max pooling, channels last", function=pooled, inputs=images(channels_last=True)),
    Case(name="max pooling, gradients", function=pooled, inputs=images(), backward=True),
    Case(name="gather", function=lambda x, at, _: x.gather(1, at), inputs=places),
    Case(name="scatter_add", function=lambda x, at, y: x.scatter_add(1, at, y), inputs=places),
    Case(
        name="rows added at positions",
        function=lambda x, at, y: x.index_add(0, at, y),
        inputs=rows_at(65536, 1000, 256),
    ),
    Case(
        name="cross-entropy, gradients",
        function=functional.cross_entropy,
        inputs=lambda: (*normal((512, 32000)), torch.randint(0, 32000, (512,))),
        backward=True,
    ),
)
