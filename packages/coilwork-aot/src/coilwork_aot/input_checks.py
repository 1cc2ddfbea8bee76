"""Say what is wrong with a call's inputs, and lay out those that only have other strides.

A program checks its inputs itself, natively. What is here runs when that fails, to name the argument, and to
choose between several variants of an entry point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from coilwork_aot.errors import InputError
from coilwork_aot.manifest import Leaf, Variant
from coilwork_runtime.dtypes import get_torch_dtype


def check_inputs(variant: Variant, leaves: Sequence[Any], device: torch.device) -> list[int]:
    """Check the leaves of a call; return those whose strides differ from the exported ones.

    Raises:
        InputError: one is not what the variant was exported for; the message names it.
    """
    sizes: dict[str, int] = {}
    differing = []
    for number, (leaf, value) in enumerate(zip(variant.inputs, leaves, strict=True)):
        if leaf.kind == "fixed":
            if type(value) is not type(leaf.value) or value != leaf.value:
                raise InputError(
                    "fixed-value",
                    f"{leaf.name} is {value!r}"[:200],
                    reason=f"the model was exported with {leaf.value!r}",
                    remedy="export it once for each value, as variants of one entry point",
                )
        elif leaf.kind == "number":
            if type(value) is not int:
                raise InputError("no-tensor", f"{leaf.name} is a {type(value).__name__}, and no integer")
            _check_sizes(leaf, [value], variant.symbols, sizes)
        elif not isinstance(value, torch.Tensor):
            raise InputError("no-tensor", f"{leaf.name} is a {type(value).__name__}, and no tensor")
        else:
            _check_tensor(leaf, value, device, variant.symbols, sizes)
            if not _has_strides(leaf, value, sizes):
                differing.append(number)
    return differing


def _check_tensor(
    leaf: Leaf,
    value: torch.Tensor,
    device: torch.device,
    symbols: Mapping[str, tuple[int, int]],
    sizes: dict[str, int],
) -> None:
    wanted = get_torch_dtype(leaf.dtype)
    if value.dtype != wanted:
        raise InputError("dtype", f"{leaf.name} has {value.dtype}", reason=f"it was exported as {wanted}")
    kind = device.type if leaf.device == device.type else leaf.device
    if value.device.type != kind or (kind == device.type and value.device != device):
        reason = f"the model takes it on {device if kind == device.type else kind}"
        raise InputError("device", f"{leaf.name} is on {value.device}", reason=reason)
    if value.dim() != len(leaf.sizes):
        raise InputError(
            "shape",
            f"{leaf.name} has {value.dim()} dimensions",
            reason=f"it was exported with {len(leaf.sizes)}",
        )
    _check_sizes(leaf, value.shape, symbols, sizes)


def _check_sizes(
    leaf: Leaf, given: Sequence[int], symbols: Mapping[str, tuple[int, int]], sizes: dict[str, int]
) -> None:
    for dimension, (size, wanted) in enumerate(zip(given, leaf.sizes, strict=True)):
        of_tensor = f"dimension {dimension} of {leaf.name}"
        shown = f"{of_tensor if leaf.kind == 'tensor' else leaf.name} is {size}"
        if isinstance(wanted, int):
            if size != wanted:
                raise InputError("shape", shown, reason=f"it was exported as {wanted}")
        elif wanted:
            low, high = symbols[wanted]
            if size < low or 0 <= high < size:
                bounds = f"at least {low}" if high < 0 else f"{low} to {high}"
                raise InputError("shape", shown, reason=f"it was exported for {bounds}")
            if sizes.setdefault(wanted, size) != size:
                raise InputError("shape", shown, reason=f"it was exported as equal to {sizes[wanted]}")


def _has_strides(leaf: Leaf, value: torch.Tensor, sizes: Mapping[str, int]) -> bool:
    """Tell if the strides are the exported ones, of dimensions that have several elements."""
    if not value.numel():
        return True
    for size, stride, wanted in zip(value.shape, value.stride(), _find_strides(leaf, value), strict=True):
        if size > 1 and wanted is not None and stride != wanted:
            return False
    return True


def _find_strides(leaf: Leaf, value: torch.Tensor) -> list[int | None]:
    """Return the exported strides for the sizes of `value`; None where they are not known.

    An open stride is written as the number of the dimension that it runs over: its stride times its size.
    """
    strides: list[int | None] = [one if isinstance(one, int) else None for one in leaf.strides]
    for _ in leaf.strides:
        for dimension, one in enumerate(leaf.strides):
            if isinstance(one, str) and one and strides[dimension] is None:
                inner = strides[int(one)]
                strides[dimension] = None if inner is None else inner * value.shape[int(one)]
    return strides


def lay_out_inputs(variant: Variant, leaves: Sequence[Any], differing: Sequence[int]) -> list[Any]:
    """Return the leaves with copies, in the exported strides, of those at `differing`.

    Raises:
        InputError: the program writes to one, or its strides are not known.
    """
    laid_out = list(leaves)
    for number in differing:
        leaf, value = variant.inputs[number], leaves[number]
        strides = _find_strides(leaf, value)
        known = [one for one in strides if one is not None]
        if leaf.is_written or len(known) < len(strides):
            raise InputError(
                "strides",
                f"{leaf.name} has the strides {tuple(value.stride())}",
                reason=f"the program may write to it, and was exported for {tuple(known)}",
                remedy="make it contiguous, or export with inputs that are laid out so",
            )
        laid_out[number] = torch.empty_strided(value.shape, known, dtype=value.dtype, device=value.device)
        laid_out[number].copy_(value)
    return laid_out
