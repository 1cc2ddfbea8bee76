"""Recognising inputs whose layouts were checked before, all of them in one cheap call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from coilwork_runtime.torch_compat import same_layouts

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
        self.match = _never
        self._lessons = 0

    def learn(self, *tensors: torch.Tensor) -> None:
        """Recognise these layouts from now on, instead of others."""
        if self._lessons < MOST_LESSONS:
            self._lessons += 1
            self.match = same_layouts(*tensors)


def _never(*_tensors: torch.Tensor) -> bool:
    return False
