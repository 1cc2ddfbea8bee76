"""Sums of single elements in fixed point, of numbers that share units and of others.

Run as a process, which prints what is wrong with each case as a line of JSON, kernels are run by Triton's
interpreter.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from types import MappingProxyType
from typing import Final
from unittest import mock

import torch
from torch import Tensor

from benchmarks.backends import resolve_backend
from coilwork import stage_settings
from coilwork_ir.machine import change_figures
from coilwork_ir.target import TARGETS

INF, NAN = float("inf"), float("nan")
ROWS, COUNT, WIDTH = 30, 250, 8
EPS: Final = torch.finfo(torch.float32).eps


def _normal() -> Tensor:
    return torch.randn(COUNT, WIDTH)


def _one_word() -> Tensor:
    return torch.randint(-9, 10, (COUNT, WIDTH)).float()


def _wide() -> Tensor:
    return _normal() * 10.0 ** torch.randint(-30, 31, (COUNT, WIDTH))


def _lowest() -> Tensor:
    source = _normal()
    source[::9, 1::2] = torch.finfo(torch.float32).min / COUNT
    return source


def _smallest() -> Tensor:
    return _normal() * 1e-39


def _special() -> Tensor:
    source = _normal()
    source[3, 1], source[5, 2], source[8, 5], source[9, 7] = INF, -INF, NAN, -0.0
    return source


CASES: Final = MappingProxyType(
    {
        "normal": _normal,
        "one word": _one_word,
        "wide": _wide,
        "lowest": _lowest,
        "smallest": _smallest,
        "zeros": lambda: torch.zeros(COUNT, WIDTH),
        "special": _special,
    }
)


def _added(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_add(0, index, source)


def _mean(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    return x.scatter_reduce(0, index, source, "mean", include_self=False)


def _gathered(x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x.gather(0, index) * source).sum(), x)
    return gradient


def compared(make: Callable[[], Tensor]) -> None:
    """Fail unless sums are within a rounding of what comes of `f64`, and the same in another order."""
    source, index = make(), torch.randint(0, ROWS, (COUNT, WIDTH))
    order = torch.randperm(COUNT)
    largest = torch.zeros(ROWS, WIDTH).scatter_reduce(0, index, source.nan_to_num(0, 0, 0).abs(), "amax")
    x = torch.zeros(ROWS, WIDTH)
    for function in (_added, _gathered, _mean):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=resolve_backend("coilwork"), dynamic=False)
        found = compiled(x, index, source)
        exact = function(x.double(), index, source.double()).float()
        finite = exact.isfinite()
        torch.testing.assert_close(
            found.where(~finite, 0), exact.where(~finite, 0), rtol=0, atol=0, equal_nan=True
        )
        # what `f64` loses may be left where large elements cancel
        error = (found.double() - exact.double()).where(finite, 0).abs()
        allowed = exact.double().abs() * EPS + largest.double() * 2.0**-40
        assert (error <= allowed.where(finite, INF)).all(), (function.__name__, error.max())
        again = compiled(x, index[order], source[order])
        torch.testing.assert_close(again, found, rtol=0, atol=0, equal_nan=True)


def _verdict(make: Callable[[], Tensor]) -> str:
    torch.manual_seed(1)
    try:
        compared(make)
    except Exception:  # noqa: BLE001  the test shows it
        return traceback.format_exc(limit=-3)
    return ""


if __name__ == "__main__":
    # few elements, which are soon interpreted, as if they were many
    many = change_figures(TARGETS["sm_90"].machine, {"scatters.many_elements": 1})
    with mock.patch.object(stage_settings, "find_machine_model", return_value=many):
        print(json.dumps({name: _verdict(make) for name, make in CASES.items()}))
