"""Products of few rows with a weight of 8 or 4 bits on one thread of this CPU: a kernel that widens the
weight as it reads it, beside a library's product of the widened weight.

`python -m benchmarks.narrow_weights` prints a table in Markdown.

Both are compiled, and called in turns; the least processor time of many calls. The last column is the time of
Inductor's program over that of the way that Coilwork chooses by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

CALLS: Final = 20
ROWS: Final = (1, 2, 3, 4, 8, 16)
SIZES: Final = ((768, 2048), (2048, 768), (4096, 4096))
TYPES: Final = (torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A linear layer whose weight is narrow, and its input."""

    name: str
    layer: Callable[[Tensor], Tensor]
    value: Tensor


def cases() -> Iterator[Case]:
    """Bytes and floats of 8 bits with a scale per column, and pairs of four bits with one per group of 64."""
    generator = torch.Generator().manual_seed(0)
    for dtype in TYPES:
        for terms, columns in SIZES:
            wide = torch.randint(-127, 127, (columns, terms), dtype=torch.int8, generator=generator)
            packed = torch.randint(0, 255, (columns, terms // 2), dtype=torch.uint8, generator=generator)
            scale = torch.rand(columns, generator=generator).to(dtype)
            groups = torch.rand(columns, terms // 64, 1, generator=generator).to(dtype)

            def of_bytes(x: Tensor, weight: Tensor = wide, scale: Tensor = scale) -> Tensor:
                return functional.linear(x, weight.to(x.dtype)) * scale

            small = torch.randn(columns, terms, generator=generator).to(torch.float8_e4m3fn)
            of_floats = partial(of_bytes, weight=small)

            def of_pairs(x: Tensor, pairs: Tensor = packed, scale: Tensor = groups) -> Tensor:
                values = torch.stack((pairs & 15, pairs >> 4), dim=-1).to(x.dtype) - 8
                weight = values.reshape(scale.shape[0], -1, 64) * scale
                return functional.linear(x, weight.reshape(scale.shape[0], -1))

            for rows in ROWS:
                value = torch.randn(rows, terms, generator=generator).to(dtype)
                text = f"{rows} x {terms} to {columns}, {str(dtype).removeprefix('torch.')}"
                yield Case(name=f"8 bits, {text}", layer=of_bytes, value=value)
                yield Case(name=f"8 bits of a float, {text}", layer=of_floats, value=value)
                yield Case(name=f"4 bits, {text}", layer=of_pairs, value=value)


def measure(case: Case) -> dict[str, float]:
    """Microseconds of processor time of a call, by the way it is compiled."""
    ways: dict[str, dict[str, Any]] = {
        "library": {"backend": "coilwork", "options": {"contractions": "aten"}},
        "kernel": {"backend": "coilwork", "options": {"contractions": "generated"}},
        "chosen": {"backend": "coilwork"},
        "inductor": {"backend": "inductor"},
    }
    least: dict[str, float] = {}
    with torch.no_grad():
        compiled = {}
        for way, how in ways.items():
            torch._dynamo.reset()
            compiled[way] = torch.compile(case.layer, **how)
            compiled[way](case.value)
        for _ in range(CALLS):
            for way, function in compiled.items():
                start = time.process_time_ns()
                function(case.value)
                least[way] = min(least.get(way, float("inf")), (time.process_time_ns() - start) / 1e3)
    return least


def main() -> None:
    torch.set_num_threads(1)
    print("| layer | library, us | kernel, us | kernel over library | chosen, us | Inductor over chosen |")
    print("|---|---|---|---|---|---|")
    for case in cases():
        us = measure(case)
        print(
            f"| {case.name} | {us['library']:.0f} | {us['kernel']:.0f} | "
            f"{us['kernel'] / us['library']:.2f} | {us['chosen']:.0f} | "
            f"{us['inductor'] / us['chosen']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
