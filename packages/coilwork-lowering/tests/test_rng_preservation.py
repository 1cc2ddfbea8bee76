"""Random numbers under a checkpoint: drawn once, by a graph without operators that set the generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from kept_halves import KeptHalves
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def dropped(x: Tensor) -> Tensor:
    return functional.dropout(x.sin(), 0.5) * x


def noisy(x: Tensor) -> Tensor:
    return (x + torch.rand_like(x)).square() * torch.bernoulli(torch.full_like(x, 0.5))


@pytest.mark.parametrize("function", [dropped, noisy])
def test_what_a_checkpoint_drew_is_kept(function: Callable[[Tensor], Tensor]) -> None:
    backend = KeptHalves()

    def call(run: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        x = torch.linspace(-1, 1, 50, requires_grad=True)
        result = run(x)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        return result.detach(), gradient

    def checkpointed(x: Tensor) -> Tensor:
        found: Tensor = checkpoint(function, x.exp(), use_reentrant=False)
        return found

    torch._dynamo.reset()
    torch.testing.assert_close(call(torch.compile(checkpointed, backend=backend)), call(checkpointed))
    assert len(backend.graphs) == 2
    names = [str(node.target) for gm in backend.graphs for node in gm.graph.nodes]
    assert not any("rng_state" in name for name in names)
    drawing = [
        node
        for node in backend.graphs[1].graph.nodes
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    ]
    assert drawing == []
