"""What a compiled function does beside eager: results, the memory of inputs afterwards, and who shares memory
with whom.

Results are compared; the whole storage of every input afterwards, so that a write beside a view is seen; and
which results and inputs share memory, at which distance. What eager refuses, compiled code refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from coilwork.backend import backend

Function = Callable[..., Any]
Make = Callable[[], Tensor]


def compiled(function: Function, *, settings: dict[str, Any] | None = None, **keywords: Any) -> Function:
    """`function` through Coilwork, which may not fall back to eager; `settings` are options of its."""
    options = {"strict": True, "verify": True, **(settings or {})}
    return torch.compile(function, backend=backend, options=options, **keywords)


def numbers(count: int) -> Tensor:
    return (torch.arange(count) % 13 - 6) / 4.0


def whole(value: Tensor) -> Tensor:
    """All of the value's storage, as a line."""
    count = value.untyped_storage().nbytes() // value.element_size()
    return torch.empty(0, dtype=value.dtype).set_(value.untyped_storage(), 0, (count,), (1,))


def tensors(results: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, Tensor)]


def strides(value: Tensor) -> list[int]:
    """Those that matter: of dimensions of several elements, in tensors that have any."""
    return [step for step, size in zip(value.stride(), value.shape) if size > 1 and value.numel()]


def sharing(values: Sequence[Tensor]) -> set[tuple[int, int, int]]:
    """Pairs of values with common storage, and the distance of their starts in bytes."""
    return {
        (i, j, values[j].data_ptr() - values[i].data_ptr())
        for j in range(len(values))
        for i in range(j)
        if values[i].numel()
        and values[j].numel()
        and values[i].untyped_storage().data_ptr() == values[j].untyped_storage().data_ptr()
    }


def torch_refuses(function: Function, make: Callable[[], Sequence[Tensor]]) -> bool:
    """Whether AOTAutograd cannot run what eager can: a write to one row of an expanded tensor."""
    torch._dynamo.reset()
    try:
        torch.compile(function, backend="aot_eager")(*make())
    except RuntimeError as error:
        return "more than one element of the written-to tensor" in str(error)
    return False


def agrees(function: Function, ours: Function, make: Callable[[], Sequence[Tensor]]) -> None:
    """Both functions do the same to equal inputs, or both refuse."""
    given, theirs = make(), make()
    try:
        expected = function(*theirs)
    except (RuntimeError, IndexError):
        with pytest.raises((RuntimeError, IndexError)):
            ours(*given)
        return
    try:
        results = ours(*given)
    except RuntimeError:
        assert torch_refuses(function, make)
        return
    torch.testing.assert_close(results, expected, equal_nan=True)
    assert [strides(value) for value in tensors(results)] == [strides(value) for value in tensors(expected)]
    for mine, eagers in zip(given, theirs, strict=True):
        torch.testing.assert_close(whole(mine), whole(eagers), equal_nan=True)
    assert sharing([*tensors(results), *given]) == sharing([*tensors(expected), *theirs])
