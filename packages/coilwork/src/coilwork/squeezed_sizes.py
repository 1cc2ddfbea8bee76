"""Calls for which a captured graph does not hold: `squeeze` met a size of 1 that is known at run time.

Eager drops that dimension, where the capture has kept it. The compiled graph finds out before it overwrites inputs; such a call
runs what Dynamo captured, in eager mode, which squeezes what there is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from coilwork.checking.random_state import random_state, restore
from coilwork.storages import copy_of
from coilwork.torch_compat import BoxedCallable, GraphCompiler, draws_numbers, has_sizes_from_data
from coilwork_lowering import SQUEEZED_ONE, asserts_squeezed_size, name_squeezed_sizes

log = logging.getLogger("coilwork")


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
            name_squeezed_sizes(gm)
            self.are_there |= any(map(asserts_squeezed_size, _nodes(gm)))
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
    return _Squeezing(compiled, captured, random=found.random)


class _Squeezing:
    """A compiled program, and the `captured` graph for the calls that it is not for."""

    def __init__(self, compiled: Callable[..., Any], captured: fx.GraphModule, *, random: bool) -> None:
        self._compiled = compiled
        self._captured = captured
        self._random = random
        self._announced = False

    def __call__(self, *args: Any) -> Any:
        numbers = random_state() if self._random else None
        try:
            return self._compiled(*args)
        except RuntimeError as error:
            if SQUEEZED_ONE not in str(error):
                raise
        if not self._announced:
            self._announced = True
            log.warning("a size from data that is squeezed is 1: the captured graph runs, in eager mode")
        if numbers is not None:
            restore(numbers)
        return self._captured(*args)


def _nodes(gm: torch.nn.Module) -> list[fx.Node]:
    """The nodes of a graph and of those nested in it."""
    return [node for part in gm.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]
