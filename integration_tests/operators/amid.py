"""Calls amid others: operands that the graph computes, and results that it computes with.

A call whose operands are inputs and whose results are outputs is often a kernel of its own, or ATen's. Amid
others it is rewritten and fused with them, and its checks move into their kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from integration_tests.operators.database import Sample, tensors_of

# What adds nothing, and is no number that a compiler sees.
_ZERO: Final = torch.zeros(())
_NO_NUMBER: Final = torch.zeros((), dtype=torch.int64)
_FALSE: Final = torch.zeros((), dtype=torch.bool)
_COMPUTED: Final = frozenset(
    {
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool),
    }
)


def compute_around(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes the operands of `function`, but not what it writes to by name, and
    computes with its results.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        written = keywords.pop("out", None)
        arguments, keywords = pytree.tree_map(_computed, (arguments, keywords))
        if written is not None:
            keywords["out"] = written
        return pytree.tree_map(_computed, function(*arguments, **keywords))

    return call


def is_refused_by_tracing(function: Callable[..., Any], sample: Sample) -> bool:
    """Tell if a call with torch's fake tensors raises, as it does when Dynamo traces it."""
    arguments, keywords = sample.fresh()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = {id(one): mode.from_tensor(one) for one in tensors_of((arguments, keywords))}
            positional, named = pytree.tree_map(lambda leaf: fakes.get(id(leaf), leaf), (arguments, keywords))
            function(*positional, **named)
    except Exception:  # noqa: BLE001  any error is a refusal
        return True
    return False


def _computed(value: object) -> object:
    """Return what is computed to be like `value`, if that is a tensor of a type that every operator has."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
        return value
    if value.is_nested or value.dtype not in _COMPUTED:
        return value
    if value.dtype is torch.bool:
        return value | _FALSE
    return value + (_ZERO if value.is_floating_point() or value.is_complex() else _NO_NUMBER)
