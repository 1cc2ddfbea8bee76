"""The private torch API that this package touches; the same in 2.11 to 2.13.

What takes long to import is imported when it is first needed.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from typing import Any, Final

import torch

_FAKES: Final = "torch._subclasses.fake_tensor"


def _import_triton_calls() -> Any:
    return importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")


@functools.cache
def get_launch_operator() -> Any:
    """Return PyTorch's operator that launches a Triton kernel. It writes arguments, which FX does not know of
    it by itself."""
    return importlib.import_module("torch.fx.node").has_side_effect(
        _import_triton_calls().triton_kernel_wrapper_mutation
    )


def has_address(value: torch.Tensor) -> bool:
    """Return True if `value` has memory; what stands for a tensor while a graph is traced has none."""
    fakes: Any = sys.modules.get(_FAKES)
    return fakes is None or not isinstance(value, fakes.FakeTensor)


def enter_kernel(kernel: Any) -> int:
    """Return the number of `kernel` in torch's table of Triton kernels, which keeps it."""
    number: int = _import_triton_calls().kernel_side_table.add_kernel(kernel)
    return number


def enter_constants(constants: dict[str, Any]) -> int:
    """Return the number of `constants` in torch's table of what launches pass beside tensors and sizes."""
    number: int = _import_triton_calls().kernel_side_table.add_constant_args(constants)
    return number


def find_defining_module(operator: str) -> str | None:
    """Return the Python module that defines `operator`, `"mylib::scale"`; None if it is defined in C++, or
    unknown."""
    custom: Any = importlib.import_module("torch._library.custom_ops")
    defined = custom.OPDEFS.get(operator)
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
