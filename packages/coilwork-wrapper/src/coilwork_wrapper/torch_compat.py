"""The private torch API that this package touches; the same in 2.11 to 2.13."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import has_side_effect

_custom: Final[Any] = importlib.import_module("torch._library.custom_ops")
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


def find_defining_module(operator: str) -> str | None:
    """Return the Python module that defines `operator`, `"mylib::scale"`; None if it is defined in C++, or
    unknown."""
    defined = _custom.OPDEFS.get(operator)
    if defined is not None:
        module: str = defined._init_fn.__module__
        return module
    try:
        text: str = torch._C._dispatch_dump(operator)
    except RuntimeError:
        return None
    found = re.search(r"^debug: registered at (.*):\d+$", text, re.MULTILINE)
    path = found[1] if found else ""
    modules = ((name, getattr(module, "__file__", None)) for name, module in tuple(sys.modules.items()))
    return next((name for name, file in modules if path and file == path), None)
