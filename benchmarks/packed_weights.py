"""Frozen weights packed for oneDNN beside weights as they are: `python -m benchmarks.packed_weights`, a table
in Markdown.

Layers of BERT-base and ResNet-50 on one thread of this CPU, both compiled with `freezing`, called in turns;
the least of many times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn

from coilwork.backend import backend

SECONDS: Final = 1.0
TYPES: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layer, and what it is given."""

    name: str
    layer: nn.Module
    value: Tensor


def cases() -> Iterator[Case]:
    """Products of few and many rows, and convolutions in channels-last."""
    for rows in (1, 16, 128, 256):
        for columns, width in ((768, 768), (768, 3072), (3072, 768)):
            yield Case(
                name=f"linear {rows} x {columns} to {width}",
                layer=nn.Linear(columns, width),
                value=torch.randn(rows, columns),
            )
    for width, outgoing, kernel, side in ((256, 1024, 1, 14), (256, 256, 3, 14), (512, 512, 3, 7)):
        layer = nn.Conv2d(width, outgoing, kernel, padding=kernel // 2)
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        yield Case(
            name=f"convolution {kernel} x {kernel}, {width} to {outgoing}, {side} x {side}",
            layer=layer,
            value=torch.randn(1, width, side, side).to(memory_format=torch.channels_last),
        )


def compile_layer(case: Case, *, packed: bool) -> Callable[[], Any]:
    """A call of the layer, compiled with its weight packed or as it is."""
    layer = case.layer.eval()

    def function() -> Any:
        return layer(case.value)

    made = torch.compile(function, backend=partial(backend, options={"freezing": True, "cache": False}))
    with mock.patch("coilwork.backend.can_pack_weights", return_value=packed):
        made()
    return made


def least_us(calls: tuple[Callable[[], Any], ...]) -> list[float]:
    """The least time of each call, in turns."""
    found = [float("inf")] * len(calls)
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call()
            found[k] = min(found[k], 1e6 * (time.perf_counter() - start))
    return found


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    print("| layer | type | us | packed | times as fast |\n|---|---|---:|---:|---:|")
    for case in cases():
        for dtype in TYPES:
            torch._dynamo.reset()
            typed = Case(name=case.name, layer=case.layer.to(dtype), value=case.value.to(dtype))
            plain, packed = least_us((compile_layer(typed, packed=False), compile_layer(typed, packed=True)))
            kind = str(dtype).removeprefix("torch.")
            print(
                f"| {case.name} | `{kind}` | {plain:.0f} | {packed:.0f} | {plain / packed:.2f} |", flush=True
            )


if __name__ == "__main__":
    main()
