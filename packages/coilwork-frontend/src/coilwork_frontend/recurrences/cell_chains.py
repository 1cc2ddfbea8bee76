"""Unrolled recurrences in Dynamo's graphs: chains of `nn.LSTMCell` and its like that become one layer.

A loop over steps calls a cell with the same weights again and again, with the state that the call before
returned. If no step's input needs an earlier step of the chain, the chain is a layer: one product for the
inputs of all steps, and one call or one loop for the steps. Calls move then, so nothing between the first and
the last may write into memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx

CELLS: Final[Mapping[object, Callable[..., Any]]] = MappingProxyType(
    {
        torch.lstm_cell: torch.lstm,
        torch.gru_cell: torch.gru,
        torch.rnn_tanh_cell: torch.rnn_tanh,
        torch.rnn_relu_cell: torch.rnn_relu,
    }
)
"""The function of layers for the function of a cell."""
_SHORTEST: Final = 4
"""Steps of a chain that is worth a call of its own."""


def join_cells(gm: fx.GraphModule) -> None:
    """Replace chains of cells in Dynamo's graph `gm` by calls of layers, in place."""
    if _casts(gm):
        return
    joined = False
    # the results of one chain may be the inputs of another
    while chain := next((one for one in _list_chains(gm.graph) if _is_layer(gm.graph, one)), None):
        _replace(gm.graph, chain)
        _sort_topologically(gm.graph)
        joined = True
    if joined:
        gm.recompile()


@dataclass(frozen=True, slots=True)
class Cell:
    """One call of a cell, `function(x, state, input weight, hidden weight, biases)`."""

    node: fx.Node
    x: fx.Node
    state: tuple[fx.Node, ...]
    weights: tuple[Any, ...]

    def list_results(self) -> Iterator[tuple[int, fx.Node]]:
        """Yield the nodes of the states that it returns, with their places; the hidden state is the first."""
        if len(self.state) == 1:
            yield 0, self.node
            return
        for user in self.node.users:
            place = user.args[1]
            assert isinstance(place, int)
            yield place, user


def _casts(gm: fx.GraphModule) -> bool:
    """Tell if autocast, which gives cells other types than layers, may be on."""
    enters = any("autocast" in getattr(node.target, "__name__", "") for node in gm.graph.nodes)
    return enters or any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


def _list_chains(graph: fx.Graph) -> list[list[Cell]]:
    """Return the chains of at least `_SHORTEST` cells."""
    chains: dict[fx.Node, list[Cell]] = {}
    for node in graph.nodes:
        cell = _read_cell(node) if node.op == "call_function" and node.target in CELLS else None
        if cell is None:
            continue
        (hidden, *others) = cell.state
        before = hidden if not others else hidden.args[0] if hidden.args else None
        chain = chains.get(before, []) if isinstance(before, fx.Node) else []
        if chain and _follows(chain[-1], cell):
            del chains[chain[-1].node]
            chains[node] = [*chain, cell]
        else:
            chains[node] = [cell]
    return [chain for chain in chains.values() if len(chain) >= _SHORTEST]


def _read_cell(node: fx.Node) -> Cell | None:
    if len(node.args) != 6 or node.kwargs:
        return None
    x, state, *weights = node.args
    given = tuple(state) if isinstance(state, list | tuple) else (state,)
    states = tuple(one for one in given if isinstance(one, fx.Node))
    unpacked = all(user.target is operator.getitem for user in node.users) or len(states) == 1
    if not unpacked or not isinstance(x, fx.Node) or len(states) != len(given):
        return None
    return Cell(node, x, states, tuple(weights))


def _follows(before: Cell, cell: Cell) -> bool:
    """Tell if `cell` goes on with all of the state that `before` returned."""
    if before.node.target is not cell.node.target or before.weights != cell.weights:
        return False
    results = {node: place for place, node in before.list_results()}
    return [results.get(one) for one in cell.state] == list(range(len(cell.state)))


