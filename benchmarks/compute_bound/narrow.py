"""Products of 8 and 4 bits, and products of groups of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compute_bound.case import Case, Program, draw, draw_weight

_FP8: Final = torch.float8_e4m3fn

# ---- Weights in fewer bits ----


def multiply_bytes(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale


def multiply_groups(x: Tensor, pairs: Tensor, scale: Tensor) -> Tensor:
    values = torch.stack((pairs & 15, pairs >> 4), -1).to(x.dtype) - 8
    weight = values.view(scale.shape[0], -1, 128) * scale
    return F.linear(x, weight.view(scale.shape[0], -1))


def build_bytes(m: int, dtype: torch.dtype) -> Callable[[], Program]:
    """Return what builds a linear layer of 4096 and 11008 whose weight is of `dtype`."""

    def build() -> Program:
        if dtype is torch.int8:
            weight = torch.randint(-127, 128, (11008, 4096), dtype=torch.int8)
        else:
            weight = draw(11008, 4096).to(dtype)
        return Program(function=multiply_bytes, given=(draw(m, 4096), weight, draw(11008, scale=0.01)))

    return build


def build_groups(m: int) -> Callable[[], Program]:
    """Return what builds a linear layer of 4096 and 11008 with weights of 4 bits, a scale for each 128."""

    def build() -> Program:
        pairs = torch.randint(0, 256, (11008, 2048), dtype=torch.uint8)
        return Program(function=multiply_groups, given=(draw(m, 4096), pairs, draw(11008, 32, 1, scale=0.01)))

    return build


# ---- Scaled products ----


def multiply_tensors(x: Tensor, w: Tensor, scale: Tensor, other: Tensor) -> Tensor:
    return torch._scaled_mm(x, w.t(), scale, other, out_dtype=torch.bfloat16, use_fast_accum=True)


def multiply_activated(x: Tensor, w: Tensor, scale: Tensor, other: Tensor) -> Tensor:
    return F.silu(multiply_tensors(x, w, scale, other))


def multiply_rows(x: Tensor, w: Tensor, other: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / 448
    narrow = (x.float() / scale).to(_FP8)
    return torch._scaled_mm(narrow, w.t(), scale, other, out_dtype=torch.bfloat16, use_fast_accum=True)


def multiply_quantised(x: Tensor, w: Tensor, other: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / 127
    narrow = (x.float() / scale).round().to(torch.int8)
    return (torch._int_mm(narrow, w.t()).float() * scale * other).bfloat16()


def build_tensors(activated: bool) -> Callable[[], Program]:
    def build() -> Program:
        one = torch.tensor(0.5)
        function = multiply_activated if activated else multiply_tensors
        return Program(
            function=function, given=(draw(4096, 4096).to(_FP8), draw(4096, 4096).to(_FP8), one, one)
        )

    return build


def build_rows(m: int) -> Callable[[], Program]:
    def build() -> Program:
        other = torch.rand(1, 4096) * 0.1
        return Program(function=multiply_rows, given=(draw(m, 4096), draw(4096, 4096).to(_FP8), other))

    return build


def build_quantised() -> Program:
    weight = torch.randint(-127, 128, (4096, 4096), dtype=torch.int8)
    return Program(function=multiply_quantised, given=(draw(4096, 4096), weight, torch.rand(1, 4096) * 0.01))


# ---- Groups of rows ----


def multiply_ragged(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(x, w, ends)


def gate_ragged(x: Tensor, w: Tensor, v: Tensor, ends: Tensor) -> Tensor:
    return F.silu(torch._grouped_mm(x, w, ends)) * torch._grouped_mm(x, v, ends)


def mix_experts(x: Tensor, router: Tensor, w: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """Send each row to two experts, by rows sorted by expert."""
    weights, chosen = torch.topk(F.softmax(F.linear(x, router).float(), -1), 2)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.zeros(w.shape[0], dtype=torch.int32, device=x.device)
    counts = counts.scatter_add(0, chosen.flatten(), torch.ones_like(order, dtype=torch.int32))
    ends = counts.cumsum(0).to(torch.int32)
    rows = x.index_select(0, order // 2)
    hidden = F.silu(torch._grouped_mm(rows, w, ends)) * torch._grouped_mm(rows, v, ends)
    made = torch._grouped_mm(hidden, u, ends) * weights.flatten()[order, None].to(x.dtype)
    return torch.zeros_like(x).index_add(0, order // 2, made)


def mix_by_batches(x: Tensor, chosen: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Experts of equally many rows each: `chosen` numbers the rows of each expert."""
    rows = x.index_select(0, chosen.flatten()).view(*chosen.shape, -1)
    made = torch.bmm(F.gelu(torch.bmm(rows, w)), u)
    return torch.zeros_like(x).index_copy(0, chosen.flatten(), made.flatten(0, 1))


def _ends(rows: int, groups: int) -> Tensor:
    cuts = torch.sort(torch.randint(1, rows // 16, (groups - 1,), dtype=torch.int32))[0] * 16
    return torch.cat((cuts, torch.tensor([rows], dtype=torch.int32)))


def build_ragged() -> Program:
    given = (draw(8192, 2048), draw(8, 2048, 2816, scale=0.02), _ends(8192, 8))
    return Program(function=multiply_ragged, given=given)


def build_gate_ragged() -> Program:
    w, v = (draw(8, 1024, 2816, scale=0.03) for _ in range(2))
    return Program(function=gate_ragged, given=(draw(8192, 1024), w, v, _ends(8192, 8)))


def build_experts() -> Program:
    w, v = (draw(8, 1024, 2816, scale=0.03) for _ in range(2))
    given = (draw(4096, 1024), draw_weight(8, 1024), w, v, draw(8, 2816, 1024, scale=0.02))
    return Program(function=mix_experts, given=given)


def build_batches() -> Program:
    chosen = torch.randperm(4096).view(8, 512)
    given = (draw(4096, 1024), chosen, draw(8, 1024, 4096, scale=0.03), draw(8, 4096, 1024, scale=0.02))
    return Program(function=mix_by_batches, given=given)


CASES: Final = (
    *(Case(name=f"int8-weight-{m}", build=build_bytes(m, torch.int8)) for m in (1, 16, 256)),
    *(Case(name=f"fp8-weight-{m}", build=build_bytes(m, _FP8)) for m in (1, 16, 256)),
    *(Case(name=f"int4-weight-{m}", build=build_groups(m)) for m in (1, 16, 256)),
    Case(name="scaled-tensors", build=build_tensors(False), is_exact=False),
    Case(name="scaled-tensors-silu", build=build_tensors(True), is_exact=False),
    *(Case(name=f"scaled-rows-{m}", build=build_rows(m), is_exact=False) for m in (512, 4096)),
    Case(name="int8-products", build=build_quantised, is_exact=False),
    Case(name="grouped", build=build_ragged, is_exact=False),
    Case(name="grouped-swiglu", build=build_gate_ragged, is_exact=False),
    Case(name="experts-top2", build=build_experts, is_exact=False),
    Case(name="experts-batched", build=build_batches),
)
"""Cases of narrow and grouped products."""
