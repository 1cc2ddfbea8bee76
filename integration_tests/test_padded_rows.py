"""Padded rows of intermediates in generated code: results are eager's, and nobody reads what is between rows.

On a CPU no product asks for padding, so the layout pass is told that rows between vectors cost more than
anything else.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend
from coilwork_scheduler.layouts import products

_PERTURB = -6  # `M_PERTURB` of glibc's malloc.h


@pytest.fixture(autouse=True)
def padded_and_poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All rows that can be padded are, and fresh memory holds large numbers."""
    alignment = products.Alignment(lost=1 << 40, padded=0, vector_bytes=16)
    monkeypatch.setattr(products, "_weigh_alignment", lambda left, output, context: alignment)
    torch._dynamo.reset()
    libc = ctypes.CDLL(None)
    libc.mallopt(_PERTURB, 1)
    yield
    libc.mallopt(_PERTURB, 0)
    torch._dynamo.reset()


def chain(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """A product of odd columns, a norm of its rows, and a product of odd terms."""
    h = (x @ v.t()).exp()
    return (h / h.sum(-1, keepdim=True)) @ w


def running(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Running sums, sorted rows and maxima of rows of seven numbers, each times a weight."""
    h = x @ v.t()
    return (h.cumsum(-1) @ w) + (h.sort(-1).values @ w) + ((h - h.amax(-1, keepdim=True)) @ w)


def batched(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """Rows of batches, and a batch's columns as rows."""
    h = torch.stack([x @ v.t(), x @ v.t() + 1]).softmax(-1)
    return torch.bmm(h.cumsum(-1), torch.stack([w, w + 1])).sum(1)


def branched(x: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A part of padded rows, and rows joined with others."""
    h = (x @ v.t()).relu() + 1
    return h[:, 2:5] * 2, torch.cat([h @ w, (h * 2) @ w], 1)


PROGRAMS: tuple[Callable[..., object], ...] = (chain, running, batched, branched)


@pytest.mark.parametrize("wrapper", ["python", "cpp"])
@pytest.mark.parametrize("made", PROGRAMS)
def test_programs_with_padded_rows_agree_with_eager(
    made: Callable[..., object], wrapper: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x, v, w = torch.randn(6, 4), torch.randn(7, 4), torch.randn(7, 8)
    options: dict[str, Any] = {
        "strict": True,
        "cache": False,
        "verify": True,
        "wrapper": wrapper,
        "trace": str(tmp_path),
    }
    call = torch.compile(made, backend=backend, options=options, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(call(x, v, w), made(x, v, w))
    layouts = "".join(path.read_text() for path in tmp_path.rglob("*.layouts.txt"))
    assert " 8 1 " in layouts and " moved " in layouts


def test_saved_tensors_may_have_padded_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    given = [torch.randn(6, 4), torch.randn(7, 4), torch.randn(7, 8)]
    options: dict[str, Any] = {"strict": True, "cache": False, "verify": True, "trace": str(tmp_path)}
    call = torch.compile(chain, backend=backend, options=options, dynamic=False)
    gradients: list[list[Tensor | None]] = []
    for each in (call, chain):
        inputs = [x.clone().requires_grad_() for x in given]
        each(*inputs).square().sum().backward()
        gradients.append([x.grad for x in inputs])
    torch.testing.assert_close(*gradients)
    layouts = "".join(path.read_text() for path in tmp_path.rglob("*.layouts.txt"))
    assert " 8 1 " in layouts and " moved " in layouts
