"""How fast a GPU's library convolves, by type and layout: a table in Markdown.

    python -m benchmarks.convolution_rates [--device cuda]

What `coilwork_ir.convolution_rates` says of `f32` rests on this. In f32 that rounds to TF32 a convolution
runs on matrix units, else on the units of single threads, whose rate NVIDIA's data sheet of an H200 gives as
67 TFLOP/s. A row is one convolution, forward or with its gradients, as captured (batch, channels, rows,
columns) and in channels-last; conversions that a library puts around its kernel are part of its time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.machine import machine_description
from benchmarks.report import table

CALLS: Final = 10
ROUNDS: Final = 7
KINDS: Final = ("f32", "f32 as TF32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of a convolution over images of `side` squared, with windows of `taps` squared."""

    batch: int
    channels: int
    features: int
    side: int
    taps: int
    groups: int = 1

    @property
    def flops(self) -> float:
        """Additions and multiplications of the forward one."""
        terms = self.channels // self.groups * self.taps**2
        return 2.0 * self.batch * self.features * self.side**2 * terms

    @property
    def name(self) -> str:
        """The sizes, as a row shows them."""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"{self.batch} x {self.channels} x {self.side}², {self.features} of {self.taps}²{groups}"


SHAPES: Final = (
    Shape(batch=32, channels=64, features=64, side=56, taps=3),
    Shape(batch=32, channels=256, features=256, side=14, taps=3),
    Shape(batch=32, channels=256, features=64, side=56, taps=1),
    Shape(batch=32, channels=3, features=64, side=224, taps=7),
    Shape(batch=8, channels=320, features=320, side=64, taps=3),
    Shape(batch=32, channels=96, features=96, side=56, taps=7, groups=96),
    Shape(batch=32, channels=256, features=256, side=28, taps=3, groups=32),
)


def operands(shape: Shape, kind: str, device: str, *, last: bool) -> tuple[Tensor, Tensor]:
    """An image and a weight."""
    order = torch.channels_last if last else torch.contiguous_format
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    sizes = (
        (shape.batch, shape.channels, shape.side, shape.side),
        (shape.features, shape.channels // shape.groups, shape.taps, shape.taps),
    )
    image, weight = (torch.randn(size, device=device).to(dtype).to(memory_format=order) for size in sizes)
    return image.requires_grad_(), weight.requires_grad_()


def time_ms(call: Callable[[], object], device: str) -> float:
    """Milliseconds of a call, the median of rounds of several, by the GPU's clock where there is one."""
    for _ in range(2):
        call()
    found: list[float] = []
    for _ in range(ROUNDS):
        if device == "cpu":
            begun = time.perf_counter()
            call()
            found.append((time.perf_counter() - begun) * 1e3)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / CALLS)
    return statistics.median(found)


def times(shape: Shape, kind: str, device: str, *, trained: bool) -> tuple[float, float]:
    """Milliseconds as captured and in channels-last."""
    torch.backends.cudnn.allow_tf32 = kind != "f32"
    found: list[float] = []
    for last in (False, True):
        image, weight = operands(shape, kind, device, last=last)

        def forward(image: Tensor = image, weight: Tensor = weight) -> Tensor:
            return functional.conv2d(image, weight, padding=shape.taps // 2, groups=shape.groups)

        gradient = torch.ones_like(forward())

        def step(
            image: Tensor = image, weight: Tensor = weight, gradient: Tensor = gradient
        ) -> tuple[Tensor, ...]:
            return torch.autograd.grad(forward(image, weight), (image, weight), gradient)

        found.append(time_ms(step if trained else forward, device))
    return found[0], found[1]


def rows(device: str, shapes: Sequence[Shape]) -> Iterator[list[str]]:
    """One line per shape, type and direction."""
    for shape in shapes:
        for kind in KINDS:
            for trained in (False, True):
                captured, last = times(shape, kind, device, trained=trained)
                # gradients are two more products of the same size
                rate = shape.flops * (3 if trained else 1) / min(captured, last) / 1e9
                what = "with gradients" if trained else "forward"
                numbers = f"{captured:.3g}", f"{last:.3g}", f"{captured / last:.2f}", f"{rate:.1f}"
                yield [shape.name, kind, what, *numbers]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convolution_rates", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--few", action="store_true", help="the last shape alone, to try the benchmark itself"
    )
    found = parser.parse_args()
    shapes = SHAPES[-1:] if found.few else SHAPES
    print(*(f"- {key}: {value}" for key, value in machine_description(found.device).items()), "", sep="\n")
    heads = ["convolution", "type", "what", "captured ms", "channels-last ms", "captured / last", "TFLOP/s"]
    print(*table(heads, list(rows(found.device, shapes))), sep="\n")


if __name__ == "__main__":
    main()
