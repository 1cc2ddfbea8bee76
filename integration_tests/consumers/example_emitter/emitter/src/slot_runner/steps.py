"""Compile a graph to steps: functions with the slots of their arguments and of their result.

A slot is free for another value after the last use of the one that it holds, so memory goes as early as in
the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import map_arg


@dataclass(frozen=True, slots=True)
class Slot:
    """The number of a slot, in the place of an argument."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`slots[result] = function(*args, **kwargs)`; the slots `dead` are empty afterwards."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: int
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A compiled graph. Call it with the graph's inputs."""

    count: int
    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: Any

    def __call__(self, *values: Any) -> Sequence[Any]:
        slots: list[Any] = [None] * self.count
        for number, value in zip(self.inputs, values, strict=True):
            slots[number] = value
        del values
        for step in self.steps:
            args = fill(step.args, slots)
            slots[step.result] = step.function(*args, **fill(step.kwargs, slots))
            del args
            for number in step.dead:
                slots[number] = None
        results: Sequence[Any] = fill(self.outputs, slots)
        return results


def compile_steps(graph: torch.fx.GraphModule) -> Steps:
    """Return the steps of `graph`.

    Raises:
        NotImplementedError: it has a node that is no call of a function, method or submodule.
    """
    last = {used: node for node in graph.graph.nodes for used in node.all_input_nodes}
    places: dict[torch.fx.Node, int] = {}
    free: list[int] = []
    count = 0
    steps: list[Step] = []
    inputs: list[int] = []
    outputs: Any = ()
    for node in graph.graph.nodes:
        if node.op == "output":
            outputs = place(node.args[0], places)
            break
        args, kwargs = place(node.args, places), place(node.kwargs, places)
        if free:
            places[node] = free.pop()
        else:
            places[node], count = count, count + 1
        if node.op == "placeholder":
            inputs.append(places[node])
            continue
        ended = [used for used in node.all_input_nodes if last[used] is node]
        ended += [] if node in last else [node]
        dead = tuple(places[used] for used in ended)
        step = Step(
            function=find_function(graph, node), args=args, kwargs=kwargs, result=places[node], dead=dead
        )
        steps.append(step)
        free += dead
    return Steps(count=count, inputs=tuple(inputs), steps=tuple(steps), outputs=outputs)


def find_function(graph: torch.fx.GraphModule, node: torch.fx.Node) -> Callable[..., Any]:
    """Return what a node calls."""
    match node.op, node.target:
        case "call_function", target if callable(target):
            return target
        case "call_module", str(name):
            return graph.get_submodule(name)
        case "call_method", str(name):
            return make_method(name)
        case "get_attr", str(name):
            value = operator.attrgetter(name)(graph)
            return lambda: value
    raise NotImplementedError(f"node {node.format_node()}")


def make_method(name: str) -> Callable[..., Any]:
    """Return a function that calls the method `name` of its first argument."""
    return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)


def place(value: Any, places: Mapping[torch.fx.Node, int]) -> Any:
    """Return an argument with slots in the place of nodes."""
    return map_arg(value, lambda node: Slot(places[node]))


def fill(value: Any, slots: Sequence[Any]) -> Any:
    """Return an argument with values in the place of slots."""
    match value:
        case Slot(number):
            return slots[number]
        case list() | tuple():
            filled = (fill(item, slots) for item in value)
            return list(filled) if isinstance(value, list) else tuple(filled)
        case dict():
            return {name: fill(item, slots) for name, item in value.items()}
    return value
