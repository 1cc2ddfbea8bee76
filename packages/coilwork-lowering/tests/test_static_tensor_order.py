"""Which index tensors are known never to decrease."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering.facts.static_tensors import is_nondecreasing


def verdict(function: Callable[[Tensor], Tensor]) -> bool:
    """Of what `function` makes of a mask."""
    gm = make_fx(function, tracing_mode="symbolic")(torch.rand(7, 3) > 0.5)
    (output,) = (node for node in gm.graph.nodes if node.op == "output")
    return is_nondecreasing(output.args[0])


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
        lambda m: torch.arange(m.shape[0]),
        lambda m: torch.arange(2, m.shape[0]),
        lambda m: torch.arange(2, m.shape[0], 3).unsqueeze(0),
        lambda m: torch.arange(m.shape[0])[None, 1:, None].add(2),
        lambda m: torch.ops.prims.iota(
            m.shape[0], start=1, step=2, dtype=torch.int64, device=m.device, requires_grad=False
        ),
        # the values are known when compiling, and count
        lambda m: torch.arange(8).sub(3).clamp(min=0),
        lambda m: torch.arange(3).unsqueeze(1).expand(3, 4) * 2,
        lambda m: torch.full((2, 3), 5),
        lambda m: torch.arange(0),
    ],
)
def test_positions_that_are_counted_are_in_order(function: Callable[[Tensor], Tensor]) -> None:
    assert verdict(function)


@pytest.mark.parametrize(
    "function",
    [
        lambda m: torch.arange(m.shape[0]).flip(0),
        lambda m: torch.arange(-1, m.shape[0]),
        lambda m: torch.arange(m.shape[0], 0, -1),
        lambda m: torch.arange(m.shape[0]).add(-1),
        lambda m: torch.arange(m.shape[0]).mul(2),
        lambda m: torch.arange(m.shape[0], dtype=torch.int32),
        lambda m: torch.arange(m.shape[0]).expand(2, m.shape[0]),
        lambda m: torch.arange(2 * m.shape[0]).view(2, -1),
        lambda m: torch.arange(4) - 1,
        lambda m: torch.arange(4).flip(0),
        lambda m: torch.arange(4).expand(2, 4),
    ],
)
def test_positions_that_go_back_or_are_not_known(function: Callable[[Tensor], Tensor]) -> None:
    assert not verdict(function)


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
def test_positions_that_may_be_out_of_order_are_told(function: Callable[[Tensor], Tensor]) -> None:
    assert not verdict(function)
