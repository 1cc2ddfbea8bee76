"""Calls for which a captured graph does not hold: `squeeze` met a size of 1 that is known at run time.

Eager drops that dimension, where the capture has kept it. The compiled graph finds out before it overwrites
inputs; such a call runs what Dynamo captured, in eager mode, which squeezes what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.capture.eager_fallback import CapturedGraph, GuardedProgram
from coilwork_frontend.capture.input_storages import copy_of
from coilwork_frontend.torch_compat.aot_autograd import BoxedCallable, GraphCompiler
from coilwork_frontend.torch_compat.operators import draws_numbers
from coilwork_frontend.torch_compat.sizes import has_sizes_from_data, is_from_data, is_unequal
from coilwork_ir.graph_marks import SQUEEZED_ONE

aten: Final = torch.ops.aten
_SQUEEZES: Final = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
_ASSERTION: Final = aten._assert_scalar.default


@dataclass(slots=True)
class Assertions:
    """What compiling has found of the graphs that were made of one captured graph.

    `are_there`: whether one asserts sizes that it squeezes; `random`: whether one draws numbers.
    """

    are_there: bool = False
    random: bool = False

    def noting(self, compiler: GraphCompiler) -> GraphCompiler:
        """`compiler` of forward or inference graphs, looked at before."""

        def compile_graph(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> BoxedCallable:
            _name_squeezed_sizes(gm)
            self.are_there |= any(map(_asserts_squeezed_size, _nodes(gm)))
            self.random |= any(draws_numbers(node.target) for node in _nodes(gm))
            return compiler(gm, example_inputs)

        return compile_graph


def copy_for_squeezed_sizes(gm: fx.GraphModule) -> fx.GraphModule | None:
    """A copy of Dynamo's graph if it may be needed: where sizes come from data."""
    return copy_of(gm) if has_sizes_from_data(gm) else None


def with_squeezed_sizes(
    compiled: Callable[..., Any], captured: fx.GraphModule | None, found: Assertions
) -> Callable[..., Any]:
    """`compiled`, which runs `captured` where an assertion fails."""
    if captured is None or not found.are_there:
        return compiled
    graph = CapturedGraph(captured, "a size from data that is squeezed is 1")
    return GuardedProgram(compiled, graph, is_failure=_is_squeezed_one, random=found.random)


def _is_squeezed_one(error: Exception) -> bool:
    return SQUEEZED_ONE in str(error)


def _nodes(gm: torch.nn.Module) -> list[fx.Node]:
    """The nodes of a graph and of those nested in it."""
    return [node for part in gm.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]


def _asserts_squeezed_size(node: fx.Node) -> bool:
    return node.target is _ASSERTION and node.args[1] == SQUEEZED_ONE


def _name_squeezed_sizes(gm: torch.nn.Module) -> None:
    """Give the assertion its message, in place, in branches and loop bodies: torch has put its own in the
    place of ours there."""
    for part in gm.modules():
        nodes = list(part.graph.nodes) if isinstance(part, fx.GraphModule) else []
        sizes = [
            size for node in nodes if node.target in _SQUEEZES for size in _squeezed(*map(_fake, node.args))
        ]
        for node in nodes if sizes else ():
            if node.target is _ASSERTION and any(is_unequal(_fake(node.args[0]), size, 1) for size in sizes):
                node.args = (node.args[0], SQUEEZED_ONE)


def _squeezed(value: Any, dims: Any = None) -> list[torch.SymInt]:
    """The sizes from data that a call of `squeeze` drops if they are 1."""
    chosen = range(value.dim()) if dims is None else [dims] if isinstance(dims, int) else dims
    return [size for size in (value.shape[k] for k in chosen if value.dim() > 0) if is_from_data(size)]


def _fake(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument
