"""Graphs as they are lowered for an accelerator, computed here."""

from __future__ import annotations

from collections.abc import Callable

import loop_evaluator
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_ir.loops import Graph
from coilwork_ir.loops.parser import parse_graph
from coilwork_ir.loops.text import format_graph
from coilwork_lowering import LoweringOptions, lower


def as_eager_on_an_accelerator(function: Callable[[Tensor], Tensor], x: Tensor) -> Graph:
    """The graph of `function` as lowered for an accelerator, computed here."""
    graph, (found,) = compute_as_on_an_accelerator(function, x)
    torch.testing.assert_close(found, function(x), rtol=1e-6, atol=1e-6)
    return graph


def compute_as_on_an_accelerator(
    function: Callable[..., Tensor], *inputs: Tensor
) -> tuple[Graph, list[Tensor]]:
    """The graph of `function` as lowered for an accelerator, and its results, computed here."""
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    with FakeTensorMode():
        for node in gm.graph.nodes:
            if isinstance(value := node.meta.get("val"), Tensor):
                node.meta["val"] = torch.empty_strided(
                    value.shape, value.stride(), dtype=value.dtype, device="cuda"
                )
    lowered = lower(gm, name="graph", options=LoweringOptions())
    here = parse_graph(format_graph(lowered.graph).replace("cuda:0", "cpu"))
    return lowered.graph, loop_evaluator.run(here, lowered.constants, list(inputs))
