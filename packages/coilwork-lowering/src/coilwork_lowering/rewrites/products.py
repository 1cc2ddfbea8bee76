"""Matrix products and what is added to them."""

from __future__ import annotations

from typing import Any, Final

import torch

from coilwork_lowering.facts.generated import is_computed
from coilwork_lowering.rewrites.rewrite import (
    Condition,
    Match,
    Rewrite,
    call,
    either,
    equals,
    has_rank,
    same_dtype,
    same_sizes,
    tensor,
    value,
)

aten = torch.ops.aten
_MM: Final = call("aten.mm.default", self=tensor("left"), mat2=tensor("right"))


def _is_stored(match: Match) -> bool:
    """Tell if the sum is needed in memory: kernels that compute with it would add the bias for nothing."""
    return not all(is_computed(user) for user in match.root.users)


def _one_per_column(match: Match) -> bool:
    return same_sizes(match.value("bias").shape, match.value("right").shape[1:])


def _is_on_floats(match: Match) -> bool:
    return bool(match.result.dtype.is_floating_point)


def _call_addmm(left: Any, right: Any, bias: Any, size: Any = None) -> Any:
    product = aten.addmm.default(bias, left, right)
    return product if size is None else aten.view.default(product, size)


ADD_TO_ADDMM: Final = Rewrite(
    name="add-to-addmm",
    doc=(
        "A product and a bias per column, one call: kernels of products add it for free, where no generated "
        "kernel would."
    ),
    pattern=either(
        call("aten.add.Tensor", self=_MM, other=tensor("bias"), commutes=("self", "other")),
        call(
            "aten.add.Tensor",
            self=call("aten.view.default", self=_MM, size=value("size")),
            other=tensor("bias"),
            commutes=("self", "other"),
        ),
    ),
    replacement=_call_addmm,
    conditions=(
        has_rank("bias", 1),
        same_dtype("left", "right", "bias"),
        Condition(name="bias has one number per column", holds=_one_per_column),
        Condition(name="floats", holds=_is_on_floats),
        Condition(name="the sum is needed in memory", holds=_is_stored),
    ),
    inexact=True,
)

NOTHING_TO_ADD: Final = Rewrite(
    name="nothing-to-add",
    doc=(
        "A product to which 0 times something is added, NaN or not: ATen reads nothing of that either, so "
        "nobody need make it."
    ),
    pattern=either(
        call(
            "aten.addmm.default",
            self=tensor("bias"),
            mat1=tensor("left"),
            mat2=tensor("right"),
            beta=value("beta"),
        ),
        call(
            "aten.baddbmm.default",
            self=tensor("bias"),
            batch1=tensor("lefts"),
            batch2=tensor("rights"),
            beta=value("beta"),
        ),
    ),
    replacement=lambda left=None, right=None, lefts=None, rights=None, **rest: (
        aten.bmm.default(lefts, rights) if left is None else aten.mm.default(left, right)
    ),
    conditions=(equals("beta", 0),),
)

PRODUCTS: Final = (ADD_TO_ADDMM, NOTHING_TO_ADD)
