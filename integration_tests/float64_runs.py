"""Runs of eager in float64, of programs that name narrower types themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

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
