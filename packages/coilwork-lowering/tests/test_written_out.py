"""`flex_attention` and `map` beside eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from lowering_backend import Recorder
from torch import Tensor
from torch._higher_order_ops.map import map as mapped
from torch.nn.attention import flex_attention as flex


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def near(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return (i >= j) & (i - j < 9)


def test_scores_and_masks() -> None:
    """With a captured tensor, heads that share keys, the logarithm of sums, and rows that see nothing."""
    torch.manual_seed(0)
    slopes = torch.rand(4)
    mask = flex.create_block_mask(near, 1, 1, 32, 24, device="cpu", BLOCK_SIZE=8)

    def function(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        def distance(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score.tanh() + slopes[h] * (j - i)

        lean = flex.flex_attention(q, k, v, score_mod=distance, enable_gqa=True)
        some, aux = flex.flex_attention(
            q, k, v, block_mask=mask, enable_gqa=True, return_aux=flex.AuxRequest(lse=True)
        )
        assert isinstance(lean, Tensor) and isinstance(some, Tensor) and aux.lse is not None
        return lean, some, aux.lse

    q, k, v = torch.randn(2, 4, 32, 16), torch.randn(2, 2, 24, 16), torch.randn(2, 2, 24, 16)
    found = torch.compile(function, backend=Recorder())(q, k, v)
    torch.testing.assert_close(found, function(q, k, v))


def test_what_is_demanded_of_open_sizes_is_told_with_the_operator() -> None:
    """As many keys as values."""
    recorder = Recorder()
    compiled = torch.compile(lambda q, k, v: flex.flex_attention(q, k, v), backend=recorder, dynamic=True)
    q, k, v = torch.randn(2, 2, 24, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    torch._dynamo.mark_dynamic(k, 2)
    torch._dynamo.mark_dynamic(v, 2)
    torch.testing.assert_close(compiled(q, k, v), flex.flex_attention(q, k, v))
    origins = [guard.origin for one in recorder.lowered for guard in one.guards]
    assert all(origin is not None and origin.op == "flex_attention" and origin.line for origin in origins)
    assert origins


def test_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch asks for a GPU, where its own kernel runs; what the operator stands for runs anywhere."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    torch.manual_seed(0)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        found = flex.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s.tanh() * 2 + (j - i) * 0.1)
        assert isinstance(found, Tensor)
        return found.square()

    def reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(24)
        scores = (q @ k.mT / 4).tanh() * 2 + (place - place[:, None]) * 0.1
        return (scores.softmax(-1) @ v).square()

    given = [torch.randn(1, 2, 24, 16) for _ in range(3)]
    ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in range(2))
    torch.compile(function, backend=Recorder())(*ours).sum().backward()
    reference(*theirs).sum().backward()
    torch.testing.assert_close([x.grad for x in ours], [x.grad for x in theirs])


def test_map() -> None:
    weight = torch.randn(3)

    def function(rows: Tensor) -> Tensor:
        found: Tensor = mapped(lambda row, k: (row * weight).sin() + k, rows, 2.0)
        return found

    rows = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(function, backend=Recorder())(rows), function(rows))


def test_a_map_in_a_map() -> None:
    def function(blocks: Tensor, weight: Tensor) -> Tensor:
        found: Tensor = mapped(
            lambda rows, w: mapped(lambda row, v: (row * v).sin(), rows, w), blocks, weight
        )
        return found

    given = torch.randn(2, 4, 3), torch.randn(3)
    torch.testing.assert_close(torch.compile(function, backend=Recorder())(*given), function(*given))
