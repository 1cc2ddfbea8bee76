"""Triton kernels of the user's on a GPU: results, copies, streams and the device that they run on."""

from __future__ import annotations

import pytest
import torch
import triton
from torch import Tensor

from coilwork_runtime.triton_kernels.user_kernels import Launched, UserKernel
from integration_tests.user_kernel_cases import CASES, chain, check, combine, fused_around, scale

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


@pytest.mark.parametrize("name", ["several in a row", "fused around, open sizes", "autotuned", "slices"])
def test_python_makes_the_first_launch_only(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, launched = CASES[name], list[str]()
    launch = UserKernel.launch

    def counted(self: UserKernel, *values: object) -> Launched | None:
        launched.append(self.name)
        return launch(self, *values)

    monkeypatch.setattr(UserKernel, "launch", counted)
    torch._dynamo.reset()
    compiled = torch.compile(
        case.run,
        backend="coilwork",
        dynamic=case.dynamic,
        options={"strict": True, "executor": "native", "cache": False},
    )
    for _ in range(4):
        inputs = case.inputs("cuda")
        copies = [value.clone() for value in inputs]
        torch.testing.assert_close(compiled(*inputs), case.eager(*copies))
        torch.testing.assert_close(inputs, copies)
    # memory may begin elsewhere in the second call
    assert case.launches <= len(launched) <= 2 * case.launches


def test_sizes_that_triton_tells_apart() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(fused_around, backend="coilwork", dynamic=True, options={"strict": True})
    for count in (48, 64, 47, 2, 31, 48, 47, 160, 5):
        x, y = torch.randn(count, device="cuda"), torch.randn(count, device="cuda")
        wanted = (((x + 1).relu() * 2 * 2 + 1 + y) * 2).relu() + 1
        torch.testing.assert_close(compiled(x, y), wanted)


def test_a_graph_of_the_users_records_them() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(chain, backend="coilwork", options={"strict": True})
    x, y = torch.randn(48, device="cuda"), torch.randn(48, device="cuda")
    for _ in range(3):
        compiled(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = compiled(x, y)
    x.copy_(torch.randn(48, device="cuda"))
    graph.replay()
    torch.testing.assert_close(got, ((x * 2 + 1 + y) * 2 + 1 + y) * 0.5)


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
