"""Tensors as generated modules handle them: allocated, checked, and seen under other layouts.

Checks refuse inputs that differ from what a graph was compiled for. `LayoutMemory` recognises the layouts of
inputs that passed their checks before, all in one cheap call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from coilwork_runtime.devices import parse_device
from coilwork_runtime.errors import LayoutError
from coilwork_runtime.torch_compat import (
    empty_strided_cpu,
    empty_strided_cuda_current,
    has_address,
    make_layout_predicate,
)
from coilwork_runtime.torch_compat import reinterpret as reinterpret_tensor

__all__ = [
    "check_aligned_layout",
    "check_layout",
    "check_memory",
    "check_rank",
    "empty_pool",
    "empty_strided",
    "empty_strided_cpu",
    "empty_strided_cuda",
    "ensure_aligned",
    "ensure_aligned_layout",
    "ensure_layout",
    "find_pool_part",
    "pool_view",
    "reinterpret",
    "reinterpret_dtype",
]


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


def empty_strided(size: Sizes, stride: Sizes, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Uninitialised memory for a tensor of this layout, on any device."""
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def empty_strided_cuda(size: Sizes, stride: Sizes, dtype: torch.dtype, index: int) -> torch.Tensor:
    """Uninitialised memory on CUDA device `index`."""
    if torch.cuda.current_device() == index:
        return empty_strided_cuda_current(size, stride, dtype)
    return torch.empty_strided(size, stride, dtype=dtype, device=f"cuda:{index}")


def empty_pool(size_bytes: int, device: str) -> torch.Tensor:
    """One block of memory to be carved up by `pool_view`."""
    return torch.empty((size_bytes,), dtype=torch.uint8, device=device)


def pool_view(
    pool: torch.Tensor, offset_bytes: int, size: Sizes, stride: Sizes, dtype: torch.dtype
) -> torch.Tensor:
    """Return a tensor that lives in `pool`, `offset_bytes` after its start."""
    return find_pool_part(offset_bytes, size, stride, dtype)(pool)


def find_pool_part(
    offset_bytes: int, size: Sizes, stride: Sizes, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from a pool, a line of bytes, to the tensor in it `offset_bytes` after its start.

    `size` is in elements of `dtype`, and so is `stride`.
    """
    part = slice(offset_bytes, offset_bytes + _span(size, stride) * dtype.itemsize)
    return lambda pool: torch.as_strided(pool[part].view(dtype), size, stride)


def reinterpret(source: torch.Tensor, size: Sizes, stride: Sizes, offset: int) -> torch.Tensor:
    """Return the memory of `source` under another layout, `offset` elements after its first."""
    return reinterpret_tensor(source, size, stride, offset)


def reinterpret_dtype(
    source: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype, offset: int
) -> torch.Tensor:
    """Do as `reinterpret`, with the bits read as `dtype`; `offset` counts elements of `dtype`."""
    start = int(source.storage_offset()) * source.element_size()
    flat = torch.empty(0, dtype=dtype, device=source.device)
    first, rest = divmod(start, dtype.itemsize)
    if rest:
        raise LayoutError("misaligned", f"memory at byte {start} of its storage cannot be read as {dtype}")
    return flat.set_(source.untyped_storage(), first + offset, tuple(size), tuple(stride))


def ensure_layout(
    value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`value` in the layout that the program was planned with; copied if an operator chose another one,
    unless it is quantised.

    Raises:
        LayoutError: it has another shape or element type (where `dtype` is given), which no copy mends; or
            different elements where the program has one. Without elements, another type does not matter:
            dropout of nothing has a mask of floats.
    """
    if value.shape != size:
        raise LayoutError(
            "operator-shape",
            f"an operator returned shape {tuple(value.shape)} where {tuple(size)} was expected",
            remedy=RESULT_REMEDY,
        )
    if dtype is not None and 0 in size:
        value = value.to(dtype)
    if dtype is not None and value.dtype is not dtype:
        raise LayoutError(
            "operator-dtype",
            f"an operator returned element type {value.dtype} where {dtype} was expected",
            remedy=RESULT_REMEDY,
        )
    if value.stride() == stride or value.is_quantized:
        # scales and zero points belong to the tensor that the operator made: only operators read it, as it is
        return value
    if all(e == 1 or a == b for e, a, b in zip(size, value.stride(), stride, strict=True)) or 0 in size:
        return torch.as_strided(value, size, stride)
    if any(extent > 1 and step == 0 for extent, step in zip(size, stride, strict=True)):
        return _expand_copy(value, size, stride)
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device).copy_(value)


def _expand_copy(value: torch.Tensor, size: Sizes, stride: Sizes) -> torch.Tensor:
    """`value` in memory where several of its elements are one.

    A meta function may say so of the copy of an expanded tensor, whose elements are alike.

    Raises:
        LayoutError: they are not.
    """
    first = value[tuple(slice(0, 1 if step == 0 else None) for step in stride)]
    alike = (value == first) | ((value != value) & (first != first))
    if not bool(alike.all()):
        raise LayoutError(
            "operator-layout",
            (
                f"an operator returned different elements where strides {tuple(stride)} of {tuple(size)} "
                "make them one"
            ),
            remedy=RESULT_REMEDY,
        )
    copy = torch.empty_strided(first.shape, stride, dtype=value.dtype, device=value.device).copy_(first)
    return torch.as_strided(copy, size, stride)


