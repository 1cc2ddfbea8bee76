"""Reductions on a GPU next to Inductor's and eager's, one line per case: `python -m benchmarks.gpu_kernels`.

Times are GPU-busy microseconds of one call by the profiler (median of a few, second-level cache flushed before each). A
share is that of the bandwidth of a copy, on the bytes that the case has to move at least: every tensor read once per pass
over it that cannot be avoided, every result written once. Under a minute and a half on an H200, compilation included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import measure
from benchmarks.backends import compile_with

BACKENDS = ("coilwork", "inductor", "eager")
REPEATS = 5
# Largest difference from eager, relative to the largest value, that rounding to bf16 explains.
TOLERANCE = 3e-2

Results = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function to compile, and how it is called.

    Attributes:
        name: what it is.
        function: what is compiled.
        inputs: makes its arguments, on the GPU.
        train: also take gradients of all inputs.
        passes: how often a tensor of the first input's size is read or written, at least.
    """

    name: str
    function: Callable[..., Tensor]
    inputs: Callable[[], tuple[Tensor, ...]]
    train: bool = False
    passes: float = 1.0


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Normal numbers on the GPU."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, weight, bias, training=True)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias)


def batch_norm_cases(n: int, c: int, h: int, w: int) -> list[Case]:
    """Forward (statistics, then the image again) and with backward, in both layouts."""
    found = []
    for layout, form in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):

        def inputs(form: torch.memory_format = form) -> tuple[Tensor, ...]:
            return random(n, c, h, w).to(memory_format=form), random(c), random(c)

        for train, passes in ((False, 3.0), (True, 8.0)):
            name = f"batch norm {'fwd+bwd' if train else 'fwd'} {layout} [{n},{c},{h},{w}]"
            found.append(Case(name=name, function=batch_norm, inputs=inputs, train=train, passes=passes))
    return found


CASES = (
    Case(name="sum of 64M f32", function=torch.sum, inputs=lambda: (random(1 << 26, dtype=torch.float32),)),
    Case(name="column sums 16384x4096", function=lambda x: x.sum(0), inputs=lambda: (random(16384, 4096),)),
    *batch_norm_cases(256, 64, 56, 56),
    *batch_norm_cases(256, 2048, 7, 7),
    Case(
        name="layer norm fwd+bwd 16384x4096",
        function=layer_norm,
        inputs=lambda: (random(16384, 4096), random(4096), random(4096)),
        train=True,
        passes=5.0,
    ),
    Case(
        name="softmax 4096x8192",
        function=lambda x: x.softmax(-1),
        inputs=lambda: (random(4096, 8192),),
        passes=2.0,
    ),
    Case(
        name="softmax 64x262144 f32",
        function=lambda x: x.softmax(-1),
        inputs=lambda: (random(64, 262144, dtype=torch.float32),),
        passes=3.0,
    ),
)


def call_of(case: Case, inputs: Sequence[Tensor], backend: str) -> Callable[[], Results]:
    """One call of `case` under `backend`: its result, and in training the gradients."""
    torch._dynamo.reset()
    compiled = compile_with(case.function, backend)
    if not case.train:
        return lambda: (compiled(*inputs),)
    leaves = [x.detach().requires_grad_() for x in inputs]
    gradient = torch.randn_like(inputs[0])

    def call() -> Results:
        result = compiled(*leaves)
        return (result, *torch.autograd.grad(result, leaves, gradient))

    return call


def busy_us(call: Callable[[], Results]) -> tuple[float, int]:
    """GPU-busy microseconds of one call, and kernels launched."""
    for _ in range(3):
        call()
    activities = measure.gpu_activity(call, repeats=REPEATS)
    return median(a.busy_ms for a in activities) * 1e3, activities[0].kernels


def copy_bytes_per_us() -> float:
    """What a copy of half a gigabyte moves, read and written."""
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / busy_us(lambda: (target.copy_(source),))[0]


def differs(found: Results, expected: Results) -> bool:
    """True if some result is farther from eager's than rounding explains."""
    for one, other in zip(found, expected, strict=True):
        scale = other.double().abs().max().clamp(min=1e-6)
        worst = (one.double() - other.double()).abs().max() / scale
        if not worst.item() <= TOLERANCE:
            return True
    return False


def measured(case: Case, backends: Sequence[str], bandwidth: float) -> str:
    """The line of `case`."""
    torch.manual_seed(0)
    inputs = case.inputs()
    torch.manual_seed(1)
    expected = call_of(case, inputs, "eager")()
    columns = [f"{case.name:42}"]
    for backend in backends:
        torch.manual_seed(1)
        call = call_of(case, inputs, backend)
        wrong = differs(call(), expected)
        spent, kernels = busy_us(call)
        share = case.passes * inputs[0].nbytes / bandwidth / spent
        columns.append(f"{backend} {spent:8.1f} us {kernels:2}k {share:4.0%}{' DIFFERS' if wrong else ''}")
    return "  ".join(columns)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kernels", description=__doc__)
    parser.add_argument(
        "--backends", default=",".join(BACKENDS), help="comma-separated, each `backend[:mode]`"
    )
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    found = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU", file=sys.stderr)
        return 1
    bandwidth = copy_bytes_per_us()
    print(f"{torch.cuda.get_device_name()}, a copy moves {bandwidth / 1e3:.0f} GB/s", flush=True)
    for case in CASES:
        if found.only in case.name:
            print(measured(case, found.backends.split(","), bandwidth), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
