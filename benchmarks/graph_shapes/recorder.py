"""ATen graphs as AOTAutograd hands them to a back end, recorded call by call on fake tensors.

Tracing a program of 20,000 operations takes torch minutes, whatever compiles it; recording takes seconds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

aten: Any = torch.ops.aten


class Recorder:
    """A graph being built; with `dynamic`, the first size of every input is one open size."""

    def __init__(self, *, dynamic: bool = False) -> None:
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
        self.dynamic = dynamic
        self.count = 0
        self._size: fx.Node | None = None
        self._first_call: fx.Node | None = None
        self._inputs = 0
        self._attributes = 0

    def input(self, *shape: int, dtype: torch.dtype = torch.float32, is_open: bool = True) -> fx.Node:
        """A new input; its sizes are fixed where `is_open` is false."""
        if not (self.dynamic and is_open):
            with self.mode:
                return self.placeholder(torch.empty(shape, dtype=dtype))
        if self._size is None:
            dims = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (len(shape) - 1)]
            context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
            first = self.mode.from_tensor(torch.empty(shape, dtype=dtype), symbolic_context=context)
            self._size = self.placeholder(first.shape[0])
            return self.placeholder(first)
        with self.mode:
            return self.placeholder(torch.empty((self._size.meta["val"], *shape[1:]), dtype=dtype))

    def placeholder(self, value: Any) -> fx.Node:
        """An input that `value`, a fake tensor or a size, describes. Inputs stand before all calls."""
        self._inputs += 1
        name = f"arg{self._inputs}_1"
        if self._first_call is None:
            node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_before(self._first_call):
                node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def _note_call(self, node: fx.Node) -> fx.Node:
        if self._first_call is None:
            self._first_call = node
        return node

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Return what `target` returns, a new node of the graph."""
        node = self._note_call(self.graph.call_function(target, args, kwargs))
        fake_args, fake_kwargs = fx.node.map_arg((args, kwargs), lambda other: other.meta["val"])
        with self.mode:
            node.meta["val"] = target(*fake_args, **fake_kwargs)
        self.count += 1
        return node

    def size(self, node: fx.Node, dim: int) -> Any:
        """A size of a value: a number, or the node of an open size."""
        value = node.meta["val"].shape[dim]
        return self._size if isinstance(value, torch.SymInt) else value

    def constant(self, value: Tensor) -> fx.Node:
        """A tensor that is part of the graph."""
        name = self._name("_tensor_constant")
        self.root.register_buffer(name, value)
        node = self._note_call(self.graph.get_attr(name))
        node.meta["val"] = self.mode.from_tensor(value)
        return node

    def condition(
        self, predicate: fx.Node, branches: Sequence[Callable[[Recorder, fx.Node], fx.Node]], operand: fx.Node
    ) -> fx.Node:
        """`torch.cond` over one operand, like which the result is."""
        names: list[fx.Node] = []
        for branch in branches:
            inner = Recorder()
            inner.mode = self.mode
            given = inner.placeholder(operand.meta["val"])
            inner.graph.output((branch(inner, given),))
            name = self._name("branch_")
            self.root.add_module(name, fx.GraphModule(inner.root, inner.graph))
            names.append(self._note_call(self.graph.get_attr(name)))
            self.count += inner.count
        node = self.graph.call_function(torch.ops.higher_order.cond, (predicate, *names, (operand,)))
        with self.mode:
            node.meta["val"] = (torch.empty_like(operand.meta["val"]),)
        return self.call(operator.getitem, node, 0)

    def _name(self, stem: str) -> str:
        self._attributes += 1
        return f"{stem}{self._attributes}"

    def finish(self, outputs: Sequence[fx.Node]) -> tuple[fx.GraphModule, list[Any]]:
        """The graph that returns `outputs`, and fake inputs."""
        self.graph.output(tuple(outputs))
        module = fx.GraphModule(self.root, self.graph)
        inputs = [node.meta["val"] for node in self.graph.find_nodes(op="placeholder")]
        return module, inputs
