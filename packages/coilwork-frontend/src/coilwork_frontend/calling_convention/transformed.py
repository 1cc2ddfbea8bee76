"""Gradients for several directions at once: `torch.autograd.grad(..., is_grads_batched=True)`, `jacobian(..., vectorize=True)`.

Torch calls the backward graph under `vmap` then, with tensors that stand for batches of others and have no memory of their own;
or with tangents that carry tangents. Such a call runs the graph's operators one by one, which torch batches and differentiates.

Forward and inference graphs need none of this: Dynamo compiles them within the transforms, or leaves them to eager mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coilwork_frontend.torch_compat.differentiation import is_transformed

Call = Callable[[list[Any]], Sequence[Any]]


def with_transforms(call: Call, as_operators: Call) -> Call:
    """`call`, which reads memory, and `as_operators`, the same graph in eager mode, for tensors that are transformed."""

    def called(args: list[Any]) -> Sequence[Any]:
        return as_operators(args) if is_transformed() else call(args)

    return called
