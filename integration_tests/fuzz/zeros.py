"""The signs of zeros that eager defines: where a sum or an extreme leaves them open, either is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations on one element each whose zeros have the sign that IEEE 754 says, and copies. Sums, products of
# many, and extremes are none: the order of their terms decides, and which of two unlike zeros is the larger
# one nobody says.
DEFINED: Final = frozenset(
    (
        "add sub rsub mul div neg abs copysign where pow sqrt reciprocal floor ceil trunc round fmod"
        " sin tan asin atan sinh tanh asinh atanh erf expm1 log1p square exp log sigmoid"
        " clone _to_copy copy fill full full_like new_full zeros zeros_like new_zeros ones ones_like "
        "new_ones scalar_tensor"
        " lift_fresh_copy lift_fresh cat stack index index_select gather constant_pad_nd flip roll "
        "repeat masked_fill"
        " select_backward slice_backward select_scatter slice_scatter diagonal_scatter index_fill triu "
        "tril _efficientzerotensor"
    ).split()
)


class ZeroSigns(TorchDispatchMode):
    """Within it, a zero whose sign an operation leaves open is negative, or positive."""

    def __init__(self, *, negative: bool) -> None:
        super().__init__()
        self._zero = -0.0 if negative else 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        writes = func._schema.is_mutable
        aliases = any(r.alias_info is not None for r in func._schema.returns)
        if name in DEFINED or name.rstrip("_") in DEFINED or (aliases and not writes):
            return result
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and value.is_floating_point() and value.element_size() > 1:
                if value.layout is torch.strided and not value._is_zerotensor():
                    value.masked_fill_(value == 0, self._zero)
        return result


def has_other_zeros(ours: Any, eager: Any) -> bool:
    """Whether some zero of `ours` has another sign than eager's."""
    if not (isinstance(ours, Tensor) and isinstance(eager, Tensor) and ours.shape == eager.shape):
        return False
    if not eager.is_floating_point() or eager.element_size() == 1 or eager.layout is not torch.strided:
        return False
    return bool(_other_zeros(ours, eager).any())


def compare_zero_signs(ours: Tensor, eager: Tensor, wide: Tensor, reruns: Sequence[Tensor]) -> str:
    """What is wrong with the signs of zeros in `ours`, of which some are not eager's; empty if nothing is.

    They are eager's where that is defined: where float64 has a zero of the same sign, as has each of
    `reruns`, in which what is open is one or the other.
    """
    odd = _other_zeros(ours, eager)
    for other in (wide, *reruns):
        if other.shape != eager.shape:
            return ""
        odd &= (other == 0) & (other.signbit() == eager.signbit())
    if not bool(odd.any()):
        return ""
    at = tuple(odd.nonzero()[0].tolist())
    return f"{int(odd.sum())} zeros have the other sign, first at {at}: {ours[at]} instead of {eager[at]}"


def _other_zeros(ours: Tensor, eager: Tensor) -> Tensor:
    return (ours == 0) & (eager == 0) & (ours.signbit() != eager.signbit())
