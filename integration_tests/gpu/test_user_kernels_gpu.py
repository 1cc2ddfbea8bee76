"""Triton kernels of the user's on a GPU: results, copies, streams and the device that they run on."""

from __future__ import annotations

import pytest
import torch
import triton
from torch import Tensor

from integration_tests.user_kernel_cases import CASES, chain, check, combine, scale

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("name", CASES)
def test_programs_compute_what_eager_does(name: str) -> None:
    assert check(CASES[name], "cuda") == ""


@pytest.mark.parametrize("driver", ["python", "fx"])
def test_other_drivers_launch_them(driver: str) -> None:
    options = {"wrapper": "fx"} if driver == "fx" else {"executor": "python"}
    assert check(CASES["fused around"], "cuda", **options) == ""


def test_inputs_that_begin_anywhere() -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty_like(x)
        combine[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
        return out

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", options={"strict": True})
    memory = torch.randn(400, device="cuda")
    for start in (0, 1, 3, 16):
        x, y = memory[start : start + 101], memory[200 + start : 301 + start]
        torch.testing.assert_close(compiled(x, y), x * 2 + 1 + y)


def test_launches_are_on_the_current_stream() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="coilwork", options={"strict": True})
    x, y = torch.randn(48, device="cuda"), torch.randn(48, device="cuda")
    wanted = ((x * 2 + 1 + y) * 2 + 1 + y) * 0.5
    compiled(x, y)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for _ in range(20):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            late = x + 0
            got = compiled(late, y)
        stream.synchronize()
        torch.testing.assert_close(got, wanted)


def test_launch_hooks_are_called() -> None:
    from triton import knobs

    def program(x: Tensor) -> Tensor:
        out = x + 1
        scale[(3,)](out, 48, 2.0, 16)
        return out

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="coilwork", options={"strict": True})
    x = torch.randn(48, device="cuda")
    compiled(x)
    called: list[object] = []
    knobs.runtime.launch_enter_hook.add(called.append)
    try:
        compiled(x)
    finally:
        knobs.runtime.launch_enter_hook.remove(called.append)
    assert called
