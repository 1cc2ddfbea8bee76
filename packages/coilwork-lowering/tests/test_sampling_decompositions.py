"""Categories at random: eager's numbers give eager's categories, and what eager refuses is refused."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

aten = torch.ops.aten
INF, NAN = float("inf"), float("nan")


def traced(probabilities: torch.Tensor, count: int, replacement: bool = False) -> torch.fx.GraphModule:
    return make_fx(
        lambda x: aten.multinomial(x, count, replacement),
        decomposition_table=decompositions(),
        tracing_mode="fake",
    )(probabilities)


def is_called(gm: torch.fx.GraphModule) -> bool:
    return any(node.target is aten.multinomial.default for node in gm.graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (5, 300)])
@pytest.mark.parametrize("count", [1, 4])
def test_categories_are_eagers(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    probabilities = torch.rand(shape, dtype=dtype)
    gm = traced(probabilities, count)
    assert not is_called(gm)
    torch.manual_seed(3)
    wanted = torch.multinomial(probabilities, count)
    torch.manual_seed(3)
    found = gm(probabilities)
    assert found.dtype is torch.int64 and torch.equal(found, wanted)


def test_several_with_replacement_are_left_to_eager() -> None:
    assert is_called(traced(torch.rand(3, 4), 2, True))
    assert not is_called(traced(torch.rand(3, 4), 1, True))


@pytest.mark.parametrize("bad", [[0.0, 0.0], [-1.0, 2.0], [INF, 1.0], [NAN, 1.0]])
def test_bad_probabilities_are_refused_with_eagers_words(bad: list[float]) -> None:
    gm = traced(torch.ones(2, 2), 1)
    probabilities = torch.tensor([[1.0, 2.0], bad])
    with pytest.raises(RuntimeError) as wanted:
        torch.multinomial(probabilities, 1)
    with pytest.raises(RuntimeError) as found:
        gm(probabilities)
    assert str(found.value) == str(wanted.value)
