"""The functions that emitted code calls, in plain torch: the default `Surface` of FX graphs.

The messages and codes are those of `coilwork_runtime.generated`, which does the same faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from coilwork_ir.streams import is_host
from coilwork_wrapper.runtime_interface import LayoutError
from coilwork_wrapper.torch_compat import has_address

Sizes = Sequence[int]

ALIGNMENT_BYTES: Final = 16
RESULT_REMEDY: Final = (
    "let the fake implementation of a custom operator (torch.library.register_fake) give what the "
    "operator returns; "
    "leave what combines sizes from data that differ to eager, with torch.compiler.disable"
)
INPUT_REMEDY: Final = (
    "call through torch.compile, which compiles again for new layouts, or pass the compiled layout"
)


def check_rank(value: torch.Tensor, name: str, rank: int) -> None:
    """Refuse an input with another number of dimensions than declared, before sizes are read off it.

    Raises:
        LayoutError: names the input.
    """
    if value.dim() != rank:
        raise LayoutError(
            "input-layout",
            f"input {name}: shape {tuple(value.shape)}, expected {rank} dimensions",
            remedy=INPUT_REMEDY,
        )


def check_layout(
    value: torch.Tensor, name: str, dtype: torch.dtype, device: str, size: Sizes, stride: Sizes
) -> None:
    """Refuse an input that differs from what the program was planned for.

    Strides of dimensions with one element, and of empty tensors, do not matter.

    Raises:
        LayoutError: names the input and every difference.
    """
    differences: list[str] = []
    if not _is_on(value.device, torch.device(device)):
        differences.append(f"device {value.device}, expected {device}")
    if value.dtype != dtype:
        differences.append(f"element type {value.dtype}, expected {dtype}")
    if tuple(value.shape) != tuple(size):
        differences.append(f"shape {tuple(value.shape)}, expected {tuple(size)}")
    elif not _has_strides(value, stride):
        differences.append(f"strides {value.stride()}, expected {tuple(stride)}")
    if differences:
        raise LayoutError("input-layout", f"input {name}: {'; '.join(differences)}", remedy=INPUT_REMEDY)


def check_aligned_layout(
    value: torch.Tensor, name: str, dtype: torch.dtype, device: str, size: Sizes, stride: Sizes
) -> torch.Tensor:
    """Do as `check_layout`; an aligned copy replaces an input whose address is no multiple of 16 bytes."""
    check_layout(value, name, dtype, device, size, stride)
    (value,) = ensure_aligned(value)
    return value


def ensure_aligned(*values: torch.Tensor) -> Sequence[torch.Tensor]:
    """`values`; any whose address is no multiple of 16 bytes is replaced by an aligned copy."""
    return [
        value
        if not has_address(value) or value.data_ptr() % ALIGNMENT_BYTES == 0
        else torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(
            value
        )
        for value in values
    ]


def empty_strided(size: Sizes, stride: Sizes, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Uninitialised memory for a tensor of this layout."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def empty_strided_cpu(size: Sizes, stride: Sizes, dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory on the CPU."""
    return torch.empty_strided(size, stride, dtype=dtype)


def empty_strided_cuda(size: Sizes, stride: Sizes, dtype: torch.dtype, index: int) -> torch.Tensor:
    """Uninitialised memory on CUDA device `index`."""
    return torch.empty_strided(size, stride, dtype=dtype, device=f"cuda:{index}")


def empty_pool(size_bytes: int, device: str) -> torch.Tensor:
    """One block of memory to be carved up by `pool_view`."""
    return torch.empty((size_bytes,), dtype=torch.uint8, device=device)


