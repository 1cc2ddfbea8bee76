"""Gradients of embeddings, and what is added to them."""

from __future__ import annotations

from typing import Any, Final

import torch

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_lowering.rewrites.rewrite import (
    Condition,
    Match,
    Rewrite,
    call,
    dtype_among,
    equals,
    same_dtype,
    same_sizes,
    tensor,
    value,
)

aten = torch.ops.aten


def _is_on_cpu(match: Match) -> bool:
    # where rows are sorted first, one kernel sums them and adds the other gradient
    return bool(has_trait(match.result.device.type, PROCESSOR))


def _is_whole(match: Match) -> bool:
    width = match.value("gradient").shape[-1]
    return same_sizes(match.value("other").shape, (match.captures["rows"], width))


def _into_other(other: Any, gradient: Any, indices: Any, **_: Any) -> Any:
    rows = aten.reshape.default(indices, [-1])
    return aten.index_add.default(
        other, 0, rows, aten.reshape.default(gradient, [-1, gradient.value.shape[-1]])
    )


GRADIENT_INTO_ANOTHER: Final = Rewrite(
    name="gradient-into-another",
    doc=(
        "The gradient of an embedding whose table is used elsewhere, too, is added to the other gradient, "
        "row by row as they occur: no table of zeros."
    ),
    pattern=call(
        "aten.add.Tensor",
        self=call(
            "aten.embedding_dense_backward.default",
            grad_output=tensor("gradient"),
            indices=tensor("indices"),
            num_weights=value("rows"),
            padding_idx=value("padding"),
            scale_grad_by_freq=value("scaled"),
        ),
        other=tensor("other"),
        commutes=("self", "other"),
    ),
    replacement=_into_other,
    conditions=(
        equals("padding", -1),
        # sums in 16 bits would round after each row
        dtype_among("gradient", torch.float32, torch.float64),
        Condition(name="not scaled", holds=lambda match: match.captures["scaled"] is False),
        same_dtype("gradient", "other"),
        Condition(name="another gradient of the whole table", holds=_is_whole),
        Condition(name="on a CPU", holds=_is_on_cpu),
    ),
    inexact=True,
)

EMBEDDINGS: Final = (GRADIENT_INTO_ANOTHER,)
