"""Sizes as index expressions: what torch knows of a size is seen in its expression."""

from __future__ import annotations

from collections.abc import Callable

import loop_evaluator
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import lower


def parts_that_broadcast(x: torch.Tensor) -> torch.Tensor:
    """The second part has one column, though its size is a difference."""
    first, second = x.chunk(2, 1)
    return torch.minimum(x, second) + first[:, :1]


def computed_parts_that_broadcast(x: torch.Tensor) -> torch.Tensor:
    planes = x.unsqueeze(2).expand(-1, -1, 5)
    return planes - planes.chunk(2, 1)[1].exp().clone()


@pytest.mark.parametrize("function", [parts_that_broadcast, computed_parts_that_broadcast])
def test_a_size_that_is_one_is_broadcast(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.randn(4, 3)
    gm = make_fx(function, tracing_mode="symbolic")(x)
    lowered = lower(gm, name="graph")
    sizes = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"][:-1]
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [*map(int, sizes), x])
    torch.testing.assert_close(found, function(x))
