"""`flex_attention` on a GPU: variants beside float64, gradients too, and the same bits twice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.flex_attention import causal, check, distance, list_variants, make_function, window
from coilwork.backend import backend
from integration_tests.model_checks import no_fallback

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

NAMES = ("causal", "window", "alibi", "cap", "document", "captured", "gqa", "full", "causal128")


@pytest.mark.parametrize("name", NAMES)
def test_flex_attention_is_as_exact_as_its_type(name: str) -> None:
    torch._dynamo.reset()
    variant = next(one for one in list_variants("cuda") if one.name == name)
    function = make_function(variant, "cuda")
    with no_fallback():
        compiled: Any = torch.compile(function, backend=backend, dynamic=False)
        *parts, again = check(variant, compiled, "cuda").split()
    assert again == "same"
    # of the greatest element, whose last place in bf16 is 2 ** -8
    assert all(float(part) < 0.01 for part in parts), parts


@pytest.mark.parametrize(("mask", "head"), [(causal, 128), (causal, 64), (window, 128), (None, 64)])
def test_every_row_is_computed_by_one_of_the_programs(mask: Callable[..., Tensor] | None, head: int) -> None:
    """There are an odd number of tiles, and more of them than programs."""
    torch._dynamo.reset()
    rows = 1900
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(3, 5, rows, head, device="cuda", dtype=torch.bfloat16, generator=generator)
        for _ in range(3)
    )
    blocks = None if mask is None else create_block_mask(mask, None, None, rows, rows, device="cuda")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=blocks, return_lse=True)

    with no_fallback(), torch.no_grad():
        compiled: Any = torch.compile(attend, backend=backend, dynamic=False)
        found, logs = compiled(q, k, v)
        again, _ = compiled(q, k, v)
    scores = q.double() @ k.double().mT / math.sqrt(head)
    if mask is not None:
        i, j = torch.arange(rows, device="cuda")[:, None], torch.arange(rows, device="cuda")
        scores = scores.masked_fill(~mask(i, i, i, j), -torch.inf)
    assert distance(found, scores.softmax(-1) @ v.double()) < 0.01
    assert float((logs - scores.logsumexp(-1)).abs().max()) < 1e-4
    assert torch.equal(found, again)


def test_slopes_that_are_learned_get_their_gradient_from_the_kernel() -> None:
    torch._dynamo.reset()
    generator = torch.Generator("cuda").manual_seed(0)
    given = [
        torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16, generator=generator) for _ in range(3)
    ]
    given.append(torch.rand(4, device="cuda", generator=generator) / 16)
    mask = create_block_mask(causal, None, None, 512, 512, device="cuda")

    def attend(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Any:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[h] * (j - i), mask)

    def written(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        i, j = torch.arange(512, device="cuda")[:, None], torch.arange(512, device="cuda")
        scores = q @ k.mT / 8 + slopes[:, None, None] * (j - i)
        return scores.masked_fill(j > i, -torch.inf).softmax(-1) @ v

    ours = [x.clone().requires_grad_() for x in given]
    exact = [x.double().requires_grad_() for x in given]
    with no_fallback():
        out = torch.compile(attend, backend=backend, dynamic=False)(*ours)
    wanted = written(*exact)
    up = torch.randn(out.shape, device="cuda", dtype=torch.bfloat16, generator=generator)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = torch.autograd.grad(out, ours, up, retain_graph=True)
    assert torch.cuda.max_memory_allocated() - before < 4 * 512 * 512 * 2 * 2
    again = torch.autograd.grad(out, ours, up)
    assert distance(out, wanted) < 0.01
    for one, same, other in zip(found, again, torch.autograd.grad(wanted, exact, up.double()), strict=True):
        assert distance(one, other) < 0.01 and torch.equal(one, same)


@pytest.mark.parametrize(("rows", "keys", "shared"), [(1, 8192, 2), (5, 4096, 8)])
def test_few_rows_share_their_keys_among_programs(rows: int, keys: int, shared: int) -> None:
    torch._dynamo.reset()
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(2, n, m, 64, device="cuda", dtype=torch.bfloat16, generator=generator)
        for n, m in ((8, rows), (shared, keys), (shared, keys))
    )

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: 20 * torch.tanh(s / 20) - (keys - j) / 4096, enable_gqa=True
        )

    with no_fallback(), torch.no_grad():
        found = torch.compile(attend, backend=backend, dynamic=False)(q, k, v)
    k, v = (x.double().repeat_interleave(8 // shared, 1) for x in (k, v))
    scores = 20 * torch.tanh(q.double() @ k.mT / 8 / 20) - (keys - torch.arange(keys, device="cuda")) / 4096
    assert distance(found, scores.softmax(-1) @ v) < 0.01
