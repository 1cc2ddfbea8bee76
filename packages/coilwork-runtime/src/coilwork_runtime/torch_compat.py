"""The private torch API that the runtime touches; the same in 2.11 to 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch._C._dynamo import guards

Sizes = Sequence[int]

# Allocation and views without the dispatcher's argument parsing: half the price of torch.empty_strided / as_strided.
empty_strided_cpu: Final[Callable[[Sizes, Sizes, torch.dtype], torch.Tensor]] = guards._empty_strided_cpu
empty_strided_cuda_current: Final[Callable[[Sizes, Sizes, torch.dtype], torch.Tensor]] = (
    guards._empty_strided_cuda
)
reinterpret: Final[Callable[[torch.Tensor, Sizes, Sizes, int], torch.Tensor]] = guards._reinterpret_tensor
