"""Attention that is written out becomes one kernel for GPUs, however it was spelled, and is as exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.planner import Planner
from coilwork.registries import find_codegen
from coilwork_ir.emission import declare_capabilities
from coilwork_ir.kernels.interpreter import interpret_schedule
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.target import TARGETS, Targets
from coilwork_scheduler import schedule

BATCH, HEADS, ROWS, HEAD = 2, 3, 40, 16
INF = float("inf")


def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * HEAD**-0.5


def causal(q: Tensor, k: Tensor) -> Tensor:
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()


def soft_cap(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    s = (5 * torch.tanh(scores(q, k) / 5)).masked_fill(~causal(q, k), -INF)
    return s.softmax(-1) @ v


def alibi(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    slopes = torch.exp2(-torch.arange(1, HEADS + 1, dtype=torch.float32)).to(q.dtype)
    distance = torch.arange(k.shape[-2])[None] - torch.arange(q.shape[-2])[:, None]
    s = torch.where(distance <= 0, scores(q, k) + slopes[:, None, None] * distance, -INF)
    return s.float().softmax(-1).to(q.dtype) @ v


def gated_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    return torch.einsum("bhqk,bhkd->bhqd", (torch.sigmoid(bias) * scores(q, k)).softmax(-1), v)


def hidden(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Some row has no key: NaN, as in eager mode."""
    s = (scores(q, k).abs() + bias).masked_fill(seen[:, None] == 0, -INF)
    return s.softmax(-1) @ v


def far(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """A row without keys weighs all alike: the fill is finite."""
    s = torch.where(seen[:, None], scores(q, k) * bias, torch.finfo(q.dtype).min)
    return s.softmax(-1) @ v


def shared(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Keys of one head, flattened, and a sum of exponentials that is spelled out."""
    s = torch.tanh((q @ k[:, :1].transpose(-1, -2)).float()) + bias
    power = (s - s.amax(-1, keepdim=True)).exp()
    return (power / power.sum(-1, keepdim=True)).to(q.dtype) @ v


def returned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Weights that somebody sees are in memory anyway."""
    weights = torch.tanh(scores(q, k)).softmax(-1)
    return weights @ v, weights


def over_rows(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """A softmax along the other side is none of an attention."""
    return torch.tanh(scores(q, k)).softmax(-2) @ v


def unlike(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """The sum is of other exponentials."""
    s = torch.tanh(scores(q, k).float())
    power = (s - s.amax(-1, keepdim=True)).exp()
    return (power / (2 * s - s.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)).to(q.dtype) @ v


def across(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Heads whose numbers lie apart have no kernel in torch: products in f32, and rows without keys are 0."""
    apart = (x.mT.contiguous().mT for x in (q, k, v))
    return F.scaled_dot_product_attention(*apart, attn_mask=seen[:, None])


def kept_wide(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    """Somebody sees results in f32, which 16 bits in between would spoil."""
    return (0.25 * q.float() @ k.float().mT).softmax(-1) @ v.float()


def widened(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, seen: Tensor) -> Tensor:
    return kept_wide(q, k, v, bias, seen).to(q.dtype)


CASES: Mapping[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], bool]] = {
    "soft cap": (soft_cap, True),
    "alibi": (alibi, True),
    "gated bias": (gated_bias, True),
    "hidden rows": (hidden, True),
    "finite fill": (far, True),
    "shared keys": (shared, True),
    "numbers apart": (across, True),
    "products in f32": (widened, True),
    "returned weights": (returned, False),
    "results in f32": (kept_wide, False),
    "along rows": (over_rows, False),
    "another sum": (unlike, False),
}


def draw(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, ROWS, HEAD, generator=generator).to(dtype) for _ in range(3))
    bias = torch.randn(1, HEADS, ROWS, ROWS, generator=generator).to(dtype)
    seen = torch.rand(BATCH, ROWS, ROWS, generator=generator) < 0.7
    seen[0, 3] = False
    return [q, k, v, bias, seen]


@pytest.mark.parametrize("name", CASES)
def test_written_attention_is_one_kernel(name: str) -> None:
    function, is_found = CASES[name]
    given, planner, args = draw(torch.float16), Planner(target="sm_90"), list[Tensor]()

    def plan(gm: torch.fx.GraphModule, example_inputs: list[Tensor]) -> Callable[..., Any]:
        args.extend(example_inputs)
        return planner(gm, example_inputs)

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=plan, dynamic=False)(*given)
    (graph,) = planner.graphs
    made = schedule(graph, declare_capabilities(Targets(main=TARGETS["sm_90"]), find_codegen))
    cores = [kernel for kernel in made.kernels if isinstance(kernel.core, AttentionCore)]
    assert len(cores) == is_found
    if not is_found:
        return
    (found,) = interpret_schedule(made, args)
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    assert isinstance(found, Tensor) and isinstance(exact, Tensor)
    torch.testing.assert_close(found.double(), exact, rtol=4e-3, atol=4e-3, equal_nan=True)
    assert bool(exact.isnan().any()) == (name == "hidden rows")
