"""Matrix products of `f64` as sums of products: generated kernels then add every row in one order, whatever
its batch.

Torch's own kernels choose blocks by sizes. Products of narrower types have generated kernels of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

aten: Final = torch.ops.aten


def product_decompositions() -> dict[Any, Callable[..., Any]]:
    """For products of two matrices or batches of them, and of matrices and vectors. Other types are left
    alone.
    """
    return {
        aten.mm.default: _mm,
        aten.bmm.default: _bmm,
        aten.mv.default: _mv,
        aten.addmm.default: _decompose_addition(_mm),
        aten.baddbmm.default: _decompose_addition(_bmm),
        aten.addmv.default: _decompose_addition(_mv),
    }


def _mm(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a.unsqueeze(2) * b.unsqueeze(0)).sum(1).contiguous()


def _bmm(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a.unsqueeze(3) * b.unsqueeze(1)).sum(2).contiguous()


def _mv(a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype is not torch.float64:
        return NotImplemented
    return (a * b).sum(1)


def _decompose_addition(product: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[..., Any]:
    def decompose(
        bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
    ) -> Any:
        found = product(a, b)
        if found is NotImplemented:
            return NotImplemented
        scaled = found if alpha == 1 else found * alpha
        # a factor of 0 keeps NaN out
        if beta == 0:
            return scaled
        return scaled + (bias if beta == 1 else bias * beta)

    return decompose
