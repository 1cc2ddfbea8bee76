"""Fake tensors: their modes, and how to get out of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


def fake_mode_of(gm: torch.fx.GraphModule) -> AbstractContextManager[object] | None:
    """The fake tensor mode, to be entered, that the tensors in the graph's metadata belong to."""
    from torch._guards import detect_fake_mode

    values = [node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder"]
    found: AbstractContextManager[object] | None = detect_fake_mode(
        [v for v in values if isinstance(v, torch.Tensor)]
    )
    return found


def mode_among(values: Iterable[object]) -> AbstractContextManager[object] | None:
    """The fake tensor mode, to be entered, that the first fake tensor of `values` was made in.

    A captured graph's tensors are of Dynamo's mode, while `fake_mode_of` finds the one that AOTAutograd will
    trace with.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    found = (value.fake_mode for value in values if isinstance(value, FakeTensor))
    mode: AbstractContextManager[object] | None = next(found, None)
    return mode


def guards_suppressed(fake_mode: object) -> AbstractContextManager[object]:
    """While it is entered, questions about the open sizes of `fake_mode` are answered for those at hand,
    without a guard.
    """
    env: ShapeEnv | None = getattr(fake_mode, "shape_env", None)
    return nullcontext() if env is None else env.suppress_guards()


def nothing_remembered(fake_mode: object) -> AbstractContextManager[object]:
    """While it is entered, operators on fake tensors of `fake_mode` are not looked up among earlier calls,
    nor kept.

    Torch describes both by memory formats, and what it asks of open sizes for that becomes guards.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode, disable_fake_tensor_cache

    if not isinstance(fake_mode, FakeTensorMode):
        return nullcontext()
    made: AbstractContextManager[object] = disable_fake_tensor_cache(fake_mode)
    return made


def is_fake(tensor: torch.Tensor) -> bool:
    """Tell if `tensor` has no contents."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def number_in(tensor: torch.Tensor) -> int | float | bool:
    """The value of a real tensor of one element, also where operators are being traced on fake ones."""
    with use_real_tensors():
        found: int | float | bool = tensor.item()
    return found


def use_real_tensors() -> AbstractContextManager[object]:
    """Within it operators compute, also where they are being traced on fake tensors."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    found: AbstractContextManager[object] = unset_fake_temporarily()
    return found
