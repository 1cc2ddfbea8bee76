"""What eager refuses as no probability is refused; what lies between 0 and 1, ends included, is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

NAN = float("nan")
TAKING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "input": lambda x: F.binary_cross_entropy(x, torch.ones_like(x)),
    "target": lambda x: F.binary_cross_entropy(torch.full_like(x, 0.5), x, reduction="none"),
    "weighed": lambda x: F.binary_cross_entropy(
        x, torch.ones_like(x), torch.full_like(x, 3), reduction="sum"
    ),
    "bernoulli": torch.bernoulli,
}


def traced(name: str, x: torch.Tensor) -> Callable[[torch.Tensor], Any]:
    function = TAKING[name]
    table = decompositions()
    return make_fx(lambda given: function(given), decomposition_table=table, tracing_mode="fake")(x)


@pytest.mark.parametrize("name", TAKING)
@pytest.mark.parametrize("bad", [1.5, -0.1, NAN])
def test_numbers_that_are_no_probabilities_are_refused(name: str, bad: float) -> None:
    gm = traced(name, torch.rand(4))
    x = torch.tensor([0.5, 0.0, bad, 1.0])
    with pytest.raises(RuntimeError) as wanted:
        TAKING[name](x)
    with pytest.raises(RuntimeError) as found:
        gm(x)
    assert str(wanted.value).startswith(str(found.value))


@pytest.mark.parametrize("name", TAKING)
def test_probabilities_draw_what_eager_draws(name: str) -> None:
    for x in (torch.tensor([0.5, 0.0, 1.0]), torch.rand(0)):
        gm = traced(name, x)
        torch.manual_seed(0)
        wanted = TAKING[name](x)
        torch.manual_seed(0)
        torch.testing.assert_close(gm(x), wanted, equal_nan=True)
