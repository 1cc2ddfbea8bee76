"""Backends of tests, which compile a graph in ways of their own behind the same capture as Coilwork's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from coilwork_frontend.torch_compat.aot_autograd import BoxedCallable, compile_with_aot_autograd
from coilwork_lowering import LoweringOptions, decompositions, partition


def compile_by_role(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_graph: Callable[..., BoxedCallable]
) -> Callable[..., Any]:
    """`gm` through AOTAutograd; each graph that it makes goes to `compile_graph(gm, example_inputs,
    role=...)`.
    """
    return compile_with_aot_autograd(
        gm,
        example_inputs,
        forward=partial(compile_graph, role="forward"),
        backward=partial(compile_graph, role="backward"),
        inference=partial(compile_graph, role="inference"),
        decompositions=decompositions(LoweringOptions()),
        partition=partition,
    )
