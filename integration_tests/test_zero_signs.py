"""Signs of zeros count where eager defines them, in random programs and in the sweep over operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from integration_tests.fuzz.judge import difference
from integration_tests.fuzz.zeros import ZeroSigns
from integration_tests.operators.judge import judge

Function = Callable[[Tensor], Tensor]
X = torch.tensor([-1.0, 0.0, -0.0, 2.0])
DEFINED: dict[str, Function] = {
    "product": lambda x: x * -0.0,
    "choice": lambda x: torch.where(x > 0, -0.0, 0.0),
    "negative": lambda x: -(x * 0),
    "copy": lambda x: x.clone(),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 1), value=-0.0),
    "odd function": lambda x: torch.sin(x),
}
OPEN: dict[str, Function] = {
    "extreme": lambda x: torch.maximum(x * 0, x * -0.0),
    "bound": lambda x: x.clamp(min=0.0),
    "sum": lambda x: (x * -0.0).sum(),
    "what is made of a sum": lambda x: torch.where(x > 0, x, (x * 0).sum()),
}


def runs(function: Function) -> list[Tensor]:
    found = []
    for negative in (False, True):
        with ZeroSigns(negative=negative):
            found.append(function(X.clone()))
    return found


def flipped(value: Tensor) -> Tensor:
    return torch.where(value == 0, -value, value)


@pytest.mark.parametrize("name", [*DEFINED, *OPEN])
def test_signs_of_defined_zeros_count(name: str) -> None:
    function = (DEFINED | OPEN)[name]
    eager, wide = function(X), function(X.double())
    odd = flipped(eager)
    assert not difference(eager.clone(), eager, wide, list, zeros=lambda: runs(function))
    found = difference(odd, eager, wide, list, zeros=lambda: runs(function))
    assert ("zeros have the other sign" in found) is (name in DEFINED)
    # without reruns no sign counts, as before
    assert not difference(odd, eager, wide, list)
    verdict = judge(odd, eager, lambda: wide, zeros=lambda: runs(function)).verdict
    assert verdict == ("wrong" if name in DEFINED else "ok")


def test_a_zero_by_underflow_may_have_any_sign() -> None:
    """An underflow: which sign it leaves depends on where it happens."""
    eager, wide = torch.tensor([-0.0]), torch.tensor([-1e-60], dtype=torch.float64)
    assert not difference(torch.tensor([0.0]), eager, wide, list, zeros=lambda: [eager])
