"""What eager makes of elements in order where its sorts are stable.

On a CPU eager's sort of many elements leaves equal ones in any order, and so do those of a few that find
ranks; ours keep the order that they had. The values are the same, but not which of two equal elements has a
position, or a gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class StableSorts(TorchDispatchMode):
    """Within it, operations that put elements in order keep that of equal ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _STABLE.get(func, func)(*args, **(kwargs or {}))


def _sort(value: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = aten.sort.stable(value, stable=True, dim=dim, descending=descending)
    return found


def _sort_stable(
    value: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sort(value, dim, descending)


def _topk(
    value: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if value.dim() == 0:
        found: tuple[Tensor, Tensor] = aten.topk.default(value, k, dim, largest, sorted)
        return found
    values, positions = _sort(value, dim, largest)
    # contiguous, as eager's results are
    return values.narrow(dim, 0, k).contiguous(), positions.narrow(dim, 0, k).contiguous()


def _kthvalue(value: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if value.dim() == 0:
        found: tuple[Tensor, Tensor] = aten.kthvalue.default(value, k, dim, keepdim)
        return found
    values, positions = (part.narrow(dim, k - 1, 1).contiguous() for part in _sort(value, dim))
    return (values, positions) if keepdim else (values.squeeze(dim), positions.squeeze(dim))


def _median(value: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    # a NaN is larger than anything, but the median of what has one
    if value.dim() == 0 or value.numel() == 0 or bool(value.isnan().any()):
        found: tuple[Tensor, Tensor] = aten.median.dim(value, dim, keepdim)
        return found
    return _kthvalue(value, (value.shape[dim] + 1) // 2, dim, keepdim)


_STABLE: Final = MappingProxyType[Any, Callable[..., Any]](
    {
        aten.sort.default: _sort,
        aten.sort.stable: _sort_stable,
        aten.topk.default: _topk,
        aten.kthvalue.default: _kthvalue,
        aten.median.dim: _median,
    }
)
