"""One compiled model called very often, at sizes that change: memory stays where it is, and so do the
results.

`python -m benchmarks.many_calls --calls 1000000` prints the process's resident memory along the way, and
fails if it grows or if a result is not, bit for bit, what the first call of that size returned (which is
compared with eager).
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend

SIZES = tuple(range(2, 99))
MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
MOST_GROWTH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where a run stood: calls done, seconds, resident bytes."""

    calls: int
    seconds: float
    resident_bytes: int


class Model(torch.nn.Module):
    """A kernel, a product that ATen computes, a reduction, and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(self.linear(x)) + x
        return (y / (y.sum(0, keepdim=True) + 100)).t().reshape(-1), y.amax(1)


def training_step(
    call: Callable[[Tensor], tuple[Tensor, ...]], model: Model, x: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of all parameters of `model`, which `call` runs."""
    first, second = call(x)
    model.zero_grad(set_to_none=True)
    (first.square().sum() + second.sum()).backward()
    return tuple(p.grad for p in model.parameters() if p.grad is not None)


def run(calls: int, *, training: bool, options: Mapping[str, str]) -> Iterator[Mark]:
    """Make the calls; yields at each of `MARKS`.

    Raises:
        AssertionError: a result is not what it was before, or not what eager computes.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    compiled = torch.compile(model, backend=resolve_backend("coilwork"), dynamic=True, options=dict(options))
    call: Callable[[Tensor], tuple[Tensor, ...]] = compiled
    eager: Callable[[Tensor], tuple[Tensor, ...]] = model
    if training:
        call, eager = partial(training_step, compiled, model), partial(training_step, model, model)
    inputs = [torch.randn(size, 16) for size in SIZES]
    with torch.set_grad_enabled(training):
        expected = []
        for x in inputs:
            theirs = tuple(value.clone() for value in eager(x))
            expected.append(tuple(value.clone() for value in call(x)))
            torch.testing.assert_close(expected[-1], theirs)
        start, marks = time.perf_counter(), [int(calls * share) for share in MARKS]
        for number in range(1, calls + 1):
            which = number * 31 % len(SIZES)
            for ours, before in zip(call(inputs[which]), expected[which], strict=True):
                assert torch.equal(ours, before), f"call {number}, size {SIZES[which]}"
            if number in marks:
                gc.collect()
                yield Mark(calls=number, seconds=time.perf_counter() - start, resident_bytes=resident_bytes())


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_calls", description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--training", action="store_true", help="a forward and a backward pass per call")
    parser.add_argument("--executor", default="native", choices=("native", "python"))
    asked = parser.parse_args(arguments)
    marks = []
    for mark in run(asked.calls, training=asked.training, options={"executor": asked.executor}):
        marks.append(mark)
        print(
            f"{mark.calls:>9} calls  {mark.seconds:8.1f} s  {1e6 * mark.seconds / mark.calls:7.1f} us "
            "each, comparison "
            f"included  {mark.resident_bytes / 2**20:8.1f} MiB resident",
            flush=True,
        )
    growth = marks[-1].resident_bytes - marks[0].resident_bytes
    print(f"{growth / 2**10:.0f} KiB more after the last call than after the first {MARKS[0]:.0%}")
    return int(growth > MOST_GROWTH_BYTES)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
