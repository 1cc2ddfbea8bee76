"""Elements of which a capture knows that all go to one place, and that all are alike: each of them counts.

Run as a process, which prints what is wrong with each case as a line of JSON, kernels are run by Triton's
interpreter.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend

ROWS: Final = 20


def _counted(x: Tensor) -> Tensor:
    return x.new_zeros(1).scatter_add_(0, _nowhere_else(x), x.new_ones(ROWS))


def _counted_in_integers(x: Tensor) -> Tensor:
    ones = torch.ones(ROWS, dtype=torch.int64, device=x.device)
    return ones.new_zeros(3).index_add(0, _nowhere_else(x) + 1, ones)


def _halved(x: Tensor) -> Tensor:
    start = x.new_full((2,), 64.0)
    return start.scatter_reduce(0, _nowhere_else(x), x.new_full((ROWS,), 0.5), "prod")


def _put(x: Tensor) -> Tensor:
    return x.new_zeros(4, 5).index_put((_nowhere_else(x) + 2,), x.new_full((), 0.25), accumulate=True)


def _mean(x: Tensor) -> Tensor:
    """As graph libraries take the mean of all nodes of a graph."""
    everything = _nowhere_else(x)[:, None].expand_as(x)
    added = x.new_zeros(1, x.shape[1]).scatter_add_(0, everything, x)
    return added / _counted(x).clamp(min=1)


def _nowhere_else(x: Tensor) -> Tensor:
    return torch.zeros(ROWS, dtype=torch.int64, device=x.device)


CASES: Final = MappingProxyType(
    {
        "counted": _counted,
        "counted in integers": _counted_in_integers,
        "put": _put,
        "mean": _mean,
        "halved": _halved,
    }
)


def compared(function: Callable[[Tensor], Tensor], *, dynamic: bool = False) -> None:
    """Fail unless Coilwork gives what eager gives."""
    torch._dynamo.reset()
    x = torch.randn(ROWS, 6)
    compiled = torch.compile(function, backend=resolve_backend("coilwork"), dynamic=dynamic)
    torch.testing.assert_close(compiled(x), function(x))


def _verdict(function: Callable[[Tensor], Tensor]) -> str:
    try:
        compared(function)
    except Exception:  # noqa: BLE001  the test shows it
        return traceback.format_exc(limit=-3)
    return ""


if __name__ == "__main__":
    print(json.dumps({name: _verdict(function) for name, function in CASES.items()}))
