"""Forward and backward of products."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.compute_bound.case import Case, Program, draw, draw_weight
from benchmarks.compute_bound.products import (
    activate,
    adapt,
    add_residual,
    feed_forward,
    gate,
    gelu,
    given,
    linear,
    project_layer_norm,
    project_normalised,
    scale_batches,
)


def find_loss(x: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(x, w)
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), labels)


def perceive(x: Tensor, w: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return F.linear(gelu(F.linear(x, w, b)), v)


def build_loss(rows: int, inner: int, columns: int) -> Program:
    labels = torch.randint(0, columns, (rows,))
    return Program(function=find_loss, given=(draw(rows, inner), draw_weight(columns, inner), labels))


CASES: Final = (
    Case(name="linear-gelu", build=linear(partial(activate, gelu), 8192, 3072, 768, "b"), trains=True),
    Case(name="linear-relu", build=linear(partial(activate, F.relu), 4096, 4096, 1024, "b"), trains=True),
    Case(name="residual", build=linear(add_residual, 8192, 768, 3072, "br"), trains=True),
    Case(name="swiglu", build=linear(partial(gate, F.silu), 4096, 5632, 2048, "w"), trains=True),
    Case(
        name="feed-forward",
        build=given(feed_forward, (4096, 1024), (2816, 1024), (2816, 1024), (1024, 2816)),
        trains=True,
    ),
    Case(
        name="mlp",
        build=given(perceive, (8192, 768), (3072, 768), (3072,), (768, 3072)),
        trains=True,
    ),
    Case(
        name="lora",
        build=given(adapt, (4096, 2048), (2048, 2048), (16, 2048), (2048, 16)),
        trains=True,
    ),
    Case(
        name="rms-prologue",
        build=given(project_normalised, (4096, 2048), (2048,), (2048, 2048)),
        trains=True,
    ),
    Case(name="layer-norm-prologue", build=linear(project_layer_norm, 8192, 2304, 768, "b"), trains=True),
    Case(name="bmm-relu", build=given(scale_batches, (256, 128, 64), (256, 64, 128)), trains=True),
    Case(name="loss-32000", build=partial(build_loss, 4096, 1024, 32000), trains=True),
    Case(name="loss-50304", build=partial(build_loss, 8192, 2048, 50304), trains=True),
)
"""Cases of training."""
