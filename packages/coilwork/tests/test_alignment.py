"""Which inputs kernels may take to be aligned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork.alignment import aligned_inputs
from coilwork_lowering import lower


def aligned(function: Callable[..., object], *inputs: torch.Tensor) -> tuple[str, ...]:
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    return aligned_inputs(lower(gm, name="g").graph, gm)


def test_offsets_decide() -> None:
    base = torch.zeros(64)
    assert aligned(lambda a, b, c: (a + b + c,), base[:16], base[4:20], base[1:17]) == ("a_1", "b_1")


def test_offsets_count_in_bytes() -> None:
    base = torch.zeros(64, dtype=torch.bfloat16)
    assert aligned(lambda a, b: (a + b,), base[4:20], base[8:24]) == ("b_1",)


def test_inputs_whose_own_memory_matters_are_left_out() -> None:
    x, y = torch.zeros(16), torch.zeros(16)
    assert aligned(lambda a, b: (a.add_(b), b * 2), x, y) == ("b_1",)
    assert aligned(lambda a, b: (a.view(4, 4), b * 2), x, y) == ("b_1",)
    assert aligned(lambda a, b: (a, b * 2), x, y) == ("b_1",)
