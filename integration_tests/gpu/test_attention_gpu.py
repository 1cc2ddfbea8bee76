"""Attention left to a library: its backward, which is handed tensors that are none, runs without Python."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from coilwork import executors
from coilwork.backend import backend
from coilwork_runtime import NativeProgram, load_native
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

LIBRARIES = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_backward_is_called_natively(library: str, is_causal: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    programs: list[NativeProgram] = []

    def remembering(data: bytes, **rest: Any) -> NativeProgram:
        programs.append(load_native(data, **rest))
        return programs[-1]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)

    given = [torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    upstream = torch.randn_like(given[0])

    def gradients(function: Any) -> tuple[Tensor, ...]:
        leaves = [value.detach().requires_grad_() for value in given]
        return torch.autograd.grad(function(*leaves), leaves, upstream)

    with (
        sdpa_kernel(LIBRARIES[library]),
        no_fallback(),
        mock.patch.object(executors, "load_native", remembering),
    ):
        compiled = torch.compile(attend, backend=backend, options={"executor": "native", "cache": False})
        found, expected = gradients(compiled), gradients(attend)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    assert [plan.reason for program in programs for plan in program.plans if plan.reason] == []
    assert sum(program.counters()["python_calls"] for program in programs) == 0