def _is_layer(graph: fx.Graph, chain: Sequence[Cell]) -> bool:
    """Tell if the chain can be computed at once."""
    operands = [*(cell.x for cell in chain), *chain[0].state, *chain[0].weights]
    values = [one.meta.get("example_value") for one in operands if one is not None]
    first = values[0]
    if not all(isinstance(one, Tensor) and one.dtype is first.dtype for one in values):
        return False
    if first.dim() != 2 or any(one.shape != first.shape for one in values[: len(chain)]):
        return False
    for cell, after in pairwise(chain):
        # layers do not return the cells' own memory of steps between
        if any(place > 0 and set(node.users) != {after.node} for place, node in cell.list_results()):
            return False
    depending = {chain[0].node}
    inside = False
    for node in graph.nodes:
        inside |= node is chain[0].node
        if inside and _may_write(node):
            return False
        if not depending.isdisjoint(node.all_input_nodes):
            depending.add(node)
        if node is chain[-1].node:
            break
    return depending.isdisjoint(cell.x for cell in chain)


def _may_write(node: fx.Node) -> bool:
    """Tell if `node` may write into memory, or change how what follows is computed."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (
        node.target is operator.setitem
        or (node.op in ("call_function", "call_method") and name.endswith("_") and not name.endswith("__"))
        or "out" in node.kwargs
        or name.startswith(("_enter_", "_exit_", "_set_"))
        or getattr(node.target, "namespace", "") == "higher_order"
        or bool(node.op == "call_function" and node.is_impure())
    )


def _replace(graph: fx.Graph, chain: Sequence[Cell]) -> None:
    first, last = chain[0], chain[-1]
    weights = [one for one in first.weights if one is not None]
    with graph.inserting_before(last.node):
        x = _join_inputs(graph, [cell.x for cell in chain])
        states = tuple(graph.call_method("unsqueeze", (one, 0)) for one in first.state)
        given = states if len(states) == 2 else states[0]
        numbers = (len(weights) == 4, 1, 0.0, True, False, False)
        layer = graph.call_function(CELLS[first.node.target], (x, given, weights, *numbers))
        layer.meta = {key: first.node.meta[key] for key in ("stack_trace",) if key in first.node.meta}
        hidden = graph.call_method("unbind", (graph.call_function(operator.getitem, (layer, 0)), 0))
        results: dict[fx.Node, fx.Node] = {}
        for step, cell in enumerate(chain):
            for place, node in cell.list_results():
                if place == 0:
                    results[node] = graph.call_function(operator.getitem, (hidden, step))
                elif cell is last:
                    item = graph.call_function(operator.getitem, (layer, 1 + place))
                    results[node] = graph.call_method("select", (item, 0, 0))
    for node, row in results.items():
        result = row
        if any(user.op == "output" for user in node.users):
            # eager's results of cells have memory of their own
            with graph.inserting_after(row):
                result = graph.call_method("clone", (result,))
        result.meta = dict(node.meta)
        node.replace_all_uses_with(result)
    for cell in reversed(chain):
        for _, node in list(cell.list_results()):
            if node is not cell.node:
                graph.erase_node(node)
        graph.erase_node(cell.node)


def _join_inputs(graph: fx.Graph, inputs: Sequence[fx.Node]) -> fx.Node:
    """Return all inputs as one tensor, that of which they are the rows or columns, if there is one."""
    places = [_find_place(one) for one in inputs]
    source, dim, start = places[0] or (None, 0, 0)
    if source is None or places != [(source, dim, start + step) for step in range(len(inputs))]:
        return graph.call_function(torch.stack, (list(inputs), 0))
    part = graph.call_method("narrow", (source, dim, start, len(inputs)))
    return graph.call_method("transpose", (part, 0, 1)) if dim else part


def _find_place(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """Return the tensor of which `node` is one row `x[k]` or `x[:, k]`, with the dimension and `k`."""
    if node.target is not operator.getitem:
        return None
    source, index = node.args
    if not isinstance(source, fx.Node) or not isinstance(source.meta.get("example_value"), Tensor):
        return None
    rows, dim = (index[-1], 1) if isinstance(index, tuple) and index[:-1] == (slice(None),) else (index, 0)
    return (source, dim, rows) if isinstance(rows, int) and rows >= 0 else None


def _sort_topologically(graph: fx.Graph) -> None:
    """Put every node behind its operands, and keep the order otherwise."""
    placed: set[fx.Node] = set()
    for node in list(graph.nodes):
        waiting = [node]
        while waiting:
            missing = [one for one in waiting[-1].all_input_nodes if one not in placed]
            if missing:
                waiting.extend(reversed(missing))
                continue
            one = waiting.pop()
            if one not in placed:
                placed.add(one)
                if one is not node:
                    node.prepend(one)
