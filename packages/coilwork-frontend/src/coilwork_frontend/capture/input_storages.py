"""Handle inputs whose place in their storage matters.

A program that overwrites an input and calls `as_strided` reads beyond the input, in its storage. AOTAutograd
would give the new contents memory of their own, so it is given the storage instead
(`compile_with_storages`). Storage offsets become part of what is compiled. Dynamo has no guard for them, so a
call whose inputs lie elsewhere runs the captured graph.

Inputs that are overwritten may also overlap other inputs. A graph is compiled for the overlaps of its first
call, and torch has no guard for static sizes. `guard_shared_memory` compares each call, which takes about 0.1
us per input, and runs the captured graph for other overlaps. Parameters and buffers are left out: they are
many, and no user writes to one through another.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from coilwork_frontend.capture.eager_fallback import CapturedGraph
from coilwork_frontend.errors import CompileError
from coilwork_frontend.torch_compat.operators import list_overwritten_operands
from coilwork_frontend.torch_compat.tensors import (
    find_overlapping,
    get_fake_mode,
    get_storage_identity,
    is_fake,
    is_functorch_tensor,
    is_static_input,
    list_leaves,
)
from coilwork_ir.operators import list_operators

# ---- Storages in the place of inputs ----


_NAMES: Final = list_operators(lambda info: info.counts_from_storage)
_FUNCTIONS: Final = tuple(getattr(torch, name) for name in _NAMES)
_OVERLOADS: Final = tuple(getattr(torch.ops.aten, name).default for name in _NAMES)
_ASSIGNMENTS: Final = (
    *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.imatmul, operator.itruediv),
    *(operator.ifloordiv, operator.imod, operator.ipow, operator.iand, operator.ior, operator.ixor),
    *(operator.ilshift, operator.irshift),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlace:
    """Inputs that share a storage: `positions` among the inputs, and `offsets` in elements.

    The program gets the first `count` elements of the storage in the place of the first input, and empty
    tensors in the place of the others. With `count=None` the only input is passed as it is.
    """

    positions: tuple[int, ...]
    offsets: tuple[int, ...]
    count: int | None


def compile_with_storages(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    compiler: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Return `compiler(gm, example_inputs)` with storages in the place of inputs that are overwritten and
    read by `as_strided`. `gm` is changed in place.

    Raises:
        CompileError: an input is not laid out as AOTAutograd's copy would be, and its storage cannot take its
            place: it requires gradients, has symbolic sizes, or is seen in several dtypes or by `vmap`.
    """
    places = _find_places(gm)
    if not places:
        return compiler(gm, example_inputs)
    captured = copy_graph(gm)
    values = _begin_with_storages(gm, example_inputs, places)
    return _StorageProgram(compiler(gm, values), captured, places)


def find_misplaced_writes(gm: fx.GraphModule) -> tuple[list[fx.Node], CompileError | None]:
    """Return writes to inputs whose storages cannot take their place, and the error that says so."""
    try:
        _find_places(gm)
    except CompileError as error:
        sought = {get_storage(_get_first_operand(node)) for node in gm.graph.nodes if _uses_as_strided(node)}
        return [
            node
            for node in gm.graph.nodes
            if any(get_storage(value) in sought for value in list_written_operands(node))
        ], error
    return [], None


