"""Make results that a program cannot return, after each call.

A program returns strided tensors and integers. Sparse and meta tensors are composed of parts that it returns;
inputs whose memory the function replaces (`x.data = y`) are set to further results; booleans and floats are
converted to Python's types.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.torch_compat.operators import has_no_writes
from coilwork_ir.calling_convention import CallRole, InputRole, OutputRole, Value

# ---- Sparse and meta results ----


@dataclass(frozen=True, slots=True)
class Composition:
    """A graph that makes sparse and meta results of a program's results after the call.

    Attributes:
        tail: takes the last `parts` results of the program, returns the results at `positions`.
        parts: how many results it takes.
        positions: where its results belong; the program returns None there.
    """

    tail: fx.GraphModule
    parts: int
    positions: tuple[int, ...]


def return_composition_parts(gm: fx.GraphModule) -> tuple[fx.GraphModule, Composition | None]:
    """Move what makes sparse and meta results of `gm` behind the call.

    Returns a copy of `gm` whose last results are the parts they are made from, and the composition. A graph
    that has such tensors as inputs, or writes into them, is returned as it is, with None.
    """
    late = _list_composition(gm)
    if not late:
        return gm, None
    parts = list(dict.fromkeys(n for node in late for n in node.all_input_nodes if n not in late))
    items: Any = gm.graph.output_node().args[0]
    positions = tuple(position for position, item in enumerate(items) if item in late)
    tail = fx.Graph()
    copies = {part: tail.placeholder(part.name) for part in parts}
    for node in late:
        copies[node] = tail.node_copy(node, copies.__getitem__)
    tail.output(tuple(copies[items[position]] for position in positions))
    main = fx.Graph()
    kept: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node not in late and node.op != "output":
            kept[node] = main.node_copy(node, kept.__getitem__)
    results = [None if item in late else kept.get(item, item) for item in items]
    main.output((*results, *(kept[part] for part in parts))).meta.update(gm.graph.output_node().meta)
    changed = fx.GraphModule(gm, main)
    changed.meta.update(gm.meta)
    return changed, Composition(fx.GraphModule(gm, tail), len(parts), positions)


def make_composition_roles(composition: Composition | None, kept: int) -> tuple[CallRole, ...]:
    """Return the role that composes results of the parts, the results behind the first `kept`."""
    if composition is None:
        return ()
    return (
        CallRole(
            kind="made",
            name="composition",
            takes=tuple(Value("out", kept + part) for part in range(composition.parts)),
            gives=tuple(Value("out", position) for position in composition.positions),
        ),
    )


def _list_composition(gm: fx.GraphModule) -> dict[fx.Node, None]:
    """Return the nodes that make sparse and meta tensors, and all that depend on them, in order."""
    late: dict[fx.Node, None] = {}
    for node in gm.graph.nodes:
        if node.op == "output" or not (
            _is_nonstrided(node.meta.get("val")) or any(n in late for n in node.all_input_nodes)
        ):
            continue
        if not _is_pure(node):
            return {}
        late[node] = None
    return late


def _is_nonstrided(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.device.type == "meta")


def _is_pure(node: fx.Node) -> bool:
    return node.target is operator.getitem or has_no_writes(node.target)


# ---- Inputs that are set ----


_SET: Final = torch.ops.aten.set_.source_Tensor


def return_set_sources(gm: fx.GraphModule) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """Return `gm` with the tensors that inputs are set to as its last results, and the inputs' positions.

    AOTAutograd leaves `set_` at the end of the graph. A program cannot free or keep memory of its caller, so
    inputs are set after the call. A graph without `set_` is returned as it is.
    """
    if not any(_is_set(node) for node in gm.graph.nodes):
        return gm, ()
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    final: dict[int, Any] = {}
    for node in list(graph.nodes):
        if _is_set(node):
            value, memory = node.args
            final[inputs.index(value)] = memory
            node.replace_all_uses_with(memory)
            graph.erase_node(node)
    last = graph.output_node()
    results = last.args[0]
    assert isinstance(results, list | tuple)
    last.args = ((*results, *final.values()),)
    last.meta.update(gm.graph.output_node().meta)
    changed = fx.GraphModule(gm, graph)
    changed.meta.update(gm.meta)
    return changed, tuple(final)


def make_set_roles(positions: Sequence[int], kept: int) -> tuple[InputRole, ...]:
    """Return the roles of inputs at `positions`, which are set to the results behind the first `kept`."""
    return tuple(
        InputRole(value=Value("in", position), kind="set", source=Value("out", kept + number))
        for number, position in enumerate(positions)
    )


def _is_set(node: fx.Node) -> bool:
    if node.target is not _SET:
        return False
    value = node.args[0]
    return isinstance(value, fx.Node) and value.op == "placeholder"


# ---- Numbers ----


def make_number_roles(gm: torch.fx.GraphModule) -> Iterator[OutputRole]:
    """Yield the roles of results of `gm` that are booleans, floats or constants."""
    (items,) = gm.graph.output_node().args
    listed: Sequence[Any] = items if isinstance(items, list | tuple) else (items,)
    for position, item in enumerate(listed):
        at = Value("out", position)
        value = item.meta.get("val") if isinstance(item, torch.fx.Node) else None
        if isinstance(item, bool | float):
            yield OutputRole(value=at, kind="constant", number=item)
        elif isinstance(value, bool | torch.SymBool):
            yield OutputRole(value=at, kind="number", number=bool)
        elif isinstance(value, float | torch.SymFloat):
            yield OutputRole(value=at, kind="number", number=float)
