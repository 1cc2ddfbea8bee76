"""Associative scans by torch's own function, on a GPU: what a loop in f64 gives, in one kernel, the same
every time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import associative_scan

from coilwork.backend import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def recurrence(early: tuple[Tensor, Tensor], late: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two steps of `h = a * h + b` as one."""
    return early[0] * late[0], late[0] * early[1] + late[1]


def looped(decay: Tensor, x: Tensor, dim: int, *, reverse: bool) -> Tensor:
    decay, x = decay.double().movedim(dim, 0), x.double().movedim(dim, 0)
    if reverse:
        decay, x = decay.flip(0), x.flip(0)
    state, states = torch.zeros_like(x[0]), []
    for k in range(x.shape[0]):
        state = decay[k] * state + x[k]
        states.append(state)
    stacked = torch.stack(states)
    return (stacked.flip(0) if reverse else stacked).movedim(0, dim)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim"), [((64, 4096), 1), ((3, 20001), 1), ((4, 2048, 96), 1), ((700, 130), 0)]
)
def test_linear_recurrences_are_near_the_exact_ones(
    shape: tuple[int, ...], dim: int, reverse: bool, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    options = {"cache_dir": str(tmp_path), "strict": True}

    def function(gate: Tensor, x: Tensor) -> Tensor:
        rows = (gate.sigmoid(), x * 2)
        return associative_scan(recurrence, rows, dim, reverse=reverse)[1] + 1

    fast = torch.compile(function, backend=lambda gm, inputs: backend(gm, inputs, options=options))
    gate, x = torch.randn(2, *shape, device="cuda")
    found = fast(gate, x)
    wanted = looped(gate.sigmoid(), x * 2, dim, reverse=reverse) + 1
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(found, fast(gate, x)) for _ in range(10))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_scans_of_every_type_are_those_of_eager(dtype: torch.dtype, tmp_path: Path) -> None:
    torch._dynamo.reset()
    options = {"cache_dir": str(tmp_path), "strict": True}

    def function(x: Tensor) -> Tensor:
        found: Tensor = associative_scan(torch.maximum, x, 1)
        return found

    fast = torch.compile(function, backend=lambda gm, inputs: backend(gm, inputs, options=options))
    x = (torch.randn(5, 3000, device="cuda") * 100).to(dtype)
    assert torch.equal(fast(x), x.cummax(1).values)
