"""Programs that compute point by point, and such that move what lies elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.cpu_programs.case import Case

ROWS, COLUMNS = 4096, 1024


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape).to(dtype) for shape in shapes)


def matrices(count: int = 1, dtype: torch.dtype = torch.float32) -> Callable[[], tuple[Tensor, ...]]:
    return partial(normal, *[(ROWS, COLUMNS)] * count, dtype=dtype)


def gated(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return left * functional.gelu(right)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def quantised(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8)


def tiled(x: Tensor, y: Tensor) -> Tensor:
    return x + y.t()


def point(name: str, function: Callable[..., Any], count: int = 1, **settings: Any) -> Case:
    return Case(name=name, function=function, inputs=matrices(count, **settings))


CASES: Final = (
    point("fmod", torch.fmod, 2),
    point("remainder", torch.remainder, 2),
    point("floor division", lambda x, y: torch.div(x, y, rounding_mode="floor"), 2),
    point("lgamma", torch.lgamma),
    point("gelu", functional.gelu),
    point("gelu, bf16", functional.gelu, dtype=torch.bfloat16),
    point("silu and product, bf16", lambda x, y: functional.silu(x) * y, 2, dtype=torch.bfloat16),
    point("exp", torch.exp),
    point("clamp and round", lambda x: x.clamp(-1, 1).round()),
    point("nan_to_num", torch.nan_to_num),
    point("where", lambda x: torch.where(x > 0, x, x.exp())),
    point("gated gelu", gated),
    point("rows in 8 bits", quantised),
    Case(
        name="rotary embedding",
        function=rotary,
        inputs=lambda: normal((4, 512, 16, 64), (512, 1, 32), (512, 1, 32)),
    ),
    Case(name="sum with a transpose", function=tiled, inputs=lambda: normal((2048, 2048), (2048, 2048))),
    Case(
        name="channels last",
        function=lambda x: x.permute(0, 2, 3, 1).contiguous(),
        inputs=lambda: normal((8, 32, 64, 64)),
    ),
    point("sum and product", lambda x, y: x + y * 2, 2),
    point("concatenation", lambda x, y: torch.cat([x.relu(), y * 2]), 2),
    point("roll", lambda x: x.roll(7, -1)),
    Case(
        name="bilinear upsampling",
        function=lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
        inputs=lambda: normal((8, 32, 64, 64)),
    ),
)
