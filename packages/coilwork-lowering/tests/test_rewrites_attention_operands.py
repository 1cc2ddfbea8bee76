"""Attention whose operands the operator's kernels refuse does not fall back to scores in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aot_compilers import tensors_of
from torch import Tensor, fx

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import CapturedVocabulary, Fired, apply_rewrites, choose_rewrites

Function = Callable[..., Tensor]
B, H, L, D = 2, 8, 512, 32


class Capture:
    """A back end that rewrites captured graphs and runs them as they are then."""

    def __init__(self, options: RewriteOptions | None = None) -> None:
        self.options = RewriteOptions() if options is None else options
        self.fired: tuple[Fired, ...] = ()

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.fired = apply_rewrites(
            gm, choose_rewrites("captured", self.options), vocabulary=CapturedVocabulary()
        )
        gm.graph.lint()
        forward: Callable[..., Any] = gm.forward
        return forward


def compiled(function: Function, options: RewriteOptions | None = None) -> tuple[Function, Capture]:
    torch._dynamo.reset()
    capture = Capture(options)
    return torch.compile(function, backend=capture), capture


def operands(heads: int = H, dtype: torch.dtype = torch.bfloat16, length: int = L) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(B, H, length, D), (B, heads, length, D), (B, heads, length, D)]
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.2)


def distances(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Alibi: each head adds multiples of positions, and what comes later is hidden by the least number."""
    at = torch.arange(q.shape[2])
    slopes = 2.0 ** -torch.arange(1, H + 1)
    bias = (slopes[:, None, None] * at).to(q.dtype).expand(q.shape[0], H, q.shape[2], q.shape[2])
    bias = bias.masked_fill(at[:, None] < at, torch.finfo(q.dtype).min)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def every_row_alike(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = (torch.arange(q.shape[2]) >= 0)[None, None, :, None].expand(q.shape[0], 1, -1, q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def some_rows_hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = (torch.arange(q.shape[2]) % 3 > 0)[None, None, :, None].expand(q.shape[0], 1, -1, q.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def rows_of_infinities(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(q.shape[2])
    bias = torch.zeros(1, 1, q.shape[2], q.shape[2], dtype=q.dtype)
    bias = bias.masked_fill((at[:, None] < at) | (at[:, None] % 5 == 0), float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def check(found: Tensor, inputs: Sequence[Tensor], function: Function) -> None:
    exact = function(*(t.double() for t in inputs))
    wanted = function(*inputs)
    assert found.stride() == wanted.stride()
    assert (found.double() - exact).abs().max() <= 2 * (wanted.double() - exact).abs().max() + 1e-3


@pytest.mark.parametrize(
    ("function", "heads"),
    [
        (causal, 1),
        (distances, 1),
        (every_row_alike, H),
        (every_row_alike, 1),
        (some_rows_hidden, H),
        (some_rows_hidden, 1),
        (rows_of_infinities, 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_operands_are_handed_to_attention_as_they_are(
    function: Function, heads: int, dtype: torch.dtype
) -> None:
    inputs = operands(heads, dtype)
    compiled_function, capture = compiled(function)
    with torch.no_grad():
        check(compiled_function(*inputs), inputs, function)
    assert [item.name for item in capture.fired] == ["attention-operands"]


def test_an_open_length() -> None:
    compiled_function, capture = compiled(causal)
    with torch.no_grad():
        for length in (L, L + 64):
            inputs = operands(1, length=length)
            for t in inputs:
                torch._dynamo.mark_dynamic(t, 2)
            check(compiled_function(*inputs), inputs, causal)
    assert [item.name for item in capture.fired] == ["attention-operands"]


@pytest.mark.parametrize("function", [causal, some_rows_hidden])
def test_gradients_of_heads_that_are_shared(function: Function) -> None:
    gradients = []
    compiled_function, capture = compiled(function)
    for run in (function, compiled_function):
        leaves = [t.clone().requires_grad_() for t in operands(1, length=2048)]
        run(*leaves).float().pow(2).mean().backward()
        gradients.append([leaf.grad for leaf in leaves])
    assert [item.name for item in capture.fired] == ["attention-operands"]
    for found, wanted in zip(tensors_of(gradients[1]), tensors_of(gradients[0]), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0.05, atol=float(wanted.abs().max()) * 0.02)


def test_what_kernels_take_stays() -> None:
    """Heads of their own, a mask in memory; and what a kernel would compute otherwise: f32, dropout, a mask's
    gradient.
    """

    def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)

    def small(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return causal(q[:, :, :64], k[:, :, :64], v[:, :, :64])

    mask = torch.zeros(B, 1, L, L, dtype=torch.bfloat16)
    learned = torch.zeros(B, H, L, 1, dtype=torch.bfloat16, requires_grad=True)
    cases: list[tuple[Function, tuple[Tensor, ...]]] = [
        (causal, operands()),
        (masked, (*operands(), mask)),
        (masked, (*operands(), learned.expand(-1, -1, -1, L))),
        (masked, (*operands(), torch.zeros(1, 1, L, 1, dtype=torch.bfloat16).expand(-1, -1, -1, L))),
        (masked, (*(t.requires_grad_() for t in operands(1)), mask)),
        (causal, operands(1, torch.float32)),
        (dropped, operands(1)),
        (small, operands(1)),
    ]
    for function, inputs in cases:
        compiled_function, capture = compiled(function)
        compiled_function(*inputs)
        assert not capture.fired, function.__name__
    exact = RewriteOptions(numerics="eager")
    compiled_function, capture = compiled(causal, exact)
    compiled_function(*operands(1))
    assert not capture.fired