def give_expanded_storages(
    gm: fx.GraphModule, example_inputs: Sequence[Any], captured: fx.GraphModule
) -> tuple[Sequence[Any], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return `example_inputs` with storages in the place of expanded inputs that `gm` overwrites, and a
    function that makes the compiled program take them. `gm` is changed in place.

    AOTAutograd would add to such an input what every copy of an element gained. An input whose layout is not
    static stays. `captured` is a copy of `gm`, for calls whose inputs lie elsewhere.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    written = {get_storage(value) for node in gm.graph.nodes for value in list_written_operands(node)} - {
        None
    }
    expanded = {
        get_storage(node)
        for node in inputs
        if get_storage(node) in written and _repeats_elements(node.meta["example_value"])
    }
    places: list[StoragePlace] = []
    for storage in expanded:
        sharing = [node for node in gm.graph.nodes if get_storage(node) == storage]
        positions = tuple(position for position, node in enumerate(inputs) if node in sharing)
        place = _find_static_place(positions, inputs, sharing)
        if place is not None:
            places.append(place)
    if not places:
        return example_inputs, lambda compiled: compiled
    values = _begin_with_storages(gm, example_inputs, places)
    return values, lambda compiled: _StorageProgram(compiled, captured, tuple(places))


def _repeats_elements(value: torch.Tensor) -> bool:
    pairs = zip(value.shape, value.stride(), strict=True)
    return any(type(stride) is int and stride == 0 and size != 1 for size, stride in pairs)


def _begin_with_storages(
    gm: fx.GraphModule, example_inputs: Sequence[Any], places: Sequence[StoragePlace]
) -> list[Any]:
    """Change `gm` in place to take storages in the place of inputs at `places`; return its fake inputs."""
    inputs = gm.graph.find_nodes(op="placeholder")
    values = list(example_inputs)
    for place in places:
        if place.count is not None:
            _begin_with_storage(gm.graph, inputs, place)
            for position in place.positions:
                values[position] = inputs[position].meta["example_value"]
    gm.recompile()
    return values


def copy_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a copy of the graph of `gm` and the same parameters."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


class _StorageProgram:
    """A compiled program that takes storages, and the `captured` graph for calls whose inputs lie
    elsewhere."""

    def __init__(
        self, compiled: Callable[..., Any], captured: fx.GraphModule, places: tuple[StoragePlace, ...]
    ) -> None:
        self._compiled = compiled
        self._captured = CapturedGraph(captured, "inputs lie elsewhere in their storages than before")
        self._places = places

    def __call__(self, *args: Any) -> Any:
        if not all(_lies_as_before(args, place) for place in self._places):
            self._captured.announce()
            return self._captured.run(*args)
        inputs = list(args)
        for place in self._places:
            if place.count is not None:
                first, *others = place.positions
                inputs[first] = _view_storage(args[first], place.count)
                for other in others:
                    inputs[other] = _make_empty(args[other])
        return self._compiled(*inputs)


def _lies_as_before(args: Sequence[Any], place: StoragePlace) -> bool:
    """Tell if the inputs lie as `place` says, and no other input is in that storage."""
    storage = get_storage_identity(args[place.positions[0]])
    sharing = tuple(
        position
        for position, value in enumerate(args)
        if isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and get_storage_identity(value) == storage
    )
    return sharing == place.positions and place.offsets == tuple(args[k].storage_offset() for k in sharing)


def _view_storage(value: torch.Tensor, count: int) -> torch.Tensor:
    with torch.no_grad():
        return value.as_strided((count,), (1,), 0)


def _make_empty(value: torch.Tensor) -> torch.Tensor:
    return value.new_empty(0)


def _begin_with_storage(graph: fx.Graph, inputs: Sequence[fx.Node], place: StoragePlace) -> None:
    """Change `graph` so that the first input of `place` is the storage, and all its inputs are views of
    it."""
    assert place.count is not None
    stored = inputs[place.positions[0]]
    parts = [inputs[position] for position in place.positions]
    sought = [
        node for node in graph.nodes if _uses_as_strided(node) and get_storage(node) == get_storage(stored)
    ]
    new_parts: list[fx.Node] = []
    for node in parts:
        value: torch.Tensor = node.meta["example_value"]
        with graph.inserting_after(inputs[-1]):
            part = graph.call_function(torch.as_strided, (stored, *_layout_arguments(value)))
        part.meta["example_value"] = value
        new_parts.append(part)
        node.replace_all_uses_with(part, delete_user_cb=lambda user: user not in new_parts)
    # AOTAutograd refuses writes to what `as_strided` finds through another one.
    for node in sought:
        node.op, node.target, node.kwargs = "call_function", torch.as_strided, {}
        node.args = (stored, *_layout_arguments(node.meta["example_value"]))
    for node in parts:
        value = node.meta["example_value"]
        with get_fake_mode(value):
            node.meta["example_value"] = (
                _view_storage(value, place.count) if node is stored else _make_empty(value)
            )


def _layout_arguments(value: torch.Tensor) -> tuple[Any, ...]:
    return tuple(value.shape), tuple(value.stride()), value.storage_offset()


def _find_places(gm: fx.GraphModule) -> tuple[StoragePlace, ...]:
    """Return the storages with an input that is overwritten and read by `as_strided`."""
    sought = {get_storage(_get_first_operand(node)) for node in gm.graph.nodes if _uses_as_strided(node)}
    if not sought:
        return ()
    written = {get_storage(value) for node in gm.graph.nodes for value in list_written_operands(node)}
    both = sought & written
    sharing: dict[int, list[fx.Node]] = {}
    for node in gm.graph.nodes:
        storage = get_storage(node)
        if storage is not None and storage in both:
            sharing.setdefault(storage, []).append(node)
    inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
    places: list[StoragePlace] = []
    for nodes in sharing.values():
        positions = tuple(position for position, node in enumerate(inputs) if node in nodes)
        if positions:
            places.append(_require_place(positions, inputs, nodes))
    return tuple(places)


def _find_static_place(
    positions: tuple[int, ...], inputs: Sequence[fx.Node], sharing: Sequence[fx.Node]
) -> StoragePlace | None:
    """Return the place of inputs whose storage can take their place; None for others."""
    value: torch.Tensor = inputs[positions[0]].meta["example_value"]
    views: list[torch.Tensor] = [node.meta["example_value"] for node in sharing]
    numbers = [n for view in views for n in (*view.shape, *view.stride(), view.storage_offset())]
    if (
        all(type(n) is int for n in numbers)
        and all(view.dtype == value.dtype for view in views)
        and not any(view.requires_grad or is_functorch_tensor(view) for view in views)
    ):
        offsets = tuple(inputs[position].meta["example_value"].storage_offset() for position in positions)
        return StoragePlace(positions=positions, offsets=offsets, count=max(map(_storage_end, views)))
    return None


def _require_place(
    positions: tuple[int, ...], inputs: Sequence[fx.Node], sharing: Sequence[fx.Node]
) -> StoragePlace:
    place = _find_static_place(positions, inputs, sharing)
    if place is not None:
        return place
    first = inputs[positions[0]]
    value: torch.Tensor = first.meta["example_value"]
    offset = value.storage_offset()
    if len(positions) == 1 and type(offset) is int and offset == 0 and value.is_contiguous():
        return StoragePlace(positions=positions, offsets=(0,), count=None)
    raise CompileError(
        "places-in-storage",
        f"input {first.name} is overwritten, and as_strided looks for places in its storage",
        reason=(
            "it is not all of the storage, and asks for gradients, has symbolic sizes, or is seen in "
            "several types or by vmap"
        ),
        remedy="pass an input that is contiguous and has a storage of its own",
    )


def _storage_end(view: torch.Tensor) -> int:
    """Return how many elements of the storage `view` spans, from the storage's start."""
    if not view.numel():
        return 0
    steps = zip(view.shape, view.stride(), strict=True)
    return int(1 + view.storage_offset() + sum((size - 1) * step for size, step in steps))


def _uses_as_strided(node: fx.Node) -> bool:
    return (node.op == "call_method" and node.target in _NAMES) or node.target in _FUNCTIONS + _OVERLOADS


def _get_first_operand(node: fx.Node) -> object:
    arguments: Mapping[str, Any] = node.kwargs
    return node.args[0] if node.args else arguments.get("input", arguments.get("self"))


def list_written_operands(node: fx.Node) -> list[Any]:
    """Return the operands that `node`, a call in Dynamo's graph, may overwrite."""
    operands: list[object] = list(list_overwritten_operands(node))
    operands.append(node.kwargs.get("out"))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op in ("call_method", "call_function") and (
        node.target in _ASSIGNMENTS
        or (
            name.endswith("_")
            and not name.endswith("__")
            and getattr(operator, name, None) is not node.target
        )
        or name in ("__setitem__", *(f"__{one.__name__}__" for one in _ASSIGNMENTS))
        or node.kwargs.get("inplace")
    ):
        operands.append(_get_first_operand(node))
    return list_leaves(operands)


def get_storage(node: object) -> int | None:
    """Return the identity of the storage of what `node` of Dynamo's graph computes, if that is strided."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return get_storage_identity(value)


# ---- Overlapping inputs ----


Compiled = Callable[..., Any]


def guard_shared_memory(
    gm: fx.GraphModule, example_inputs: Sequence[Any], captured: fx.GraphModule
) -> Callable[[Compiled], Compiled]:
    """Return a function that guards the program compiled of Dynamo's graph `gm` against other overlaps.

    `captured` is a copy of `gm` for such calls. `gm` is read at once, before anything changes it.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    overwritten = {get_storage(value) for node in gm.graph.nodes for value in list_written_operands(node)}
    places = [
        position
        for position, (node, value) in enumerate(zip(inputs, example_inputs, strict=True))
        if type(value) is torch.Tensor
        and get_storage(node) is not None
        and not is_static_input(value)
        and not is_fake(value)
    ]
    written = {place for place in places if get_storage(inputs[place]) in overwritten}
    if len(places) < 2 or not written:
        return lambda compiled: compiled
    graph = CapturedGraph(captured, "inputs share memory in another way than before")
    shared = _find_overlaps(example_inputs, places, written)
    free = {
        place for place in shared if type(inputs[place].meta["example_value"].storage_offset()) is not int
    }
    before = _describe_layout(example_inputs, shared, free)

    def guard(compiled: Compiled) -> Compiled:
        def call(*args: Any) -> Any:
            if _find_overlaps(args, places, written) == shared and (
                not shared or _describe_layout(args, shared, free) == before
            ):
                return compiled(*args)
            graph.announce()
            return graph.run(*args)

        return call

    return guard


def _find_overlaps(args: Sequence[Any], places: Sequence[int], written: set[int]) -> list[int]:
    """Return the inputs of `places` that overlap another one in a storage that is written."""
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


def _describe_layout(args: Sequence[Any], places: Sequence[int], free: Collection[int]) -> list[object]:
    """Return for each input of `places` its group of one storage, the storage's size, its base and its
    offset.

    The offset is left out for inputs in `free`, whose graph takes any. Bases count, because AOTAutograd
    passes the base in the place of a view.
    """
    storages: dict[int, int] = {}
    layout: list[object] = []
    for place in places:
        value: torch.Tensor = args[place]
        storage, base = value.untyped_storage(), value._base
        group = storages.setdefault(storage.data_ptr(), len(storages))
        offset = None if place in free else value.storage_offset()
        whole = None if base is None else (base.shape, base.stride(), base.storage_offset())
        layout.append((group, storage.nbytes(), whole, offset))
    return layout
