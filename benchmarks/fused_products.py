"""Products of matrices with what follows them, on a GPU: time beside eager and another compiler, and float64.

    python -m benchmarks.fused_products                         every case
    python -m benchmarks.fused_products --only swiglu --beside inductor,autotune

Each line has, in microseconds that the device is busy, what each way to run takes, how many kernels ours
launches, and how far results are from float64, in units of the largest element: ours, and eager's. `forced`
is ours with generated kernels for all products, which shows what the choice left out.
"""

from __future__ import annotations

import argparse
import fcntl
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional as F

WAYS: Final = ("eager", "coilwork", "forced", "inductor", "autotune")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A function of tensors, and their shapes. The last dimension of each scales what is drawn for it."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.bfloat16


def activate(activation: Callable[[Tensor], Tensor], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return activation(F.linear(x, w, b))


def gate(activation: Callable[[Tensor], Tensor], x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return activation(F.linear(x, w)) * F.linear(x, v)


def add_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def scale_batches(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(torch.bmm(x, y)) * 0.5


def cap_batches(x: Tensor, y: Tensor) -> Tensor:
    return 20 * torch.tanh(torch.bmm(x, y.mT) / 20)


def keep_both(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    y = F.linear(x, w, b)
    return y, F.silu(y)


def widen(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w).float() * s


def pass_gradient(g: Tensor, w: Tensor, h: Tensor) -> Tensor:
    return (g @ w) * (h > 0)


def adapt(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w) + 0.5 * F.linear(F.linear(x, a), b)


def linear(m: int, n: int, k: int, *more: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes of `x [m, k]`, a weight `[n, k]` and more."""
    return ((m, k), (n, k), *more)


gelu = partial(F.gelu, approximate="tanh")

CASES: Final = (
    Case(name="relu-4096", function=partial(activate, torch.relu), shapes=linear(4096, 4096, 4096, (4096,))),
    Case(name="silu-8192", function=partial(activate, F.silu), shapes=linear(8192, 8192, 8192, (8192,))),
    Case(name="silu-k1024", function=partial(activate, F.silu), shapes=linear(8192, 4096, 1024, (4096,))),
    Case(name="gelu-768", function=partial(activate, gelu), shapes=linear(8192, 3072, 768, (3072,))),
    Case(name="add-768", function=add_residual, shapes=linear(8192, 768, 3072, (768,), (8192, 768))),
    Case(name="add-4096", function=add_residual, shapes=linear(4096, 4096, 4096, (4096,), (4096, 4096))),
    Case(name="silu-m512", function=partial(activate, F.silu), shapes=linear(512, 4096, 4096, (4096,))),
    Case(name="swiglu-4096", function=partial(gate, F.silu), shapes=linear(4096, 11008, 4096, (11008, 4096))),
    Case(name="swiglu-2048", function=partial(gate, F.silu), shapes=linear(2048, 8192, 2048, (8192, 2048))),
    Case(name="swiglu-m64", function=partial(gate, F.silu), shapes=linear(64, 11008, 4096, (11008, 4096))),
    Case(name="geglu-640", function=partial(gate, F.gelu), shapes=linear(8192, 2560, 640, (2560, 640))),
    Case(name="bmm-64", function=scale_batches, shapes=((1024, 64, 64), (1024, 64, 64))),
    Case(name="bmm-128", function=scale_batches, shapes=((1024, 128, 128), (1024, 128, 128))),
    Case(name="bmm-256", function=scale_batches, shapes=((1024, 256, 64), (1024, 64, 256))),
    Case(name="bmm-cap", function=cap_batches, shapes=((64, 1024, 64), (64, 1024, 64))),
    Case(name="odd-4095", function=torch.mm, shapes=((4095, 4097), (4097, 4093))),
    Case(name="odd-2047", function=partial(activate, torch.relu), shapes=linear(2047, 2051, 2049, (2051,))),
    Case(name="both", function=keep_both, shapes=linear(8192, 4096, 1024, (4096,))),
    Case(name="f32-result", function=widen, shapes=linear(8192, 4096, 1024, (4096,))),
    Case(name="gradient", function=pass_gradient, shapes=((8192, 768), (768, 3072), (8192, 3072))),
    Case(name="lora", function=adapt, shapes=linear(4096, 4096, 4096, (16, 4096), (4096, 16))),
    Case(
        name="f16-gelu",
        function=partial(activate, F.gelu),
        shapes=linear(4096, 4096, 1024, (4096,)),
        dtype=torch.float16,
    ),
)


def draw(case: Case, device: str) -> list[Tensor]:
    """Inputs of the case; weights are as large as keeps results near 1."""
    generator = torch.Generator(device).manual_seed(0)
    found = []
    for number, shape in enumerate(case.shapes):
        scale = shape[-1] ** -0.5 if number == 1 else 1.0
        one = torch.randn(*shape, device=device, generator=generator) * scale
        found.append(one.to(case.dtype))
    return found


def compiled(case: Case, way: str) -> Callable[..., Any]:
    """The function of `case`, as `way` runs it."""
    torch._dynamo.reset()
    match way:
        case "eager":
            return case.function
        case "coilwork":
            return torch.compile(case.function, backend="coilwork", dynamic=False)
        case "forced":
            return torch.compile(
                case.function, backend="coilwork", options={"contractions": "generated"}, dynamic=False
            )
        case "inductor":
            return torch.compile(case.function, dynamic=False)
        case _:
            return torch.compile(case.function, mode="max-autotune-no-cudagraphs", dynamic=False)


def measure(run: Callable[[], object], lock: str) -> float:
    """Microseconds that the device is busy with `run`, while no other process that has the same file `lock`
    measures: a CUDA graph of calls, replayed.
    """
    from triton.testing import do_bench_cudagraph

    with open(lock, "w") if lock else nullcontext() as file:
        if file is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        return 1e3 * float(do_bench_cudagraph(run, rep=20, return_mode="median"))


def count_kernels(run: Callable[[], object]) -> int:
    """Kernels that `run` launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        run()
        torch.cuda.synchronize()
    return sum("CUDA" in str(event.device_type) for event in profile.events())


def distance(found: Any, exact: Any) -> float:
    """The greatest difference in units of the greatest element, over all results."""
    pairs = zip(found, exact, strict=True) if isinstance(found, tuple) else ((found, exact),)
    return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def run(case: Case, ways: Sequence[str], device: str, lock: str) -> str:
    """A line about `case`."""
    given = draw(case, device)
    begin = time.time()
    parts: list[str] = []
    with torch.no_grad():
        exact = case.function(*(x.double() for x in given))
        for way in ways:
            try:
                function = compiled(case, way)
                found = function(*given)
                call = partial(function, *given)
                part = f"{way} {measure(call, lock):.1f}"
                if way in ("coilwork", "forced"):
                    part += f" ({count_kernels(call)} kernels)"
                if way in ("eager", "coilwork", "forced"):
                    part += f" off {distance(found, exact):.1e}"
            except RuntimeError as error:  # the others are still worth measuring
                part = f"{way} FAILED {error!r:.200}"
            parts.append(part)
    return f"{case.name:12} {' | '.join(parts)} [{time.time() - begin:.0f} s]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="names of cases, joined by commas")
    parser.add_argument("--beside", default="", help="other ways to run, joined by commas")
    parser.add_argument("--lock", default="", help="a file that processes that measure share")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else []
    ways = ["eager", "coilwork", *(way for way in options.beside.split(",") if way in WAYS)]
    for case in CASES:
        if not wanted or case.name in wanted:
            print(run(case, ways, "cuda", options.lock), flush=True)


if __name__ == "__main__":
    main()
