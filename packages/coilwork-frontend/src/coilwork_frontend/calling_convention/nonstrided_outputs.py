"""Results that do not lie in memory with strides: sparse tensors, which torch makes of what the program
returns, and meta tensors.

The gradient of an embedding with `sparse=True` is sparse. Generated code, allocations and layouts are of
tensors in memory alone, with strides, so what makes others, and all that is computed from them, is done after
the call.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from coilwork_frontend.torch_compat.operators import overwrites_nothing
from coilwork_ir.calling_convention import CallRole, Value


@dataclass(frozen=True, slots=True)
class Composition:
    """What is done after a call.

    Attributes:
        tail: takes the last `parts` results of the program, returns those at `positions`.
        parts: how many there are.
        positions: where the results belong; the program returns nothing there.
    """

    tail: fx.GraphModule
    parts: int
    positions: tuple[int, ...]


def returning_parts(gm: fx.GraphModule) -> tuple[fx.GraphModule, Composition | None]:
    """`gm`, or a copy whose last results are what its sparse and meta results are made from, and how these
    are made.

    A graph that is given such tensors stays as it is, and so does one that writes into what it makes of them.
    """
    late = _late(gm)
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
    made = fx.GraphModule(gm, main)
    made.meta.update(gm.meta)
    return made, Composition(fx.GraphModule(gm, tail), len(parts), positions)


def composition_roles(composition: Composition | None, kept: int) -> tuple[CallRole, ...]:
    """The role of what is made of the parts, the results behind the first `kept`."""
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


def _late(gm: fx.GraphModule) -> dict[fx.Node, None]:
    """The nodes that make sparse and meta tensors, and those that depend on them, in order."""
    late: dict[fx.Node, None] = {}
    for node in gm.graph.nodes:
        if node.op == "output" or not (
            _is_apart(node.meta.get("val")) or any(n in late for n in node.all_input_nodes)
        ):
            continue
        if not _is_pure(node):
            return {}
        late[node] = None
    return late


def _is_apart(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.device.type == "meta")


def _is_pure(node: fx.Node) -> bool:
    return node.target is operator.getitem or overwrites_nothing(node.target)
