"""torch's higher-order operators around Triton kernels of the user's, and the tables behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._higher_order_ops.triton_kernel_wrap import (
    get_mutated_tensors,
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)

FUNCTIONAL_LAUNCH: Final[Any] = triton_kernel_wrapper_functional
"""Launches a kernel over copies of what it writes, and returns these by parameter."""
LAUNCH: Final[Any] = triton_kernel_wrapper_mutation
"""Launches a kernel."""
FUNCTIONAL_CALL: Final[Any] = auto_functionalized_v2
"""Calls an operator over copies of the tensors in which it writes, and returns its results, then these."""


def describe_written(argument: str, base: int, view: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `FUNCTIONAL_CALL` for an argument that is written: tensor number `base` or, with
    a size, a stride and a storage offset in `view`, a part of it.
    """
    return {f"_{argument}_base_index": base, **{f"_{argument}_{name}": value for name, value in view.items()}}


def find_kernel(number: int) -> Any:
    """Return the kernel that a graph calls `number` in this process."""
    return kernel_side_table.get_kernel(number)


def find_constants(number: int) -> Mapping[str, Any]:
    """Return the constant arguments of launch `number` in this process: those that are no graph nodes."""
    return kernel_side_table.get_constant_args(number)


def list_written(call: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parameters whose tensors a launch writes, by torch's analysis of the kernel.

    `call` are the arguments of the higher-order operator, `values` examples of the kernel's.
    """
    return tuple(
        get_mutated_tensors(
            call["kernel_idx"], call["constant_args_idx"], dict(values), call["tma_descriptor_metadata"]
        )
    )
