"""Views whose maps of coordinates would be long are laid out in memory."""

from __future__ import annotations

from collections.abc import Callable

import loop_evaluator
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.index import measure_tree
from coilwork_ir.loops import Pointwise
from coilwork_ir.scalar import list_loads
from coilwork_lowering import Lowered, LoweringOptions, lower

LIMIT = 64
CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.t().reshape(x.shape),
    "of three dimensions": lambda x: x.reshape(4, 9, 6).permute(2, 0, 1).reshape(x.shape),
    "of windows": lambda x: x.unfold(1, 4, 2).permute(2, 0, 1).reshape(-1)[5:221].reshape(x.shape),
}


def chained(step: Callable[[Tensor], Tensor], length: int) -> tuple[Lowered, Tensor, Tensor]:
    """`step` as often as `length` says: the graph, what it gives, and what eager does."""

    def function(x: Tensor) -> Tensor:
        for _ in range(length):
            x = step(x)
        return x * 2

    x = torch.arange(216.0).reshape(12, 18)
    # `reshape` stays as it is before dispatch; behind it, it is a copy and a view
    gm = make_fx(function, pre_dispatch=True, tracing_mode="fake")(x)
    lowered = lower(gm, name="graph", options=LoweringOptions(max_index_size=LIMIT))
    (found,) = loop_evaluator.run(lowered.graph, lowered.constants, [x])
    return lowered, found, function(x)


@pytest.mark.parametrize("name", CHAINS)
def test_maps_stay_short_and_say_where_they_were_cut(name: str) -> None:
    lowered, found, expected = chained(CHAINS[name], 12)
    torch.testing.assert_close(found, expected)
    nodes = [node for node in lowered.graph.nodes if isinstance(node, Pointwise)]
    longest = [
        measure_tree(e).nodes for node in nodes for access in list_loads((node.body,)) for e in access.index
    ]
    assert LIMIT < max(longest) < 10 * LIMIT
    assert lowered.copies and all("laid out in memory" in copy for copy in lowered.copies)


def test_copies_grow_with_the_length() -> None:
    few, many = (len(chained(CHAINS["transposed"], length)[0].copies) for length in (12, 48))
    assert few >= 2 and 3 * few <= many <= 5 * few


def test_maps_that_cancel_are_never_laid_out() -> None:
    lowered, found, expected = chained(lambda x: x.t().reshape(18, 12).t(), 60)
    torch.testing.assert_close(found, expected)
    assert lowered.copies == () and len(lowered.graph.nodes) == 1
