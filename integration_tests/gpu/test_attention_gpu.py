"""Attention left to a library: its backward, which is handed tensors that are none, and operands that
libraries refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from coilwork.backend import backend
from coilwork_runtime import NativeProgram, load_native
from coilwork_runtime.executor import choice
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
        mock.patch.object(choice, "load_native", remembering),
    ):
        compiled = torch.compile(attend, backend=backend, options={"executor": "native", "cache": False})
        found, expected = gradients(compiled), gradients(attend)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    assert [plan.reason for program in programs for plan in program.plans if plan.reason] == []
    assert sum(program.counters()["python_calls"] for program in programs) == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_are_dropped_as_in_eager_mode(library: str) -> None:
    """The kernel that torch chose is called with what torch gave it, so it draws the same numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, dropout_p=0.3)

    def trained(function: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        leaves = [value.detach().requires_grad_() for value in given]
        result = function(*leaves)
        return result, *torch.autograd.grad(result, leaves, torch.ones_like(result))

    with sdpa_kernel(LIBRARIES[library]), no_fallback():
        compiled = torch.compile(attend, backend=backend, options={"cache": False})
        (found, *gradients), (expected, *theirs) = trained(compiled), trained(attend)
    assert found.equal(expected)
    # sums of the gradients may be in another order from call to call
    for mine, eagers in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, eagers, rtol=0.02, atol=0.02)


def causal_with_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k[:, :1], v[:, :1], is_causal=True)


def some_rows_hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.arange(q.shape[2], device=q.device) % 3 > 0
    mask = seen[None, None, :, None].expand(q.shape[0], 1, -1, q.shape[2])
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)


def rows_of_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[2], device=q.device)
    bias = torch.zeros(1, 1, q.shape[2], q.shape[2], dtype=q.dtype, device=q.device)
    bias = bias.masked_fill((at[:, None] < at) | (at[:, None] % 5 == 0), float("-inf"))
    return scaled_dot_product_attention(q, k[:, :1], v[:, :1], attn_mask=bias)


def rows_hidden_in_training(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return some_rows_hidden(q, k[:, :1], v[:, :1])


@pytest.mark.parametrize(
    ("function", "trained"),
    [
        (causal_with_one_head, False),
        (some_rows_hidden, False),
        (rows_of_infinities, False),
        (causal_with_one_head, True),
        (rows_hidden_in_training, True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_that_kernels_refuse(
    function: Callable[..., Tensor], trained: bool, dtype: torch.dtype
) -> None:
    """Scores stay on chip, and rows that a mask hides are the zeros that eager makes of them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    length = 2048 if trained else 1024
    given = [torch.randn(2, 8, length, 64, device="cuda", dtype=dtype) for _ in range(3)]
    upstream = torch.randn_like(given[0])

    def results(run: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
        leaves = [value.detach().requires_grad_(trained) for value in inputs]
        found = run(*leaves)
        return [found, *(torch.autograd.grad(found, leaves, upstream.to(found.dtype)) if trained else ())]

    with no_fallback():
        compiled = torch.compile(function, backend=backend, options={"cache": False})
        results(compiled, given)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = results(compiled, given)
        peak = torch.cuda.max_memory_allocated() - before
    exact = results(function, [value.double() for value in given])
    wanted = results(function, given)
    for ours, theirs, reference in zip(found, wanted, exact, strict=True):
        assert ours.stride() == theirs.stride()
        error, allowed = ((t.double() - reference).abs().max() for t in (ours, theirs))
        assert error <= 4 * allowed + 2e-2 * reference.abs().max()
    assert bool((found[0][exact[0] == 0] == 0).all())
    # products of queries and keys in f32 are 128 MB for 1,024 positions and 512 MB for 2,048
    assert peak < 2 * 8 * length * length
