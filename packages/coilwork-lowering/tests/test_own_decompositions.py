"""Decompositions of our own give eager's results where torch's do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

aten = torch.ops.aten
CASES: dict[str, Callable[[], Any]] = {
    "linspace from a fraction": lambda: aten.linspace(4.3, -3, 50, dtype=torch.int64),
    "linspace of int32": lambda: aten.linspace(-2.9, 7.9, 13, dtype=torch.int32),
    "linspace of uint8": lambda: aten.linspace(0, 4.3, 50, dtype=torch.uint8),
    "linspace between tensors": lambda: aten.linspace(
        torch.tensor(4.3), torch.tensor(-3), 50, dtype=torch.int16
    ),
    "linspace of floats": lambda: aten.linspace(4.3, -3, 50),
    "linspace of one": lambda: aten.linspace(4.3, -3, 1, dtype=torch.int64),
}


@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str) -> None:
    function = CASES[name]
    gm = make_fx(function, decomposition_table=decompositions())()
    assert not any("linspace" in str(node.target) for node in gm.graph.nodes)
    found, expected = gm(), function()
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unique_is_of_the_first_dimension(dim: int) -> None:
    """Along others, the meta functions of torch state strides that results do not have."""
    x = torch.tensor([[2, 0, 2, 1], [1, 0, 1, 1], [2, 0, 2, 1]])
    for function in (
        lambda x: aten.unique_dim(x, dim, True, True, True),
        lambda x: aten.unique_dim_consecutive(x, dim, True, True),
    ):
        gm = make_fx(function, decomposition_table=decompositions())(x)
        called = [node for node in gm.graph.nodes if "unique" in str(node.target)]
        assert [node.args[1] for node in called] == [0]
        for found, expected in zip(gm(x), function(x), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
