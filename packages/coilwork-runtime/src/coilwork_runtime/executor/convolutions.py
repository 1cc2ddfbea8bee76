"""Convolutions that the native executor may hand to cuDNN itself: which calls, and under which settings of
torch.

A call says that it implements a convolution, or its gradients; its arguments are those of ATen's operators.

ATen looks for a plan, describes tensors and looks after a workspace in every call. The executor works a plan
out once per shape (native/libraries/convolutions.hpp). Results may differ from ATen's in the last bits where
ATen would take an engine that does not give the same bits in every call, which is never taken here. What is
refused is done by ATen.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from coilwork_runtime.executor.libraries import CalledLibrary
from coilwork_runtime.executor.program_reader import Argument, RecordedCall, Slot
from coilwork_runtime.torch_compat import convolution_settings

_CONVOLUTION: Final = 2
_FORWARD: Final = "convolution"
_GRADIENTS: Final = "convolution gradients"
# The tensors that a convolution relates, as native/libraries/convolution_library.hpp numbers them, and no
# tensor.
_IMAGE, _WEIGHT, _SUMS, _NONE = 0, 1, 2, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionLibrary(CalledLibrary):
    """Where convolutions are computed; `settings` are as `convolution_settings`."""

    NAME: ClassVar[str] = "cuDNN"
    WORK: ClassVar[str] = "convolutions"
    settings: Callable[[], int] = convolution_settings


def convolution_bytes(call: RecordedCall, library: ConvolutionLibrary | None) -> bytes | None:
    """Return what the plan of a call says of a convolution (native/program/plans.hpp); `None` if it is none
    that the library does.
    """
    device = None if library is None else library.number(call.device)
    if device is None or call.kwargs:
        return None
    if call.implements == _FORWARD and len(call.args) == 9:
        value, weight, bias, *shape = call.args
        transposed = shape[3]
        given = {_SUMS if transposed else _IMAGE: value, _WEIGHT: weight}
        computed = [_IMAGE if transposed else _SUMS]
        return None if bias is not None else _said(given, computed, (*shape[:3], shape[5]), device)
    if call.implements == _GRADIENTS and len(call.args) == 11:
        gradient, value, weight, _, *shape, mask = call.args
        transposed = shape[3]
        given = {_WEIGHT: weight}
        given |= {_IMAGE: gradient, _SUMS: value} if transposed else {_IMAGE: value, _SUMS: gradient}
        computed = [_SUMS if transposed else _IMAGE, _WEIGHT, _NONE]
        wanted = [role if want is True else _NONE for role, want in zip(computed, mask, strict=True)]
        return None if mask[2] is not False else _said(given, wanted, (*shape[:3], shape[5]), device)
    return None


def _said(
    given: Mapping[int, Argument], computed: Sequence[int], shape: Sequence[Argument], device: int
) -> bytes | None:
    stride, padding, dilation, groups = shape
    lists = [_listed(values, stride) for values in (stride, padding, dilation)]
    if not all(isinstance(value, Slot) for value in given.values()) or not isinstance(groups, int):
        return None
    if any(values is None for values in lists):
        return None
    slots = b"".join(
        b"\1" + struct.pack("<I", given[role].number) if role in given else b"\0"
        for role in (_IMAGE, _WEIGHT, _SUMS)
    )
    numbers = b"".join(struct.pack(f"<I{len(values)}q", len(values), *values) for values in lists if values)
    roles = struct.pack(f"<I{len(computed)}i", len(computed), *computed)
    return bytes((_CONVOLUTION,)) + slots + roles + numbers + struct.pack("<qi", groups, device)


def _listed(values: Argument, like: Argument) -> list[int] | None:
    """One number for each dimension of space; `None` where some are only known in a call."""
    if not isinstance(values, list) or not values or not all(type(value) is int for value in values):
        return None
    return values if len(values) == len(like) else None
