"""Whole programs with tensors on a CPU and on a GPU, beside eager."""

from __future__ import annotations

import pytest
import torch

from coilwork.backend import backend
from integration_tests.two_device_programs import PROGRAMS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("executor", ["native", "python"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eager_s_and_where_eager_has_them(name: str, dynamic: bool, executor: str) -> None:
    torch._dynamo.reset()
    options = {"strict": True, "verify": True, "executor": executor}
    compiled = torch.compile(
        PROGRAMS[name], backend=backend, options=options, dynamic=dynamic, fullgraph=True
    )
    for rows in (6, 10):
        host, there = torch.randn(rows, 8), torch.randn(rows, 8, device="cuda")
        for found, expected in zip(compiled(host, there), PROGRAMS[name](host, there), strict=True):
            assert found.device == expected.device
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("memory_format", [torch.preserve_format, torch.channels_last])
@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("source", ["cpu", "cuda"])
@pytest.mark.parametrize("aim", ["cpu", "cuda:0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_copies_to_a_device(
    source: str, aim: str, dtype: torch.dtype, copy: bool, memory_format: torch.memory_format
) -> None:
    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.device(aim), dtype, copy=copy, memory_format=memory_format)

    torch._dynamo.reset()
    compiled = torch.compile(moved, backend=backend, options={"strict": True}, fullgraph=True)
    x = torch.randn(2, 3, 4, 5, device=source) * 10
    for one in (x, x.transpose(1, 2), x[:, :, ::2]):
        found, expected = compiled(one), moved(one)
        assert (found.device, found.dtype, found.stride()) == (
            expected.device,
            expected.dtype,
            expected.stride(),
        )
        assert torch.equal(found, expected)
