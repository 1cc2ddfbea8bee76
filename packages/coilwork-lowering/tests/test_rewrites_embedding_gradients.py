"""Gradients of embeddings that are added to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rewritten_graphs import check_same, rewritten
from torch import Tensor

from coilwork_lowering.options import RewriteOptions
from coilwork_lowering.rewrites import choose_rewrites
from coilwork_lowering.rewrites.epilogues import EMBEDDINGS

aten = torch.ops.aten
ROWS, WIDTH = 11, 6
OTHER = torch.randn(ROWS, WIDTH)
# rows that occur often, once, and not at all
INDICES = torch.tensor([[0, 3, 3], [10, 3, 0]])
GRADIENT = torch.randn(2, 3, WIDTH)


def of_table(
    gradient: Tensor, indices: Tensor, rows: int = ROWS, padding: int = -1, scaled: bool = False
) -> Tensor:
    found: Tensor = aten.embedding_dense_backward(gradient, indices, rows, padding, scaled)
    return found


FIRES: dict[str, Callable[..., Any]] = {
    "the gradient first": lambda g, i, o: of_table(g, i) + o,
    "the other first": lambda g, i, o: o + of_table(g, i),
    "into a product": lambda g, i, o: o @ o[:WIDTH] + of_table(g, i),
    "one row of positions": lambda g, i, o: of_table(g[0], i[0]) + o,
    "a single position": lambda g, i, o: of_table(g[0, 0], i[0, 0]) + o,
    "no positions": lambda g, i, o: of_table(g[:0], i[:0]) + o,
    "all positions but the last of each row": lambda g, i, o: of_table(g[:, :-1], i[:, :-1]) + o,
    "positions that lie across": lambda g, i, o: of_table(g.transpose(0, 1), i.t()) + o,
}


@pytest.mark.parametrize("case", FIRES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_added_row_by_row(case: str, dtype: torch.dtype) -> None:
    inputs = (GRADIENT.to(dtype), INDICES, OTHER.to(dtype))
    made = check_same(FIRES[case], inputs, EMBEDDINGS, rtol=1e-5, atol=1e-6)
    assert made.names == ("gradient-into-another",)
    assert "aten.embedding_dense_backward.default" not in made.calls()


def twice(g: Tensor, i: Tensor, o: Tensor) -> Any:
    found = of_table(g, i)
    return found + o, found


STAYS: dict[str, Callable[..., Any]] = {
    "a row without gradients": lambda g, i, o: of_table(g, i, padding=3) + o,
    "scaled by how often": lambda g, i, o: of_table(g, i, scaled=True) + o,
    "a multiple": lambda g, i, o: torch.add(o, of_table(g, i), alpha=2),
    "a number per column": lambda g, i, o: of_table(g, i) + o[0],
    "the other is wider": lambda g, i, o: of_table(g, i) + o.expand(2, ROWS, WIDTH),
    "another type": lambda g, i, o: of_table(g, i) + o.double(),
    "sums in 16 bits": lambda g, i, o: of_table(g.bfloat16(), i) + o.bfloat16(),
    "the other lies across, and so does the sum": lambda g, i, o: (o[:WIDTH] @ o.t()).t() + of_table(g, i),
    "another reader": twice,
}


@pytest.mark.parametrize("case", STAYS)
def test_scatters_that_are_no_embedding_gradient_stay(case: str) -> None:
    assert rewritten(STAYS[case], (GRADIENT, INDICES, OTHER), EMBEDDINGS).names == ()


@pytest.mark.parametrize("numerics", ["eager", "strict"])
def test_is_for_fast_numerics_alone(numerics: Any) -> None:
    names = {rewrite.name for rewrite in choose_rewrites("aten", RewriteOptions(numerics=numerics))}
    assert "gradient-into-another" not in names
    assert "gradient-into-another" in {rewrite.name for rewrite in choose_rewrites("aten", RewriteOptions())}
