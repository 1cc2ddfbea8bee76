"""Graphs to rewrite: traced functions, and what rewriting makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from coilwork_lowering import decompositions
from coilwork_lowering.rewrites import Fired, Rewrite, apply_rewrites


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A functional ATen graph after rewriting."""

    gm: torch.fx.GraphModule
    fired: tuple[Fired, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(item.name for item in self.fired)

    def calls(self) -> list[str]:
        """The operators that it calls, in order."""
        return [str(n.target) for n in self.gm.graph.nodes if n.op == "call_function"]


TABLE = decompositions()


def traced(function: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """The ATen graph of one call of `function`, with fake values in its metadata."""
    return make_fx(function, decomposition_table=TABLE, tracing_mode="fake")(*inputs)


def rewritten(function: Callable[..., Any], inputs: Sequence[Any], rewrites: Sequence[Rewrite]) -> Rewritten:
    """The graph of `function`, rewritten."""
    gm = traced(function, inputs)
    return Rewritten(gm, apply_rewrites(gm, rewrites))


def check_same(
    function: Callable[..., Any], inputs: Sequence[Any], rewrites: Sequence[Rewrite], **tolerance: Any
) -> Rewritten:
    """Rewrite the graph of `function` and compare what both sides compute: exactly, unless told otherwise."""
    made = rewritten(function, inputs, rewrites)
    made.gm.graph.lint()
    wanted, found = function(*inputs), made.gm(*inputs)
    torch.testing.assert_close(
        found, wanted, **{"rtol": 0, "atol": 0, "equal_nan": True, "check_stride": True, **tolerance}
    )
    return made
