"""Tensors saved for the backward that share memory with an input or a result: writing to these is noticed.

Torch counts how often a tensor is written to, views share the count, and the backward refuses saved tensors
that were written to since. What a program makes of memory it knows has a count of its own, so that, say, the
saved transpose of a weight would not show that an optimizer's step came between. Such tensors take the count
of the input or the result.

What is saved may be a result although eager saves something else. Writing to it is then refused where eager
takes it, as with any backend: AOTAutograd saves what costs least.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import take_view_results
from coilwork_frontend.torch_compat.tensors import identify_node_storage
from coilwork_ir.roles import OutputRole, Value


def count_roles(gm: fx.GraphModule, returned: int | None) -> Iterator[OutputRole]:
    """The roles of results of the forward graph `gm` behind the first `returned`, which are saved; `None`:
    none is.
    """
    pairs = () if returned is None else _sharing(gm, returned)
    given = sum(node.op == "placeholder" for node in gm.graph.nodes)
    for position in take_view_results() if any(source >= given for _, source in pairs) else ():
        yield OutputRole(value=Value("out", position), kind="detached")
    for position, source in pairs:
        shown = Value("in", source) if source < given else Value("out", source - given)
        yield OutputRole(value=Value("out", position), kind="counted", source=shown)


def _sharing(gm: fx.GraphModule, returned: int) -> tuple[tuple[int, int], ...]:
    """Pairs of a saved result and what has its memory, counted through inputs and results; first come, first
    taken.
    """
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results: Any = gm.graph.output_node().args[0]
    known: dict[int, int] = {}
    for place, node in enumerate([*inputs, *results[:returned]]):
        storage = identify_node_storage(node)
        if storage is not None:
            known.setdefault(storage, place)
    saved = ((position, results[position]) for position in range(returned, len(results)))
    pairs = ((position, node, known.get(identify_node_storage(node) or 0)) for position, node in saved)
    shown = (*inputs, *results[:returned])
    return tuple(
        (position, source) for position, node, source in pairs if source is not None and node not in shown
    )
