"""Attention with the user's functions, or written out, on CPUs: one kernel that stores no scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.planner import Planner
from coilwork.registries import find_codegen
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import schedule

HEADS, HEAD = 4, 16


def draw(rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return [torch.randn(2, HEADS, rows, HEAD, generator=generator) for _ in range(3)]


def open_rows(given: list[Tensor]) -> list[Tensor]:
    """Mark the number of rows as open: that of the columns of a head is known."""
    for x in given:
        torch._dynamo.mark_dynamic(x, 2)
    return given


def soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 5 * torch.tanh(q @ k.transpose(-1, -2) * HEAD**-0.5 / 5)
    shown = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return scores.masked_fill(~shown, -math.inf).softmax(-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = torch.exp2(-torch.arange(1, HEADS + 1, dtype=torch.float32)).to(q.dtype)
    distance = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    scores = q @ k.transpose(-1, -2) * HEAD**-0.5 + slopes[:, None, None] * distance
    return torch.where(distance <= 0, scores, -math.inf).softmax(-1) @ v


@pytest.mark.parametrize("function", [soft_cap, alibi])
def test_written_attention_is_one_kernel_for_any_number_of_rows(function: Callable[..., Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="coilwork")
    for rows in (70, 150):
        given = open_rows(draw(rows))
        exact = function(*(x.double() for x in given))
        torch.testing.assert_close(compiled(*given).double(), exact, rtol=1e-5, atol=1e-5)
    planner = Planner(target="x86-64-avx512")
    torch._dynamo.reset()
    torch.compile(function, backend=planner)(*open_rows(draw(70)))
    (graph,) = planner.graphs
    made = schedule(graph, declare_capabilities(Targets(main=TARGETS["x86-64-avx512"]), find_codegen))
    (core,) = (kernel for kernel in made.kernels if isinstance(kernel.core, AttentionCore))
    names = {arg.name: arg for arg in core.args}
    assert all(arg.role == "in" or arg.dtype is names["in0"].dtype for arg in core.args)


def test_flex_attention_takes_functions_and_lists_of_blocks() -> None:
    document = torch.arange(300) // 120

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (document[q] == document[k]) & (q >= k)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + 0.1 * (k - q)

    blocks = create_block_mask(same, None, None, 300, 300, device="cpu")

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks, enable_gqa=True)

    q, k, v = draw(300)
    k, v = k[:, :2], v[:, :2]
    torch._dynamo.reset()
    found = torch.compile(attend, backend="coilwork", dynamic=False)(q, k, v)
    row, key = torch.arange(300)[:, None], torch.arange(300)
    k, v = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ k.mT * HEAD**-0.5 + 0.1 * (key - row)
    exact = scores.masked_fill(~same(0, 0, row, key), -math.inf).softmax(-1) @ v
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
