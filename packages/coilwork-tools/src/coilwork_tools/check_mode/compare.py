"""Is a value what eager computes? Floats are measured by eager's own distance from float64.

Two correct programs in f32 differ in the order of their sums, and no fixed tolerance fits every model.
Eager's error against float64 says how much rounding a value suffers at all; a right value is about as far
off.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# Eager's error is one draw of a scattered quantity, small by luck in small tensors.
FACTOR: Final = 8.0
# Units in the last place of the largest element.
FLOOR_ULPS: Final = 64.0


def disagreement(ours: object, eager: object, wide: object) -> str:
    """Return what is wrong with `ours`, in words; empty if nothing is.

    `wide` is the value in float64 (complex128). An integer or boolean that differs from eager's is wrong
    unless float64 gives it: where a rounding decided, either may be right.
    """
    if not isinstance(eager, Tensor):
        return "" if ours == eager or _both_nan(ours, eager) else f"{ours!r} instead of {eager!r}"
    if not isinstance(ours, Tensor):
        return f"{ours!r} instead of a tensor"
    if ours.dtype != eager.dtype:
        return f"{ours.dtype} instead of {eager.dtype}"
    if ours.shape != eager.shape:
        return f"shape {tuple(ours.shape)} instead of {tuple(eager.shape)}"
    if eager.numel() == 0 or eager.layout is not torch.strided:
        return ""
    if eager.is_complex():
        reference = torch.view_as_real(wide.resolve_conj()) if isinstance(wide, Tensor) else None
        parts = [torch.view_as_real(value.resolve_conj()) for value in (ours, eager)]
        return disagreement(parts[0], parts[1], reference)
    reference = wide if isinstance(wide, Tensor) and wide.shape == eager.shape else eager
    if not eager.is_floating_point():
        return _exact(ours, eager, reference)
    return _format_rounded(ours.double(), eager.double(), reference.double(), eager.dtype)


def _both_nan(ours: object, eager: object) -> bool:
    return ours != ours and eager != eager


def _exact(ours: Tensor, eager: Tensor, reference: Tensor) -> str:
    apart = (ours != eager) & (ours != reference.to(eager.dtype))
    if not apart.any():
        return ""
    first = tuple(apart.nonzero()[0].tolist())
    return (
        f"{int(apart.sum())} of {apart.numel()} elements differ; at {list(first)} {ours[first].item()} "
        f"instead of {eager[first].item()}"
    )


def _format_rounded(ours: Tensor, eager: Tensor, reference: Tensor, dtype: torch.dtype) -> str:
    narrow = reference.to(dtype).double()
    odd = _kinds(ours)
    apart = (odd != _kinds(eager)) & (odd != _kinds(narrow))
    if apart.any():
        first = tuple(apart.nonzero()[0].tolist())
        return f"at {list(first)} {ours[first].item()} instead of {eager[first].item()}"
    finite = (odd == 0) & torch.isfinite(reference) & torch.isfinite(eager)
    distance = torch.where(finite, (ours - reference).abs(), 0.0)
    error, eagers = distance.max().item(), torch.where(finite, (eager - reference).abs(), 0.0).max().item()
    scale = torch.where(finite, reference, 0.0).abs().max().item()
    limit = FACTOR * eagers + FLOOR_ULPS * torch.finfo(dtype).eps * scale
    if error <= limit:
        return ""
    at = int(distance.flatten().argmax())
    first = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), ours.shape))
    return (
        f"off from float64 by {error:.3g}, eager by {eagers:.3g}; at {list(first)} {ours[first].item():.9g} "
        f"instead of {eager[first].item():.9g}"
    )


def _kinds(value: Tensor) -> Tensor:
    """0 for numbers, else 1, 2, 3 for NaN and the two infinities."""
    return value.isnan().int() + 2 * value.isposinf().int() + 3 * value.isneginf().int()