def pool_view(
    pool: torch.Tensor, offset_bytes: int, size: Sizes, stride: Sizes, dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor that lives in `pool`, `offset_bytes` after its start."""
    return reinterpret_dtype(pool, size, stride, dtype, offset_bytes // dtype.itemsize)


def reinterpret(source: torch.Tensor, size: Sizes, stride: Sizes, offset: int) -> torch.Tensor:
    """Return the memory of `source` under another layout, `offset` elements after its first."""
    return torch.as_strided(source, size, stride, source.storage_offset() + offset)


def reinterpret_dtype(
    source: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype, offset: int
) -> torch.Tensor:
    """Do as `reinterpret`, with the bits read as `dtype`; `offset` counts elements of `dtype`.

    Raises:
        LayoutError: the memory starts between two elements of `dtype`.
    """
    start = int(source.storage_offset()) * source.element_size()
    first, rest = divmod(start, dtype.itemsize)
    if rest:
        raise LayoutError("misaligned", f"memory at byte {start} of its storage cannot be read as {dtype}")
    empty = torch.empty(0, dtype=dtype, device=source.device)
    return empty.set_(source.untyped_storage(), first + offset, tuple(size), tuple(stride))


def ensure_layout(value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype) -> torch.Tensor:
    """The result of an operator in the layout the program was planned with; copied if the operator chose
    another one.

    A quantised one stays as it is.

    Raises:
        LayoutError: it has another shape or element type, which no copy mends.
    """
    if tuple(value.shape) != tuple(size):
        raise LayoutError(
            "operator-shape",
            f"an operator returned shape {tuple(value.shape)} where {tuple(size)} was expected",
            remedy=RESULT_REMEDY,
        )
    if value.dtype != dtype:
        raise LayoutError(
            "operator-dtype",
            f"an operator returned element type {value.dtype} where {dtype} was expected",
            remedy=RESULT_REMEDY,
        )
    if tuple(value.stride()) == tuple(stride) or value.is_quantized:
        # scales and zero points belong to the tensor that the operator made: only operators read it, as it is
        return value
    if _has_strides(value, stride):
        return torch.as_strided(value, size, stride)
    return torch.empty_strided(size, stride, dtype=dtype, device=value.device).copy_(value)


def ensure_aligned_layout(
    value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype
) -> torch.Tensor:
    """Do as `ensure_layout`; a result whose address is no multiple of 16 bytes is replaced by an
    aligned copy.
    """
    (value,) = ensure_aligned(ensure_layout(value, size, stride, dtype))
    return value


def _is_on(device: torch.device, wanted: torch.device) -> bool:
    """Tell if they are one device: that without a number is the first one."""
    return device.type == wanted.type and (device.index or 0) == (wanted.index or 0)


def _has_strides(value: torch.Tensor, stride: Sizes) -> bool:
    pairs = zip(value.shape, value.stride(), stride, strict=True)
    return value.numel() == 0 or all(extent == 1 or a == b for extent, a, b in pairs)


# Streams: devices are a runtime's, so there are only those of the host, which does at once what it is given.


def fork_stream(device: str, after: torch.Stream | None = None) -> None:
    """A stream of the host, which is none.

    Raises:
        RuntimeError: `device` is not the host.
    """
    _refuse_device(device)


def record_event(device: str, stream: torch.Stream | None = None) -> None:
    """An event of the host, which is none.

    Raises:
        RuntimeError: `device` is not the host.
    """
    _refuse_device(device)


def _refuse_device(device: str) -> None:
    if not is_host(device):
        raise RuntimeError(
            f"a stream or event of {device} takes a runtime: emit with runtime=coilwork_runtime.generated"
        )


def join_stream(stream: torch.Stream | None, into: torch.Stream | None = None) -> None:
    """Nothing: what the host was given is done."""


def wait_event(event: torch.Event | None, stream: torch.Stream | None = None) -> None:
    """Nothing: what the host was given is done."""


def synchronize_event(event: torch.Event | None) -> None:
    """Nothing: what the host was given is done."""


def on_stream(stream: torch.Stream | None, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of `function`, called at once."""
    return function(*args, **kwargs)
