"""Coilwork's names for torch's devices and element types."""

from __future__ import annotations

import torch

from coilwork_ir.device_traits import HOST_MEMORY, has_trait
from coilwork_ir.dtypes import DType, parse_torch_dtype
from coilwork_lowering.errors import LoweringError


def device_text(device: torch.device) -> str:
    """`"cpu"`, `"cuda:0"`: an accelerator always with its number."""
    if device.type == "meta" or has_trait(device.type, HOST_MEMORY):
        return device.type
    return f"{device.type}:{device.index or 0}"


def dtype_of(dtype: torch.dtype) -> DType:
    """Coilwork's name for a torch element type.

    Raises:
        LoweringError[dtype]: there is none.
    """
    try:
        return parse_torch_dtype(str(dtype))
    except ValueError as cause:
        raise LoweringError(
            "dtype", str(cause), remedy="keep tensors of this type out of the region"
        ) from cause
