"""Handle writes to memory that overlaps another operand, or itself: `x[1:].add_(x[:-1])`.

Eager's kernels refuse most of them, since the result depends on the order of elements. AOTAutograd makes them
functional and gives results, so eager is asked on copies of the inputs (`has_overlapping_writes`).

Eager accepts some writes to expanded tensors: `x.expand(3, 2).fill_(1)`, `x.expand(3, 2)[0].add_(1)`.
AOTAutograd would add to `x` what every copy of an element gained, three times the difference. So a fill goes
to `x` itself, and another write goes to a view of `x` in which no element is repeated. Inputs that are
expanded already are replaced by their storage (`give_expanded_storages`); where that is impossible, as with
gradients, the write alone runs in eager mode.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, fx

from coilwork_frontend.capture.input_storages import get_storage, list_written_operands
from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.sizes import hint_of
from coilwork_frontend.torch_compat.tensors import get_fake_mode, list_leaves

_FILLING: Final = frozenset({"fill_", "zero_", torch.fill_, torch.zero_})
_EXPANDING: Final = frozenset({"expand", "expand_as", "broadcast_to", torch.broadcast_to})


def has_overlapping_writes(gm: fx.GraphModule) -> bool:
    """Tell if a call in Dynamo's graph writes to repeated elements, or to memory that partly overlaps another
    operand.
    """
    return any(_overlaps(node) for node in gm.graph.nodes)


def fill_expansion_source(gm: fx.GraphModule) -> None:
    """Make Dynamo's graph `gm`, in place, fill an expanded tensor's source instead of the expansion."""
    changed = False
    for node in gm.graph.nodes:
        filled = node.args[0] if node.target in _FILLING and node.args else None
        if node.op not in ("call_function", "call_method") or not _repeats(filled):
            continue
        whole = filled
        while isinstance(whole, fx.Node) and _is_expansion(whole):
            whole = whole.args[0]
        if isinstance(whole, fx.Node) and whole is not filled and not _repeats(whole):
            node.replace_all_uses_with(filled)
            node.args = (whole, *node.args[1:])
            changed = True
    if changed:
        gm.recompile()


def write_expansion_source(gm: fx.GraphModule) -> None:
    """Make writes to views of expansions in Dynamo's graph `gm`, in place, writes to views of the source."""
    origins: dict[int, fx.Node] = {}
    changed = False
    for node in list(gm.graph.nodes):
        storage = get_storage(node)
        if storage is not None:
            origins.setdefault(storage, node)
        changed |= node.target is operator.setitem and _assign_to_view(node)
        for value in list_written_operands(node):
            if _views_repeats(value):
                changed |= _write_to_origin(node, value, origins[get_storage(value) or 0])
    if changed:
        gm.recompile()


def _assign_to_view(node: fx.Node) -> bool:
    """Split `x[key] = value` of a tensor with repeated elements into a view and a write to it.

    Returns if that was done.
    """
    whole, key, value = node.args
    keys = key if isinstance(key, tuple) else (key,)
    if not isinstance(whole, fx.Node) or not _views_repeats(whole) or not all(map(_is_plain_key, keys)):
        return False
    with node.graph.inserting_before(node), torch.no_grad():
        view = node.graph.call_function(operator.getitem, (whole, key))
        shown = whole.meta["example_value"]
        with get_fake_mode(shown):
            view.meta["example_value"] = shown[key]
    if isinstance(value, bool | int | float | complex):
        node.op, node.target, node.args = "call_method", "fill_", (view, value)
    else:
        everything: Any = ...
        node.args = (view, everything, value)
    return True


def _is_plain_key(key: object) -> bool:
    """Tell if indexing by `key` gives a view, and does not depend on sizes that a graph computes."""
    if isinstance(key, slice):
        return all(bound is None or type(bound) is int for bound in (key.start, key.stop, key.step))
    return key is None or key is ... or type(key) is int


