"""Numbers from data that index: `x[n]`, where `n` is an integer tensor of no dimensions, and `x[:,
n.item()]`.

Eager reads the number and selects. With `capture_scalar_outputs`, Dynamo captures that as it stands, and
AOTAutograd finds no number where `select` wants one. Read by `item`, the number is a symbol that it can go on
with; but among other indices it takes no such symbol either, so they are written as calls of `select`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx

_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def read_indices(gm: fx.GraphModule) -> None:
    """Let Dynamo's graph `gm`, in place, read such numbers before it indexes by them."""
    changed = False
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or node.target not in (operator.getitem, operator.setitem):
            continue
        whole, index, *rest = node.args
        entries = index if isinstance(index, tuple) else (index,)
        value = _value(whole)
        numbers = [k for k, entry in enumerate(entries) if _is_number(entry)]
        if value is None or not numbers:
            continue
        dims = _dims(entries, value.dim())
        with gm.graph.inserting_before(node):
            read = {
                k: entries[k] if _is_read(entries[k]) else _called(gm.graph, node, "item", (entries[k],))
                for k in numbers
            }
            # From behind, so that the dimensions before stay what they are. Eager selects first, too.
            for k in reversed(numbers):
                whole = _called(gm.graph, node, "select", (whole, dims[k], read[k]))
        left = tuple(entry for k, entry in enumerate(entries) if k not in read)
        node.args = (whole, left or (Ellipsis,), *rest)
        changed = True
    if changed:
        gm.recompile()


def _called(graph: fx.Graph, like: fx.Node, method: str, args: tuple[Any, ...]) -> fx.Node:
    node = graph.call_method(method, args)
    if "stack_trace" in like.meta:
        node.meta["stack_trace"] = like.meta["stack_trace"]
    return node


def _dims(entries: Sequence[Any], rank: int) -> list[int]:
    """Return which dimension each entry of an index begins with; of a whole of `rank` dimensions."""
    taken = [_taken(entry) for entry in entries]
    dims, at = [], 0
    for entry, count in zip(entries, taken, strict=True):
        dims.append(at)
        at += rank - sum(taken) if entry is Ellipsis else count
    return dims


def _taken(entry: Any) -> int:
    """How many dimensions an entry of an index stands for."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    value = _value(entry)
    return value.dim() if value is not None and value.dtype == torch.bool else 1


def _is_number(entry: Any) -> bool:
    value = _value(entry)
    return _is_read(entry) or (value is not None and value.dim() == 0 and value.dtype in _INTEGERS)


def _is_read(entry: Any) -> bool:
    """Tell whether `entry` is a number that the program has read, or one that it was given."""
    # of a number that it has read, Dynamo may take the value that it has read to be the only one
    return isinstance(entry, fx.Node) and isinstance(entry.meta.get("example_value"), torch.SymInt)


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None
