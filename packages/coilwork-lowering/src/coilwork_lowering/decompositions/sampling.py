"""Categories drawn by their probabilities, as a race: each waits for an exponentially distributed time, the
first one wins.

Dividing a probability by such a number and taking the largest quotient is how ATen draws, too, so that
numbers of eager's generator give eager's categories. Written out, the division and the search fuse with the
softmax in front of them, and no value is read on the host: what eager raises there, assertions on the device
do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from coilwork_lowering.torch_compat.sizes import surely

_INVALID: Final = "probability tensor contains either `inf`, `nan` or element < 0"
_NOTHING: Final = "invalid multinomial distribution (sum of probabilities <= 0)"


def sampling_decompositions() -> dict[Any, Callable[..., Any]]:
    """By overload."""
    return {torch.ops.aten.multinomial.default: _multinomial}


def _multinomial(
    probabilities: torch.Tensor, count: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """The `count` first of each row. With replacement, several need as many races: that is left to eager's
    search in sums.

    Shape: `(..., categories)` to `(..., count)`, of `int64`.
    """
    aten = torch.ops.aten
    if generator is not None or count < 1 or not surely(probabilities.numel() > 0):
        return NotImplemented
    if count != 1 and (replacement or not surely(probabilities.shape[-1] >= count)):
        return NotImplemented
    valid = (probabilities >= 0) & (probabilities < math.inf)
    aten._assert_async.msg(valid.all(), _INVALID)
    aten._assert_async.msg((probabilities.sum(-1) != 0).all(), _NOTHING)
    times = aten.exponential.default(torch.empty_like(probabilities))
    speed = probabilities / times
    return speed.argmax(-1, keepdim=True) if count == 1 else speed.topk(count, -1).indices
