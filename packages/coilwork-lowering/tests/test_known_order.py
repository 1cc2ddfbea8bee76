"""Which index tensors are known never to decrease."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.facts.known_order import in_order


def verdict(function: Callable[[Tensor], Tensor]) -> bool:
    """Of what `function` makes of a mask."""
    gm = make_fx(function, tracing_mode="symbolic")(torch.rand(7, 3) > 0.5)
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    return in_order(output.args[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda m: torch.where(m)[0],
        lambda m: torch.where(m[:, 0])[0],
        lambda m: m.nonzero()[:, 0],
        lambda m: m[:, 1].nonzero().view(-1),
        lambda m: m[:, 1].nonzero().squeeze(1),
        lambda m: m.nonzero().select(-1, 0).clone()[2::2],
    ],
)
def test_rows_that_were_found(function: Callable[[Tensor], Tensor]) -> None:
    assert verdict(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: torch.where(m)[1],
        lambda m: m.nonzero()[:, 1],
        lambda m: m.nonzero(),
        lambda m: torch.where(m)[0].flip(0),
        lambda m: torch.where(m)[0] - 4,
        # a cast may wrap around
        lambda m: torch.where(m)[0].to(torch.int32),
        lambda m: m.sum(1),
    ],
)
def test_other_positions(function: Callable[[Tensor], Tensor]) -> None:
    assert not verdict(function)
