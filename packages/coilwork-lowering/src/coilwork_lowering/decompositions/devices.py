"""Copies to another device: what crosses is one call of ATen's, in one element type; types change on the
device that is faster.

Torch's own decomposition ends in `prims.device_put`, which means the same copy again, and imports another
compiler to ask what a device can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from coilwork_ir.device_traits import HOST_MEMORY, has_trait

aten: Final = torch.ops.aten


def device_decompositions(table: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The entries; `table` has torch's own, for copies that stay where they are."""
    return {
        aten._to_copy.default: _to_copy(table[aten._to_copy.default]),
        torch.ops.prims.device_put.default: _device_put,
    }


def _to_copy(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def to_copy(
        value: torch.Tensor | float,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
        **rest: Any,
    ) -> Any:
        """A copy to another device alone is left as it is. So is that of a number, which products with
        autograd's zeros make.
        """
        if device is not None and not isinstance(value, torch.Tensor):
            return NotImplemented
        if not isinstance(value, torch.Tensor) or device is None or device == value.device:
            return theirs(
                value,
                dtype=dtype,
                device=device,
                non_blocking=non_blocking,
                memory_format=memory_format,
                **rest,
            )
        if dtype is None or dtype is value.dtype:
            return NotImplemented

        def call_moved(source: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = aten._to_copy.default(
                source, device=device, non_blocking=non_blocking, memory_format=memory_format, **rest
            )
            return made

        return (
            call_moved(value.to(dtype))
            if has_trait(device.type, HOST_MEMORY)
            else call_moved(value).to(dtype)
        )

    return to_copy


def _device_put(value: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
    return value.to(device, non_blocking=non_blocking)
