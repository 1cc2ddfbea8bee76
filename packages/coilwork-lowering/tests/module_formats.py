"""Memory formats of modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def in_format(module: Module, layout: torch.memory_format) -> Module:
    """Lay out the parameters and buffers of `module`, which is returned. torch's stubs lack this overload."""
    convert: Callable[..., Module] = module.to
    return convert(memory_format=layout)
