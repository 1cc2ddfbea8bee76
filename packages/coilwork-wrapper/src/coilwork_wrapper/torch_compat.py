"""The private torch API that this package touches; the same in 2.11 to 2.13."""

from __future__ import annotations

import importlib
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import has_side_effect

_triton: Final[Any] = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")

LAUNCH: Final[Any] = has_side_effect(_triton.triton_kernel_wrapper_mutation)
"""PyTorch's operator that launches a Triton kernel. It writes arguments, which FX does not know of it."""


def has_address(value: torch.Tensor) -> bool:
    """Return True if `value` has memory; what stands for a tensor while a graph is traced has none."""
    return not isinstance(value, FakeTensor)


def enter_kernel(kernel: Any) -> int:
    """Return the number of `kernel` in torch's table of Triton kernels, which keeps it."""
    number: int = _triton.kernel_side_table.add_kernel(kernel)
    return number


def enter_constants(constants: dict[str, Any]) -> int:
    """Return the number of `constants` in torch's table of what launches pass beside tensors and sizes."""
    number: int = _triton.kernel_side_table.add_constant_args(constants)
    return number
