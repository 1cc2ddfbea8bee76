"""New nodes in the place of matched ones: a replacement is called with proxies, and what it calls becomes
nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx

from coilwork_lowering.facts.origins import inherit_metadata
from coilwork_lowering.rewrites.match import Match
from coilwork_lowering.rewrites.vocabulary import Vocabulary
from coilwork_lowering.torch_compat.graphs import GraphAppendingTracer


class Operand(fx.Proxy):
    """A node of the graph as a replacement sees it."""

    @property
    def value(self) -> Any:
        """Its fake value, for shapes and types."""
        tracer = self.tracer
        assert isinstance(tracer, _Tracer)
        return tracer.vocabulary.value(self.node)


class _Tracer(GraphAppendingTracer):
    """Appends what is called to a graph, with the origin of `like` and its fake value."""

    def __init__(
        self,
        graph: fx.Graph,
        like: fx.Node,
        vocabulary: Vocabulary,
        mode: AbstractContextManager[object] | None,
    ) -> None:
        super().__init__(graph)
        self.like = like
        self.vocabulary = vocabulary
        self.mode = mode
        self.made: list[fx.Node] = []

    def proxy(self, node: fx.Node) -> Operand:
        return Operand(node, self)

    def create_node(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        node = self.graph.create_node(kind, target, args, kwargs, name, type_expr)
        self.made.append(node)
        node.meta.update(inherit_metadata(self.like))
        self.vocabulary.record(node, self._compute_now(node))
        return node

    def _compute_now(self, node: fx.Node) -> Any:
        args = fx.map_arg(node.args, self.vocabulary.value)
        kwargs = fx.map_arg(node.kwargs, self.vocabulary.value)
        with nullcontext() if self.mode is None else self.mode:
            if node.op == "call_method":
                receiver, *rest = args
                return getattr(receiver, str(node.target))(*rest, **kwargs)
            assert callable(node.target)
            return node.target(*args, **kwargs)


def insert_replacement(
    match: Match,
    names: Sequence[str],
    replacement: Callable[..., Any],
    before: fx.Node,
    mode: AbstractContextManager[object] | None,
) -> tuple[list[Any], list[fx.Node]]:
    """Return what `replacement` returns for `match`, as one node or list per root, and the nodes that it made
    in front of `before`.

    Nothing of the graph refers to these nodes yet.
    """
    tracer = _Tracer(match.root.graph, match.root, match.vocabulary, mode)
    given = {name: _as_operands(match.captures.get(name), tracer) for name in names}
    with match.root.graph.inserting_before(before), torch.no_grad():
        result = replacement(**given)
    results = list(result) if len(match.roots) > 1 and result is not None else [result]
    return [_as_nodes(item) for item in results], tracer.made


def _as_operands(captured: Any, tracer: _Tracer) -> Any:
    if isinstance(captured, fx.Node):
        return tracer.proxy(captured)
    if isinstance(captured, tuple) and any(isinstance(item, fx.Node) for item in captured):
        return [_as_operands(item, tracer) for item in captured]
    return captured


def _as_nodes(result: Any) -> Any:
    if isinstance(result, fx.Proxy):
        return result.node
    if isinstance(result, list | tuple):
        return [_as_nodes(item) for item in result]
    return result
