"""Eight threads call one compiled model at once: fixed sizes, sizes that change, and a training step for
each.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

THREADS = 8
CALLS = 60


class Model(torch.nn.Module):
    """Kernels, products of ATen, and a reduction over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(24, 32)
        self.second = torch.nn.Linear(32, 24)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.tanh(self.first(x)))
        return (x + y) / (y.sum(0, keepdim=True).abs() + 1)


def at_once(work: Callable[[int], None]) -> None:
    """Run `work(seed)` in all threads, which start together; what one raises is raised."""
    barrier = threading.Barrier(THREADS)

    def started(seed: int) -> None:
        barrier.wait()
        work(seed)

    with ThreadPoolExecutor(THREADS) as threads:
        for future in [threads.submit(started, seed) for seed in range(THREADS)]:
            future.result()


def compiled_model(*, dynamic: bool) -> tuple[Model, Callable[[Tensor], Tensor]]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Model()
    call: Callable[[Tensor], Tensor] = torch.compile(
        model, backend=backend, dynamic=dynamic, options={"strict": True, "executor": "native"}
    )
    return model, call


@pytest.mark.parametrize("dynamic", [False, True])
def test_threads_share_one_model_in_inference(dynamic: bool) -> None:
    model, call = compiled_model(dynamic=dynamic)
    with torch.no_grad():
        call(torch.randn(16, 24))

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for number in range(CALLS):
                rows = 2 + (number * 7 + seed) % 40 if dynamic else 16
                x = torch.randn(rows, 24, generator=generator)
                torch.testing.assert_close(call(x), model(x))

    at_once(work)


def test_threads_share_one_model_in_training() -> None:
    model, call = compiled_model(dynamic=False)
    parameters = list(model.parameters())

    def step(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(x).square().sum(), parameters)

    inputs = [torch.randn(16, 24) for _ in range(THREADS)]
    alone = [step(call, x) for x in inputs]
    for ours, x in zip(alone, inputs, strict=True):
        torch.testing.assert_close(ours, step(model, x), rtol=1e-3, atol=1e-3)

    def work(seed: int) -> None:
        for number in range(CALLS // 2):
            which = (seed + number) % THREADS
            torch.testing.assert_close(step(call, inputs[which]), alone[which], rtol=1e-6, atol=1e-7)

    at_once(work)
