"""Tensors as a caller is to have them: copies, views, and whose writes are counted together."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from coilwork_runtime.torch_compat import (
    creation_kind,
    is_alias,
    negative_view,
    read_creation,
    record_gradients,
    storage_identity,
    write_creation,
)

ALIGNMENT_BYTES: Final = 16


def align(value: torch.Tensor) -> torch.Tensor:
    """`value`, or a copy if it does not start at a multiple of 16 bytes."""
    return _copy_of(value) if value.data_ptr() % ALIGNMENT_BYTES else value


def resolve(value: Any, is_conjugate: bool) -> Any:
    """`value`, or a copy in whose memory are its numbers; with `is_conjugate`, their conjugates, and it is
    marked so.
    """
    if value is None or not (value.is_neg() or value.is_conj() > is_conjugate):
        return value
    return _copy_of(value.conj()).conj() if is_conjugate else _copy_of(value)


def lay_out(value: Any, strides: tuple[int, ...]) -> Any:
    """`value`, or a copy with these strides."""
    if not isinstance(value, torch.Tensor) or value.stride() == strides:
        return value
    return value.new_empty_strided(value.shape, strides).copy_(value)


def detach_view(value: Any) -> Any:
    """`value`, as no view."""
    return value.detach() if value._is_view() else value


def mark(value: torch.Tensor, negated: bool, conjugated: bool, is_gradient: bool) -> torch.Tensor:
    """A view of `value` with torch's bits; no view, unless `value` is one or a gradient."""
    found = negative_view(value) if negated else value
    found = found.conj() if conjugated else found
    if value.is_inference() or not value._is_view():
        return found if is_gradient else found.detach()
    # it takes the writes that the view takes
    if type(found) is torch.Tensor:
        write_creation(found, read_creation(value))
    return found


def share_count(value: object, source: object) -> Any:
    """A tensor like `value` that counts writes with `source`; `value` itself if they share no memory."""
    if type(value) is not torch.Tensor or not isinstance(source, torch.Tensor):
        return value
    if storage_identity(value) != storage_identity(source):
        return value
    # a detached tensor keeps the count, also when it is given other contents
    counted = source.detach()
    if value is not source:
        counted.data = value
    return counted


def show_memory_of(value: Any, source: Any, is_view: bool) -> Any:
    """A tensor like `value`, which shows memory of `source`, and like that one of inference mode or not.

    It is no view of `source`; a view of something else if `is_view`.
    """
    if value.is_inference() is source.is_inference() or value.dtype != source.dtype:
        return value
    made = source.detach().as_strided(value.shape, value.stride(), value.storage_offset())
    return made if is_view else made.detach()


def count_apart(value: object) -> Any:
    """A tensor like `value` and in its memory, whose writes are counted apart; no view."""
    return value.data if type(value) is torch.Tensor else value


def set_creation(value: object, creation: str) -> Any:
    """`value`, a view, as if it had been made in the way of `creation`; of several parts what is no view
    becomes one.
    """
    if type(value) is not torch.Tensor or value.is_inference():
        return value
    kind = creation_kind(creation)
    if not value._is_view():
        if not kind.is_of_parts:
            return value
        value = value.view_as(value)
    write_creation(value, kind.kind)
    return value


def make_view(value: object, base: object, creation: str) -> Any:
    """A view of `base` like `value`; `value` itself if they share no memory, or are no plain tensors."""
    if type(value) is not torch.Tensor or type(base) is not torch.Tensor or value.is_quantized:
        return value
    recorded = torch.is_grad_enabled()
    if value is base:
        made = value[...]  # the quickest of torch's ways
    elif not is_alias(value, base):
        return value
    elif recorded:
        made = _view_at(value, base)
    else:
        # views that were made without recording refuse to be written to once it is on, and so do views of
        # them
        record_gradients(True)
        try:
            made = _view_at(value, base)
        finally:
            record_gradients(False)
        recorded = True
    if not creation or creation_kind(creation).recorded is recorded:
        return made
    return set_creation(made, creation)


def _copy_of(value: torch.Tensor) -> torch.Tensor:
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _view_at(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A view of `base` with the place, type and bits of `value`."""
    made = base if base.dtype == value.dtype else _all_elements(base, value.dtype)
    made = made.as_strided(value.shape, value.stride(), value.storage_offset())
    made = made if made.is_conj() == value.is_conj() else made.conj()
    return made if made.is_neg() == value.is_neg() else negative_view(made)


def _all_elements(base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The storage of `base` as elements of another type."""
    size = base.element_size()
    unit = math.lcm(size, dtype.itemsize)
    count = base.untyped_storage().nbytes() // unit * unit // size
    flat = base.as_strided((count,), (1,), 0)
    # no other type is read through a bit of torch's
    flat = flat.conj() if flat.is_conj() else flat
    flat = negative_view(flat) if flat.is_neg() else flat
    # of complex numbers read as others autograd would know no base
    return (
        torch.view_as_real(flat) if base.is_complex() and dtype == base.dtype.to_real() else flat.view(dtype)
    )
