"""Programs with GPU kernels interpreted in Python, and packages of them run by either executor: eager's
results, without a text of ours being executed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch

from coilwork.backend import backend
from coilwork_aot import load, save_program
from coilwork_cache import MemoryStore
from coilwork_runtime.executor.choice import Executor, ExecutorOptions

pytestmark = pytest.mark.gpu
# an audit hook stays for good, so there is one
EXECUTED: list[str] = []
EXECUTORS: Final[tuple[Executor, ...]] = ("native", "python")


def hear(event: str, args: tuple[Any, ...]) -> None:
    if event == "exec" and args[0].co_filename.startswith("<coilwork"):
        EXECUTED.append(args[0].co_filename)


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = torch.softmax(x @ w, -1) + x.sum(0)
    return x.tanh()


def test_training_and_packages_are_eager(tmp_path: Path) -> None:
    sys.addaudithook(hear)
    torch.manual_seed(0)
    x = torch.randn(64, 64, device="cuda")
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    for dynamic in (False, True):
        torch._dynamo.reset()
        options = {"strict": True, "executor": "python", "cache": False}
        compiled = torch.compile(layers, backend=backend, dynamic=dynamic, options=options)
        for rows in (64, 32):
            w.grad = None
            layers(x[:rows], w).sum().backward()
            expected, w.grad = w.grad, None
            found = compiled(x[:rows], w)
            found.sum().backward()
            torch.testing.assert_close(found, layers(x[:rows], w), rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(w.grad, expected, rtol=1e-2, atol=1e-2)
    torch._dynamo.reset()
    options = {"strict": True, "trace": str(tmp_path), "cache": False}
    torch.compile(layers, backend=backend, options=options)(x, w.detach())
    (folder,) = tmp_path.iterdir()
    save_program(folder, tmp_path / "model.cw")
    for executor in EXECUTORS:
        options = ExecutorOptions(executor=executor, strict=True)
        loaded = load(tmp_path / "model.cw", store=MemoryStore(), options=options)
        assert loaded.entry("forward").executors == (executor,)
        # which of two inputs of one layout comes first is the graph's to say; repeated calls are replayed
        for _ in range(12):
            results = [loaded(*given)[0] for given in ((x, w.detach()), (w.detach(), x))]
            expected = layers(x, w.detach())
            assert any(torch.allclose(one, expected, rtol=1e-3, atol=1e-4) for one in results)
    assert EXECUTED == []