def _write_to_origin(node: fx.Node, value: fx.Node, origin: fx.Node) -> bool:
    """Make `node` write to an `as_strided` view of `origin` in the place of `value`, a view of it.

    Returns if that was possible: elements are not repeated, or all copies are filled alike.
    """
    shown: Tensor = value.meta["example_value"]
    repeated = [dim for dim, n in enumerate(shown.shape) if shown.stride(dim) == 0 and n != 1]
    # all copies of an element are filled alike
    is_masked = node.target == "masked_fill_" and len(node.args) == 3
    if _repeats(origin) or (repeated and node.target not in _FILLING and not is_masked):
        return False
    dims = [dim for dim in range(shown.dim()) if dim not in repeated]
    graph = node.graph
    with graph.inserting_before(node):
        numbers = [
            *(_number(graph, value, "size", dim) for dim in dims),
            *(_number(graph, value, "stride", dim) for dim in dims),
        ]
        sizes, strides = numbers[: len(dims)], numbers[len(dims) :]
        place = (sizes, strides, _number(graph, value, "storage_offset"))
        view = graph.call_function(torch.as_strided, (origin, *place))
    known = fx.map_arg(place, lambda one: one.meta["example_value"])
    with torch.no_grad(), get_fake_mode(shown):
        view.meta["example_value"] = origin.meta["example_value"].as_strided(*known)
    if get_storage(node) is not None:
        node.replace_all_uses_with(value)
    if repeated and is_masked:
        # an element is filled if the mask says so of one of its copies
        with graph.inserting_before(node):
            whole = [_number(graph, value, "size", dim) for dim in range(shown.dim())]
            mask = graph.call_function(torch.broadcast_to, (node.args[1], whole))
            for dim in reversed(repeated):
                mask = graph.call_method("any", (mask, dim))
        node.update_arg(1, mask)
    node.replace_input_with(value, view)
    return True


def _number(graph: fx.Graph, value: fx.Node, name: str, *dims: int) -> int | fx.Node:
    """Return `value.name(*dims)`, a size, stride or offset: the number if it is static, else a call for
    it."""
    number = getattr(value.meta["example_value"], name)(*dims)
    if type(number) is int:
        return number
    call = graph.call_method(name, (value, *dims))
    call.meta["example_value"] = number
    return call


def list_repeated_writes(gm: fx.GraphModule) -> list[fx.Node]:
    """Return the calls in Dynamo's graph that write to a view of a tensor with repeated elements."""
    return [node for node in gm.graph.nodes if any(map(_views_repeats, list_written_operands(node)))]


def make_repeated_error(node: fx.Node) -> CompileError:
    """Return the error for `node`, which writes to a view of a tensor with repeated elements."""
    return CompileError(
        "repeated-elements",
        f"{node.name} writes to a tensor that has an element several times",
        reason="torch adds up what each copy of the element gains",
        remedy="write to the tensor before it is expanded",
    )


def _views_repeats(node: object) -> bool:
    """Tell if `node` is a tensor with repeated elements, or a view of one."""
    place = _locate(node)
    pending = [node] if isinstance(node, fx.Node) and place is not None else []
    seen: set[fx.Node] = set()
    while pending:
        view = pending.pop()
        storage = get_storage(view)
        # a list of views has no place itself
        if view in seen or isinstance(view.meta.get("example_value"), int | torch.SymInt):
            continue
        if storage is not None and place is not None and storage != place.storage:
            continue
        if _repeats(view):
            return True
        seen.add(view)
        pending += view.all_input_nodes
    return False


def _is_expansion(node: fx.Node) -> bool:
    return node.target in _EXPANDING and bool(node.args) and get_storage(node) == get_storage(node.args[0])


def _repeats(node: object) -> bool:
    place = _locate(node)
    return place is not None and place.repeats


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor in its storage: its first element, sizes and strides."""

    storage: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def repeats(self) -> bool:
        """True if elements are repeated by a stride of 0, the only kind that eager checks."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.sizes, self.strides, strict=True))

    @property
    def end(self) -> int:
        """The offset behind the last element."""
        return self.offset + 1 + sum((n - 1) * step for n, step in zip(self.sizes, self.strides, strict=True))


def _overlaps(node: fx.Node) -> bool:
    written = [place for value in list_written_operands(node) if (place := _locate(value)) is not None]
    if not written:
        return False
    operands = list_leaves((node.args, node.kwargs))
    places = [place for value in operands if (place := _locate(value)) is not None]
    return any(one.repeats or any(_do_partly_overlap(one, other) for other in places) for one in written)


def _do_partly_overlap(one: _Place, other: _Place) -> bool:
    """Tell if two different places of one storage have ranges of elements in common."""
    return (
        one.storage == other.storage
        and one != other
        and max(one.offset, other.offset) < min(one.end, other.end)
    )


def _locate(node: object) -> _Place | None:
    """Return the place of the tensor that `node` stands for; None if it is not static, or has no elements."""
    storage = get_storage(node)
    value = node.meta["example_value"] if isinstance(node, fx.Node) and storage is not None else None
    if storage is None or not isinstance(value, Tensor):
        return None
    numbers = [_hint_or_int(one) for one in (value.storage_offset(), *value.shape, *value.stride())]
    known = [one for one in numbers if one is not None]
    if len(known) < len(numbers):
        return None
    sizes, strides = tuple(known[1 : 1 + value.dim()]), tuple(known[1 + value.dim() :])
    return None if 0 in sizes else _Place(storage, known[0], sizes, strides)


def _hint_or_int(size: int | torch.SymInt) -> int | None:
    return hint_of(size) if isinstance(size, torch.SymInt) else int(size)
