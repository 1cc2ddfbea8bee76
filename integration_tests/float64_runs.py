"""Runs of eager in float64, also of programs that name narrower types themselves, and what is judged by them.

A sum of many terms differs between two processors, since a library adds them in another order on each. So a
tolerance between compiled code and eager that holds on one machine may fail on the next. `check_by_float64`
has none: eager's own distance from float64 is the yardstick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from benchmarks.accuracy import check_all, compare_group, float64_copy, tensors_of

_NARROWER: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_CASTS: Final = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class _WideTypes(TorchFunctionMode):
    """Every call that names a narrower type of floats, or casts to one, is given float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given, named = pytree.tree_map(_widen, (args, dict(kwargs or {})))
        return (Tensor.double if func in _CASTS else func)(*given, **named)


def _widen(leaf: Any) -> Any:
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in _NARROWER else leaf


@contextmanager
def in_float64() -> Iterator[None]:
    """What runs inside computes in float64 where its operands are, whatever types of floats it names."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _WideTypes():
            yield
    finally:
        torch.set_default_dtype(default)


def check_by_float64(name: str, *, compiled: Any, eager: Any, reference: Any) -> None:
    """Raise AccuracyError unless `compiled` is about as near to `reference`, of float64, as `eager` is.

    Each is a tensor, or tensors nested alike; those that are no floats are eager's to the bit.
    """
    found, expected, exact = (tensors_of(values) for values in (compiled, eager, reference))
    names = [f"{name} {number}" for number in range(len(expected))]
    check_all(compare_group(names, compiled=found, eager=expected, reference=exact))


def widen(values: Any) -> Any:
    """Copies of tensors of floats and of modules in float64, nested as they are; other leaves as they are.

    A tensor or parameter that requires a gradient has a copy that does.
    """
    return pytree.tree_map(_widen_leaf, values)


def _widen_leaf(leaf: Any) -> Any:
    if isinstance(leaf, nn.Module):
        return float64_copy(leaf)
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.detach().double().requires_grad_(leaf.requires_grad)
    return leaf
