"""What a program is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`function` of the tensors that `inputs` makes anew; with `backward`, its gradients, too."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    backward: bool = False
