"""Rows looked up at positions from data, and scattered or looked up again, from torch.compile to kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.backends import resolve_backend
from integration_tests.interpreted_gathers import CASES, NODES, compared, inputs
from integration_tests.interpreting import answers_of


@pytest.mark.interpreter
@pytest.mark.parametrize("accumulation", ["sorted", "fixed"])
def test_triton_gathers_agree(tmp_path: Path, accumulation: str) -> None:
    pytest.importorskip("triton", reason="compiles Triton kernels")
    found = answers_of("integration_tests.interpreted_gathers", tmp_path, COILWORK_ACCUMULATION=accumulation)
    assert not any(found.values()), "\n".join(found.values())


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_cpu_gathers_agree(name: str, dynamic: bool) -> None:
    compared(CASES[name], dynamic=dynamic)


def test_a_refused_position_leaves_memory_unchanged() -> None:
    def add(total: Tensor, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return total.index_add_(0, dst, x[src])

    torch._dynamo.reset()
    compiled = torch.compile(add, backend=resolve_backend("coilwork"), dynamic=False)
    x, src, dst, _ = inputs()
    total = torch.zeros_like(x)
    compiled(total, x, src, dst)
    torch.testing.assert_close(total, add(torch.zeros_like(x), x, src, dst))
    before = total.clone()
    src[-1] = NODES
    with pytest.raises(IndexError, match="index out of range in"):
        compiled(total, x, src, dst)
    assert torch.equal(total, before)
