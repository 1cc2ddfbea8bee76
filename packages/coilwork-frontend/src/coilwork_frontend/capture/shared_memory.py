"""Inputs that are overwritten, beside others that may lie in the same memory.

AOTAutograd makes a graph for inputs as they lie in the call that it is compiled for: apart, or this part of
one in that part of the other. Torch has a guard for some of that where sizes change, and none where they are
fixed. In calls that follow, a read of one input before or behind a write to the other would give something
else, without an error. Each call is looked at, which takes about 0.1 us per input; one whose inputs lie
otherwise runs what Dynamo captured, in eager mode.

Parameters and buffers are left out: they are many, and no user writes to one through another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from coilwork_frontend.capture.eager_fallback import CapturedGraph
from coilwork_frontend.capture.storages import overwritten_values, storage_of
from coilwork_frontend.torch_compat.tensors import find_overlapping, is_fake, is_static_input

Compiled = Callable[..., Any]


def with_shared_memory(
    gm: fx.GraphModule, example_inputs: Sequence[Any], captured: fx.GraphModule
) -> Callable[[Compiled], Compiled]:
    """Return what is done to the program that is made of `gm`, Dynamo's graph; `captured` is another copy of
    it, which stays.

    `gm` is looked at at once, before anything changes it.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    overwritten = {storage_of(value) for node in gm.graph.nodes for value in overwritten_values(node)}
    places = [
        position
        for position, (node, value) in enumerate(zip(inputs, example_inputs, strict=True))
        if type(value) is torch.Tensor
        and storage_of(node) is not None
        and not is_static_input(value)
        and not is_fake(value)
    ]
    written = {place for place in places if storage_of(inputs[place]) in overwritten}
    if len(places) < 2 or not written:
        return lambda compiled: compiled
    graph = CapturedGraph(captured, "inputs share memory in another way than before")
    shared = _overlapping(example_inputs, places, written)
    free = {
        place for place in shared if type(inputs[place].meta["example_value"].storage_offset()) is not int
    }
    before = _positions(example_inputs, shared, free)

    def around(compiled: Compiled) -> Compiled:
        def called(*args: Any) -> Any:
            if _overlapping(args, places, written) == shared and (
                not shared or _positions(args, shared, free) == before
            ):
                return compiled(*args)
            graph.announce()
            return graph.run(*args)

        return called

    return around


def _overlapping(args: Sequence[Any], places: Sequence[int], written: set[int]) -> list[int]:
    """Return which of the inputs at `places` overlap with others in the storage of one that is written."""
    storages: dict[int, list[int]] = {}
    for place in places:
        storages.setdefault(args[place].untyped_storage().data_ptr(), []).append(place)
    if len(storages) == len(places):
        return []
    groups = [
        group
        for address, group in storages.items()
        # what has no elements has no address
        if address and len(group) > 1 and not written.isdisjoint(group)
    ]
    return sorted(group[k] for group in groups for k in find_overlapping([args[place] for place in group]))


def _positions(args: Sequence[Any], places: Sequence[int], free: Collection[int]) -> list[object]:
    """Return where the inputs at `places` lie: which share a storage, of what size, as views of what, and
    from which element on.

    The last only for those not in `free`, whose graph is for any. AOTAutograd gives the graph what they are
    views of in their stead.
    """
    storages: dict[int, int] = {}
    found: list[object] = []
    for place in places:
        value: torch.Tensor = args[place]
        storage, base = value.untyped_storage(), value._base
        group = storages.setdefault(storage.data_ptr(), len(storages))
        offset = None if place in free else value.storage_offset()
        whole = None if base is None else (base.shape, base.stride(), base.storage_offset())
        found.append((group, storage.nbytes(), whole, offset))
    return found