def ensure_aligned_layout(
    value: torch.Tensor, size: Sizes, stride: Sizes, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Do as `ensure_layout`; a result whose address is no multiple of 16 bytes is replaced by an
    aligned copy.
    """
    value = ensure_layout(value, size, stride, dtype)
    return _copy_aligned(value) if _is_misaligned(value) else value


def check_rank(value: torch.Tensor, name: str, rank: int) -> None:
    """Refuse an input with another number of dimensions, before sizes are read off it.

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
    """Refuse an input that differs from what the graph was compiled for.

    Strides of dimensions with one element, and of empty tensors, do not matter.

    Raises:
        LayoutError: names the input and every difference.
    """
    if (
        value.shape == size
        and value.stride() == stride
        and value.dtype is dtype
        and value.device == parse_device(device)
    ):
        return
    differences: list[str] = []
    if value.device != parse_device(device):
        differences.append(f"device {value.device}, expected {device}")
    if value.dtype != dtype:
        differences.append(f"element type {value.dtype}, expected {dtype}")
    if tuple(value.shape) != tuple(size):
        differences.append(f"shape {tuple(value.shape)}, expected {tuple(size)}")
    elif 0 not in value.shape:
        pairs = zip(value.shape, value.stride(), stride, strict=True)
        if any(extent != 1 and actual != expected for extent, actual, expected in pairs):
            differences.append(f"strides {value.stride()}, expected {tuple(stride)}")
    if differences:
        raise LayoutError(
            "input-layout",
            f"input {name}: {'; '.join(differences)}",
            remedy=INPUT_REMEDY,
        )


def check_aligned_layout(
    value: torch.Tensor, name: str, dtype: torch.dtype, device: str, size: Sizes, stride: Sizes
) -> torch.Tensor:
    """Do as `check_layout`; an aligned copy replaces an input whose address is no multiple of 16 bytes."""
    check_layout(value, name, dtype, device, size, stride)
    return _copy_aligned(value.as_strided(size, stride)) if _is_misaligned(value) else value


def _is_misaligned(value: torch.Tensor) -> bool:
    """Tell if its address is no multiple of 16 bytes. A tensor that stands for another one while a graph is
    traced has none."""
    return has_address(value) and value.data_ptr() % ALIGNMENT_BYTES != 0


def check_memory(value: torch.Tensor, name: str) -> None:
    """Refuse a tensor whose memory is smaller than its shape says: `untyped_storage().resize_` gave it back.

    Raises:
        LayoutError: names the input.
    """
    if 0 in value.shape:
        return
    last = sum((extent - 1) * step for extent, step in zip(value.shape, value.stride(), strict=True))
    needed = (value.storage_offset() + last + 1) * value.element_size()
    held = value.untyped_storage().nbytes()
    if held < needed:
        raise LayoutError(
            "input-memory",
            f"input {name}: its memory holds {held} bytes, and shape {tuple(value.shape)} takes {needed}",
            remedy=INPUT_REMEDY,
        )


def ensure_aligned(*values: torch.Tensor) -> Sequence[torch.Tensor]:
    """`values`; any whose address is no multiple of 16 bytes is replaced by an aligned copy."""
    for value in values:
        if value.data_ptr() % ALIGNMENT_BYTES:
            return [_copy_aligned(one) if one.data_ptr() % ALIGNMENT_BYTES else one for one in values]
    return values


def _copy_aligned(value: torch.Tensor) -> torch.Tensor:
    """Return a copy in the same layout. Elements that are one in memory are so in the copy."""
    if 0 in value.stride() and value.numel():
        # Torch refuses to write to such elements, but each has its place in the line of memory that they
        # span.
        line = value.as_strided((_span(value.shape, value.stride()),), (1,))
        return line.clone().as_strided(value.shape, value.stride())
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def _span(size: Sizes, stride: Sizes) -> int:
    if 0 in size:
        return 0
    return sum((extent - 1) * step for extent, step in zip(size, stride, strict=True)) + 1


# ---- layouts that were checked before ----


MOST_LESSONS: Final = 8


class LayoutMemory:
    """Remembers the layouts of tensors that passed their checks, so that a call with equal ones need not
    check again.

    `match(*tensors)` is true only if every tensor has the type, device, shape and strides of the one in its
    place when `learn` was called last; it may be false for equal layouts, e.g. in another grad mode or for
    one tensor given twice. A check of one input costs about 600 ns, recognising it 80 ns. No tensor is kept
    alive.

    Threads may share it: `match` is replaced as a whole. Learning stops after `MOST_LESSONS` times, so that
    calls which alternate between layouts pay for the checks alone.
    """

    __slots__ = ("_lessons", "match")

    match: Callable[..., bool]

    def __init__(self) -> None:
        self.match = _match_nothing
        self._lessons = 0

    def learn(self, *tensors: torch.Tensor) -> None:
        """Recognise these layouts from now on, instead of others."""
        if self._lessons < MOST_LESSONS:
            self._lessons += 1
            self.match = make_layout_predicate(*tensors)


def _match_nothing(*_tensors: torch.Tensor) -> bool:
    return False
