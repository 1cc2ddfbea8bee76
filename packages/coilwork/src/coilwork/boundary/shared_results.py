"""Results that share memory: as many tensor objects as in eager mode, and one count of their writes.

A program drops views that change nothing and merges equal ones, so one tensor may come back for several results; other views it
makes by place and strides alone. Hence results that share memory are made of one of them once the program has run. Which of
them are one object is read off the graph before anything is rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from coilwork.torch_compat.autograd import ResultFacts, take_view_results
from coilwork.torch_compat.nesting import leaves_of
from coilwork.torch_compat.tensors import make_view, share_count, strided_storage

Call = Callable[[list[Any]], Sequence[Any]]
# The positions of the first result in the same memory, and of the first that is the same object.
ResultObject: TypeAlias = tuple[int, int]
_HIDDEN: Final = -1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Results that share memory.

    Views are of a base that autograd knows. It is a result, by its position, or hidden from the caller, by a negative number.

    Attributes:
        whole: the base that is what the program returns, as it is.
        source: position of the result that is the memory.
        detached: other tensors in that memory that are no views.
        views: pairs (position, base).
        repeated: pairs (position, position of the result that is the same object).
    """

    whole: int
    source: int
    detached: tuple[int, ...]
    views: tuple[tuple[int, int], ...]
    repeated: tuple[tuple[int, int], ...]


def captured_bases(gm: fx.GraphModule) -> tuple[int | None, ...]:
    """What each result of Dynamo's graph is a view of: the position of a result, or a negative number for what is none."""
    values = [_captured(node) for node in leaves_of(gm.graph.output_node().args)]
    positions = {
        id(value): position for position, value in reversed([*enumerate(values)]) if value is not None
    }
    hidden: dict[int, int] = {}
    bases = [value._base if value is not None and value._is_view() else None for value in values]
    return tuple(
        None if base is None else positions.get(id(base), hidden.setdefault(id(base), -1 - len(hidden)))
        for base in bases
    )


def result_objects(gm: fx.GraphModule, count: int | None = None) -> tuple[ResultObject | None, ...]:
    """Memory and object of each result of `gm`, which AOTAutograd made; of a joint graph the first `count` are results.

    `None` stands for results in the memory of inputs, which AOTAutograd makes, and for what is no tensor.
    """
    given = {_storage(node) for node in gm.graph.nodes if node.op == "placeholder"}
    memories: dict[int, int] = {}
    objects: dict[object, int] = {}
    found: list[ResultObject | None] = []
    for position, node in enumerate(leaves_of(gm.graph.output_node().args)[:count]):
        storage = _storage(node)
        if storage is None or storage in given:
            found.append(None)
        else:
            found.append((memories.setdefault(storage, position), objects.setdefault(node, position)))
    return tuple(found)


def plan_shared_results(
    objects: Sequence[ResultObject | None], bases: Sequence[int | None], facts: ResultFacts, *, recorded: bool
) -> tuple[SharedMemory, ...]:
    """What there is to do for groups of several objects in one memory.

    `bases` are `captured_bases`. `recorded`: AOTAutograd records a function, of which what asks for gradients must be no view.
    """
    groups: dict[int, dict[int, int]] = {}
    for position, found in enumerate(objects):
        if found is not None and position not in facts.remade:
            memory, same = found
            groups.setdefault(memory, {})[position] = same
    # subclasses that are taken apart have more results than were captured
    known = bases if len(bases) == facts.count else ()
    shifted = {facts.start + k: base for k, base in enumerate(known) if base is not None}
    views = {
        position: base + facts.start if base >= 0 else base
        for position, base in shifted.items()
        if position in facts.constant or not recorded
    }
    return tuple(_plan(group, views) for group in groups.values() if len(set(group.values())) > 1)


def with_shared_results(call: Call, groups: Sequence[SharedMemory], *, recorded: bool) -> Call:
    """`call`, with the results of `groups` as separate objects; `recorded`: AOTAutograd records it for a backward."""
    if not groups:
        return call
    views = take_view_results() if recorded else ()

    def separating(args: list[Any]) -> Sequence[Any]:
        results = list(call(args))
        for position in views:
            if results[position]._is_view():
                results[position] = results[position].detach()
        for group in groups:
            _separate(results, group)
        return results

    return separating


def separate_direct_results(
    direct: Callable[..., Sequence[Any]] | None, groups: Sequence[SharedMemory]
) -> Callable[..., Sequence[Any]] | None:
    """`direct`, which takes the inputs one by one, with the results of `groups` as separate objects."""
    if direct is None or not groups:
        return direct

    def separating(*args: Any) -> Sequence[Any]:
        results = list(direct(*args))
        for group in groups:
            _separate(results, group)
        return results

    return separating


def _plan(group: Mapping[int, int], bases: Mapping[int, int]) -> SharedMemory:
    """How results that share memory are made of one of them. `group` has the first of the same object for each position."""
    first: dict[int, int] = {}
    for position, same in group.items():
        first.setdefault(same, position)
    own = [position for position in first.values() if position not in bases]
    views: dict[int, int] = {}
    for position in first.values():
        if position in bases:
            base = bases[position]
            base = first[group[base]] if base in group else base
            # the caller gets it in another way, if at all
            views[position] = base if base < 0 or base in own else _HIDDEN - base
    whole, *detached = (*own, *dict.fromkeys(base for base in views.values() if base < 0))
    return SharedMemory(
        whole=whole,
        source=whole if own else min(group),
        detached=tuple(detached),
        views=tuple(views.items()),
        repeated=tuple(
            (position, first[same]) for position, same in group.items() if position != first[same]
        ),
    )


def _storage(node: object) -> int | None:
    return strided_storage(node.meta.get("val")) if isinstance(node, fx.Node) else None


def _captured(node: object) -> torch.Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _separate(results: list[Any], group: SharedMemory) -> None:
    source = results[group.source]
    bases = {group.whole: source}
    for base in group.detached:
        bases[base] = share_count(source if base < 0 else results[base], source)
    for position, base in group.views:
        results[position] = make_view(results[position], bases[base])
    for base in group.detached:
        if base >= 0:
            results[base] = bases[base]
    for position, same in group.repeated:
        results[position] = results[same]
