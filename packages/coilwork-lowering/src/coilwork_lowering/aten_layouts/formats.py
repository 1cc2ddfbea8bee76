"""Questions about strides of fake tensors, answered without adding guards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat.sizes import get_sympy, hint_of

Size = int | torch.SymInt

_CHANNELS_LAST: Final[Mapping[int, torch.memory_format]] = {4: torch.channels_last, 5: torch.channels_last_3d}


def get_channels_last_format(tensor: torch.Tensor) -> torch.memory_format | None:
    """Return the memory format of the rank of `tensor` that keeps a pixel's channels together, if torch has
    one.
    """
    return _CHANNELS_LAST.get(tensor.dim())


def get_channels_last_order(rank: int) -> tuple[int, ...]:
    """Dimensions from the widest stride to the narrowest: `(0, 2, 3, 1)` of four."""
    return (0, *range(2, rank), 1)


def is_dense_in_order(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Tell if `tensor` fills its memory with its dimensions nested in `order`, the outermost first.

    Dimensions of one element do not matter. False where symbolic strides are not known to be equal.
    """
    below: Size = 1
    for position in reversed(order):
        size = tensor.shape[position]
        if type(size) is int and size == 1:
            continue
        if not is_same_size(tensor.stride()[position], below):
            return False
        below = size * below
    return True


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Tell if a convolution that wants channels-last takes `tensor` without a copy."""
    return is_dense_in_order(tensor, get_channels_last_order(tensor.dim()))


def is_same_size(a: Size, b: Size) -> bool:
    """Tell whether two sizes are the same number or the same expression."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        left = get_sympy(a) if isinstance(a, torch.SymInt) else a
        right = get_sympy(b) if isinstance(b, torch.SymInt) else b
        return bool(left == right)
    return a == b


def are_same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """`is_same_size` of every pair."""
    return len(a) == len(b) and all(is_same_size(x, y) for x, y in zip(a, b, strict=True))


def iterate_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the strided tensors in a node's value, in order."""
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iterate_tensors(item)


def is_same_layout(a: Any, b: Any) -> bool:
    """Tell if two values hold tensors of equal strides, to the last dimension."""
    return all(
        are_same_sizes(x.stride(), y.stride())
        for x, y in zip(iterate_tensors(a), iterate_tensors(b), strict=True)
    )


def get_size_hints(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape, symbols replaced by the sizes they were traced with; None if one has no such size."""
    hints = [hint_of(size) for size in tensor.shape]
    return None if any(size is None for size in hints) else tuple(size for size in hints if size is not None)


def estimate_bytes(tensor: torch.Tensor) -> int:
    """Size of the elements in bytes, by hints; dimensions without one count as one element."""
    count = tensor.element_size()
    for size in tensor.shape:
        hint = hint_of(size)
        count *= 1 if hint is None else hint
    return count


def find_stride_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """Dimensions from the widest stride to the narrowest, by hints."""
    hints = [hint_of(stride) or 0 for stride in tensor.stride()]
    return tuple(sorted(range(tensor.dim()), key=lambda position: -hints[position]))
