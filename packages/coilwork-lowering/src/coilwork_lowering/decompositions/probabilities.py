"""Probabilities, which eager's kernels refuse where they do not lie between 0 and 1. Torch's decompositions
compute with them.

On accelerators eager's refusal is an assertion on the device, which leaves the process without it; there is
no such check here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, has_trait

aten: Final = torch.ops.aten


def probability_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return what replaces entries of `table`, torch's own."""
    return {
        aten.binary_cross_entropy.default: _cross_entropy(table[aten.binary_cross_entropy.default]),
        aten.bernoulli.default: _bernoulli(table[aten.bernoulli.default]),
    }


def _cross_entropy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def binary_cross_entropy(value: torch.Tensor, target: torch.Tensor, *rest: Any, **named: Any) -> Any:
        _check(value, "all elements of input should be between 0 and 1")
        _check(target, "all elements of target should be between 0 and 1")
        return theirs(value, target, *rest, **named)

    return binary_cross_entropy


def _bernoulli(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def bernoulli(value: torch.Tensor, **named: Any) -> Any:
        _check(value, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
        return theirs(value, **named)

    return bernoulli


def _check(value: torch.Tensor, message: str) -> None:
    if has_trait(value.device.type, ATEN_CPU) and value.is_floating_point():
        # NaN is neither
        aten._assert_async.msg(((value >= 0) & (value <= 1)).all(), message)
