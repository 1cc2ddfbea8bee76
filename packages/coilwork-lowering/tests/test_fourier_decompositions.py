"""Fourier transforms have eager's strides within a graph."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions

ORDERS = list(itertools.permutations(range(3)))
TRANSFORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the last": torch.fft.rfft,
    "the first": lambda x: torch.fft.rfft(x, dim=0),
    "both halves": lambda x: torch.fft.fft(x, dim=1),
    "the first two": lambda x: torch.fft.rfft2(x, dim=(0, 1)),
    "two, the other way": lambda x: torch.fft.rfft2(x, dim=(2, 0)),
    "all": torch.fft.rfftn,
    "inverse": lambda x: torch.fft.ihfft(x, dim=1),
    "of integers": lambda x: torch.fft.rfft(x.long(), dim=1),
}


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_strides(name: str, mode: Any) -> None:
    function = TRANSFORMS[name]
    for order in ORDERS:
        dense = torch.arange(60.0).sin().view([(3, 4, 5)[k] for k in order])
        value = dense.permute([order.index(k) for k in range(3)])
        wanted = function(value)
        gm = make_fx(function, tracing_mode=mode, decomposition_table=decompositions())(value)
        (output,) = gm.graph.find_nodes(op="output")
        assert tuple(map(int, output.args[0].meta["val"].stride())) == wanted.stride(), order
        torch.testing.assert_close(gm(value), wanted, check_stride=True)
