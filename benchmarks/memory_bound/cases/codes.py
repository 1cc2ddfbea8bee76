"""How integers are judged that follow from rounded numbers: those of eager, but for a few that are its
neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.memory_bound.case import Arguments, tensors

EIGHT_BITS = (torch.float8_e4m3fn,)
# One code in a thousand may be rounded to its neighbour, as division and logarithms differ in their last bit.
APART = 1e-3


def near_eager(
    function: Callable[..., Any], mutates: tuple[int, ...] = ()
) -> Callable[[Arguments, Sequence[Tensor]], str]:
    """A check of the results of `function`, or of its arguments `mutates`, some of which are codes."""

    def check(inputs: Arguments, results: Sequence[Tensor]) -> str:
        copied: Arguments = pytree.tree_map_only(Tensor, torch.clone, inputs)
        found = function(*copied)
        expected = tensors([copied[k] for k in mutates] if mutates else found)
        for number, (one, other) in enumerate(zip(results, expected, strict=True)):
            wrong = _wrong(one, other)
            if wrong:
                return f"result {number}: {wrong}"
        return ""

    return check


def _wrong(one: Tensor, other: Tensor) -> str:
    if one.dtype in EIGHT_BITS:
        one, other = one.view(torch.uint8), other.view(torch.uint8)
    elif one.is_floating_point():
        ulp = torch.finfo(one.dtype).eps
        near = torch.allclose(one.float(), other.float(), rtol=16 * ulp, atol=ulp)
        return "" if near else "other numbers than eager's"
    apart = (one.int() - other.int()).abs()
    differing = (apart > 0).double().mean().item()
    return f"{differing:.2%} of the codes differ" if differing > APART or apart.max() > 1 else ""
