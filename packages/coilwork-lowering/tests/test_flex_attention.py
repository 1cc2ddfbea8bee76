"""`flex_attention` becomes a node: its functions are bodies, its block mask lists, or it is expanded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from coilwork_ir.loops import Attention, AttentionGradient
from coilwork_ir.loops.verify import verify_graph
from coilwork_ir.scalar import Load, iterate_postorder

ROWS, KEYS = 20, 24


@pytest.fixture(autouse=True)
def _on_any_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def draw(shared: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, ROWS, 8), (2, shared, KEYS, 8), (2, shared, KEYS, 8))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def nodes_of(recorder: Recorder) -> list[Attention | AttentionGradient]:
    for lowered in recorder.lowered:
        verify_graph(lowered.graph)
    every = [node for lowered in recorder.lowered for node in lowered.graph.nodes]
    return [node for node in every if isinstance(node, Attention | AttentionGradient)]


def near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k < 9) & (q > 2)


def test_bodies_know_positions_and_captured_tensors() -> None:
    slopes, document = torch.rand(4), torch.arange(KEYS) // 5
    mask = flex.create_block_mask(near, 1, 1, ROWS, KEYS, device="cpu", BLOCK_SIZE=8)

    def slope(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 3 * torch.tanh(score / 3) + slopes[h] * (k - q) + document[k]

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found, aux = flex.flex_attention(
            q, k, v, slope, mask, enable_gqa=True, return_aux=flex.AuxRequest(lse=True)
        )
        assert aux.lse is not None
        return found, aux.lse

    given, recorder = draw(shared=2), Recorder()
    found = torch.compile(function, backend=recorder)(*given)
    torch.testing.assert_close(found, function(*given))
    (node,) = nodes_of(recorder)
    assert isinstance(node, Attention) and node.weights.logsumexp == "binary"
    places = [v.indirect for v in iterate_postorder((node.weights.score,)) if isinstance(v, Load)]
    assert places == [(), ()], "positions are indices, not loads at computed places"
    blocks = node.weights.blocks
    assert blocks is not None and (blocks.row_block, blocks.key_block) == (8, 8)
    assert [side for side, _ in blocks.lists] == ["keys", "full_keys"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_gradients_are_one_node_that_has_the_lists_of_both_sides(dtype: torch.dtype) -> None:
    slopes = torch.rand(4)
    mask = flex.create_block_mask(near, 1, 1, ROWS, KEYS, device="cpu", BLOCK_SIZE=8)

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 3 * torch.tanh(score / 3) + slopes[h] * (k - q)

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        found, aux = flex.flex_attention(
            q, k, v, cap, mask, enable_gqa=True, return_aux=flex.AuxRequest(lse=True)
        )
        assert aux.lse is not None
        return found, aux.lse

    def reference(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        i, j = torch.arange(ROWS)[:, None], torch.arange(KEYS)
        scores = 3 * torch.tanh(q @ k.mT / math.sqrt(8) / 3) + slopes[:, None, None] * (j - i)
        zero = torch.zeros(())
        scores = scores.masked_fill(~near(zero, zero, i, j), -1e9)
        weights = scores.softmax(-1) * (i > 2)
        return weights @ v, scores.logsumexp(-1).where(i[:, 0] > 2, -math.inf)

    given, recorder = draw(shared=2, dtype=dtype), Recorder()
    ours = [x.clone().requires_grad_() for x in given]
    theirs = [x.double().requires_grad_() for x in given]
    result, logs = torch.compile(function, backend=recorder)(*ours)
    exact, exact_logs = reference(*theirs)
    up, of_logs = torch.randn(exact.shape, dtype=torch.float64), torch.randn(4, ROWS)
    of_logs[:, :3] = 0
    torch.autograd.backward((result, logs), (up.to(dtype), of_logs.expand(logs.shape)))
    torch.autograd.backward((exact, exact_logs), (up, of_logs.double().expand(logs.shape)))
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for mine, wanted in (
        (result, exact),
        (logs, exact_logs),
        *((a.grad, b.grad) for a, b in zip(ours, theirs)),
    ):
        assert mine is not None and wanted is not None
        torch.testing.assert_close(mine.double(), wanted, rtol=tolerance, atol=tolerance)
    kinds = [type(node) for node in nodes_of(recorder)]
    assert kinds == [Attention, AttentionGradient]
    blocks = nodes_of(recorder)[1].weights.blocks
    assert blocks is not None
    assert [side for side, _ in blocks.lists] == ["keys", "full_keys", "rows", "full_rows"]


def sums(q: Tensor, k: Tensor, v: Tensor) -> Any:
    table = torch.ones(KEYS).cumsum(0)
    return flex.flex_attention(q, k, v, lambda score, b, h, i, j: score + table.roll(1)[j])


def far(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex.flex_attention(q.double(), k.double(), v.double())


@pytest.mark.parametrize(("function", "count"), [(sums, 0), (far, 0)])
def test_what_no_node_says_is_expanded(function: Callable[..., Any], count: int) -> None:
    given, recorder = draw(), Recorder()
    torch.testing.assert_close(torch.compile(function, backend=recorder)(*given), function(*given))
    assert len(nodes_of(recorder)) == count


def test_one_graph_serves_open_sizes() -> None:
    recorder = Recorder()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex.flex_attention(q, k, v, lambda score, b, h, i, j: score + (i - j) * 0.5)

    compiled = torch.compile(function, backend=recorder, dynamic=True)
    for rows in (16, 20):
        given = [x[:, :, :rows] for x in draw()]
        for x in given:
            torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(compiled(*given), function(*given))
    assert len(nodes_of(recorder)) == len(recorder.lowered)


def test_an_operator_that_torch_cannot_batch_is_named() -> None:
    """It would be called, and written down, once for each score."""
    library = torch.library.Library("coilwork_unbatched", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    twice = torch.ops.coilwork_unbatched.twice

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex.flex_attention(q, k, v, lambda score, b, h, i, j: twice(score))

    with pytest.raises(Exception, match="coilwork_unbatched::twice has no batching rule") as caught:
        torch.compile(function, backend=Recorder(), dynamic=False)(*draw())
    assert "register_vmap" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_gradients_of_captured_tensors_are_sums_of_rows(dtype: torch.dtype) -> None:
    table = torch.rand(4, generator=torch.Generator().manual_seed(2)).to(dtype)
    mask = flex.create_block_mask(near, 1, 1, ROWS, KEYS, device="cpu", BLOCK_SIZE=8)

    def attend(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Any:
        def bend(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return 3 * torch.tanh((score + slopes[h] * (j - i)) / 3)

        return flex.flex_attention(q, k, v, bend, mask)

    def reference(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        i, j = torch.arange(ROWS)[:, None], torch.arange(KEYS)
        scores = 3 * torch.tanh((q @ k.mT / math.sqrt(8) + slopes[:, None, None] * (j - i)) / 3)
        zero = torch.zeros(())
        return scores.masked_fill(~near(zero, zero, i, j), -1e9).softmax(-1) * (i > 2) @ v

    recorder = Recorder()
    ours = [x.clone().requires_grad_() for x in (*draw(dtype=dtype), table)]
    theirs = [x.detach().double().requires_grad_() for x in ours]
    result = torch.compile(attend, backend=recorder, dynamic=False)(*ours)
    exact = reference(*theirs)
    up = torch.randn(exact.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(result, ours, up.to(dtype))
    wanted = torch.autograd.grad(exact, theirs, up)
    tolerance = 1e-4 if dtype is torch.float32 else 4e-2
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance * 3)
    kinds = [type(node) for node in nodes_of(recorder)]
    assert kinds == [Attention, AttentionGradient]
    gradient = nodes_of(recorder)[1]
    assert isinstance(gradient, AttentionGradient) and gradient.bias_at == gradient.weights.rows
