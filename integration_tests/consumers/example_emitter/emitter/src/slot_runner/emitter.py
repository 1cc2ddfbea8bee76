"""The emitter: it overrides the one method that says what is called for a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from coilwork_wrapper import FxEmitter
from slot_runner.steps import compile_steps


class SlotEmitter(FxEmitter):
    """Graphs as lists of steps over slots."""

    def compile_graph(self, graph: torch.fx.GraphModule) -> Callable[..., Sequence[Any]]:
        return compile_steps(graph)
