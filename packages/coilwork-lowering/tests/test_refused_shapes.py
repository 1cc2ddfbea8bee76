"""Shapes and numbers of elements that eager refuses: the call stays ATen's, or tracing refuses it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lowering_against_eager import externs, trace_and_lower
from lowering_backend import Recorder
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions, lower

aten = torch.ops.aten
FAR = 2**31 + 5

REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool2d, far apart": lambda x: F.avg_pool2d(x, 2, stride=FAR),
    "avg_pool1d, far apart": lambda x: F.avg_pool1d(x[0], 2, stride=FAR),
    "avg_pool3d, far apart": lambda x: F.avg_pool3d(x[None], 2, stride=FAR),
    "max_pool2d, far apart": lambda x: F.max_pool2d(x, 2, stride=FAR),
    "max_pool2d, spread": lambda x: F.max_pool2d(x, 1, dilation=FAR),
    "max_pool3d, far apart": lambda x: F.max_pool3d(x[None], 2, stride=FAR),
    "group_norm, a batch of 3": lambda x: aten.native_group_norm(x, None, None, 3, 6, 16, 2, 1e-5)[0],
    "group_norm, 5 channels": lambda x: aten.native_group_norm(x, None, None, 2, 5, 16, 1, 1e-5)[0],
    "group_norm, 15 elements": lambda x: aten.native_group_norm(x, None, None, 2, 6, 15, 2, 1e-5)[0],
    "group_norm, 4 groups": lambda x: aten.native_group_norm(x, None, None, 2, 6, 16, 4, 1e-5)[0],
    "group_norm, by a matrix": lambda x: aten.native_group_norm(x, x[:1, :, 0, 0], None, 2, 6, 16, 2, 1e-5)[
        0
    ],
    "unfold": lambda x: F.unfold(x, 2, padding=-1),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 4),
    "index_fill": lambda x: x.index_fill(4, torch.arange(2), 0.0),
    "index_put": lambda x: x.index_put((torch.arange(2),), x[0, 0, 0, :3]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shapes_that_eager_refuses_stay_refused(name: str) -> None:
    function, x = REFUSED[name], torch.randn(2, 6, 4, 4)
    with pytest.raises((RuntimeError, IndexError)):
        function(x)
    try:
        gm = make_fx(function, tracing_mode="fake", decomposition_table=decompositions())(x)
    except (RuntimeError, IndexError):
        return  # tracing itself refuses
    assert externs(lower(gm, name="graph").graph) != []


def test_max_pool1d_counts_further() -> None:
    gm = make_fx(
        lambda x: F.max_pool1d(x, 1, stride=FAR), tracing_mode="fake", decomposition_table=decompositions()
    )(torch.randn(2, 3, 4))
    assert externs(lower(gm, name="graph").graph) == []


@pytest.mark.parametrize("accumulate", [False, True])
def test_values_are_broadcast_only_where_they_can_be(accumulate: bool) -> None:
    x, i = torch.randn(4, 6), torch.arange(4)
    for values in (torch.randn(5), torch.randn(3, 6), torch.randn(4, 5)):
        lowered = trace_and_lower(lambda x, i, v: x.index_put((i,), v, accumulate), (x, i, values))
        assert externs(lowered.graph) != []
    for values in (torch.randn(6), torch.randn(1), torch.randn(1, 6), torch.randn(4, 1), torch.randn(4, 6)):
        lowered = trace_and_lower(lambda x, i, v: x.index_put((i,), v, accumulate), (x, i, values))
        assert externs(lowered.graph) == []


def test_values_of_sizes_that_the_run_tells() -> None:
    recorder = Recorder()
    compiled = torch.compile(
        lambda x, i, v: x.index_put((i,), v), backend=recorder, dynamic=True, fullgraph=True
    )
    x, i = torch.randn(4, 6), torch.arange(4)
    assert torch.equal(compiled(x, i, torch.ones(6)), torch.ones(4, 6))
    with pytest.raises(RuntimeError):
        compiled(x, i, torch.ones(5))
