"""A vocabulary product and its cross-entropy: time, memory and accuracy, beside other compilers.

    python -m benchmarks.vocabulary_loss                     on a GPU: 8192 x 2048 x 50304 in bf16
    python -m benchmarks.vocabulary_loss --beside inductor --only mean,cap
    python -m benchmarks.vocabulary_loss --device cpu --rows 512 --inner 256 --vocabulary 8000 --dtype f32

Each line has milliseconds of forward and backward together, the most memory beyond what was there before, and
relative distances (2-norms) of the loss and of the gradients of hidden states and of weights from float64.
Eager's own come first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

DTYPES: Final = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def widen(logits: Tensor) -> Tensor:
    """`logits` in f32, unless they are wider."""
    return logits if logits.dtype is torch.float64 else logits.float()


def mean(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(widen(hidden @ weight.t()), labels)


def smooth(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(widen(F.linear(hidden, weight)), labels, label_smoothing=0.1)


def cap(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(30 * torch.tanh(widen(hidden @ weight.t()) / 30), labels)


def none(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(widen(hidden @ weight.t()), labels, reduction="none").sum()


LOSSES: Final[dict[str, Loss]] = {"mean": mean, "smooth": smooth, "cap": cap, "none": none}


def draw(rows: int, inner: int, vocabulary: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Hidden states, weights, and labels of which some are ignored."""
    generator = torch.Generator(device).manual_seed(0)
    hidden = torch.randn(rows, inner, device=device, generator=generator).to(dtype)
    weight = (torch.randn(vocabulary, inner, device=device, generator=generator) * 0.02).to(dtype)
    labels = torch.randint(0, vocabulary, (rows,), device=device, generator=generator)
    labels[::17] = -100
    return hidden, weight, labels


def step(loss: Loss, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The loss, and the gradients of hidden states and weights."""
    hidden, weight = (x.detach().requires_grad_() for x in given[:2])
    found = loss(hidden, weight, given[2])
    return [found.detach(), *torch.autograd.grad(found, (hidden, weight))]


def exact(loss: Loss, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The same in float64."""
    return step(loss, (given[0].double(), given[1].double(), given[2]))


def off(found: list[Tensor], wanted: list[Tensor]) -> str:
    """Relative distances of `found` from `wanted`."""
    pairs = zip(found, wanted, strict=True)
    return " ".join(f"{float((f.double() - w).norm() / w.norm()):.2e}" for f, w in pairs)


def measure(run: Callable[[], object], device: str) -> float:
    """Median milliseconds of a call."""
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(run, warmup=25, rep=200, return_mode="median"))
    times: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - begin))
    return sorted(times)[2]


def peak(run: Callable[[], object], device: str) -> float:
    """The most MiB beyond what was there before; 0 on a CPU."""
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def line(name: str, loss: Loss, backend: str, given: tuple[Tensor, ...], wanted: list[Tensor] | None) -> str:
    """A line about `loss`, compiled by `backend`."""
    torch._dynamo.reset()
    device = given[0].device.type
    compiled: Any = loss if backend == "eager" else torch.compile(loss, backend=backend, dynamic=False)
    found = step(compiled, given)
    same = all(torch.equal(a, b) for a, b in zip(found, step(compiled, given), strict=True))
    distance = "" if wanted is None else off(found, wanted)
    del found
    used = peak(lambda: step(compiled, given), device)
    took = measure(lambda: step(compiled, given), device)
    return (
        f"{name:7} {backend:9} {took:8.3f} ms {used:7.1f} MiB off {distance} {'same' if same else 'DIFFERS'}"
    )


def main() -> None:
    """Print a line for each loss and compiler."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vocabulary_loss", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--inner", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=50304)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--only", default=",".join(LOSSES))
    parser.add_argument("--beside", default="eager")
    parser.add_argument("--no-checks", action="store_true")
    asked = parser.parse_args()
    given = draw(asked.rows, asked.inner, asked.vocabulary, DTYPES[asked.dtype], asked.device)
    for name in asked.only.split(","):
        wanted = None if asked.no_checks else exact(LOSSES[name], given)
        for backend in (*asked.beside.split(","), "coilwork"):
            print(line(name, LOSSES[name], backend, given, wanted), flush=True)


if __name__ == "__main__":
    main()
