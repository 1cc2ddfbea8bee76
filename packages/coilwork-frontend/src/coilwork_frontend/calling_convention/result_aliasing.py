"""Make results that share memory the same tensor objects, views and version counters as in eager mode.

A program drops views that change nothing and merges equal ones, so one tensor may come back for several
results. `describe_results` reads eager's results off the tensors that Dynamo computed with;
`plan_shared_results` says how results in one memory are made of one of them after the call.

Torch counts writes to a tensor, views share the count, and a backward refuses saved tensors that were written
to. Tensors that are saved for the backward take the count of the input or result whose memory they share.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import ResultFacts, take_view_results
from coilwork_frontend.torch_compat.tensors import (
    Creation,
    Marks,
    find_creation,
    get_marks,
    identify_node_storage,
    identify_strided_storage,
    identify_version_counters,
    is_view_outside_dynamo,
    list_leaves,
)
from coilwork_ir.calling_convention import CallingConvention, OutputRole, Value

# ---- Results in eager mode ----


@dataclass(frozen=True, slots=True)
class CapturedResult:
    """A result as eager mode makes it.

    Attributes:
        base: position of the result that it is a view of, or a negative number if its base is no result.
            `None`: it is no view.
        creation: how a view was made, which decides if autograd accepts writes to it.
        count: a number of the version counter, which results may share.
        marks: torch's negative and conjugate bits; `None`: it is no strided tensor.
    """

    base: int | None = None
    creation: Creation | None = None
    count: int = 0
    marks: Marks | None = None


def describe_results(gm: fx.GraphModule) -> tuple[CapturedResult, ...]:
    """Describe the results of Dynamo's graph, read off the tensors that Dynamo computed with."""
    nodes = list_leaves(gm.graph.output_node().args)
    values = _list_values(gm)
    positions = {
        id(value): position for position, value in reversed([*enumerate(values)]) if value is not None
    }
    several = _storages_of_several(gm)
    hidden: dict[int, int] = {}
    counts = identify_version_counters(values)
    results = []
    for node, value, count in zip(nodes, values, counts, strict=True):
        base = value._base if value is not None and value._is_view() else None
        if value is None or base is None or _is_view_in_eager(node, value, several) is False:
            results.append(CapturedResult(count=count, marks=_marks_or_none(value)))
            continue
        place = positions.get(id(base))
        place = hidden.setdefault(id(base), -1 - len(hidden)) if place is None else place
        results.append(CapturedResult(place, find_creation(value), count, _marks_or_none(value)))
    return tuple(results)


def list_marks(results: Sequence[CapturedResult], facts: ResultFacts) -> dict[int, Marks]:
    """Return the marks of results in eager mode, by position among the outputs of AOTAutograd's graph."""
    # subclasses that are taken apart have more results than were captured
    known = results if len(results) == facts.count else ()
    return {
        position: result.marks
        for position, result in enumerate(known, start=facts.start)
        if result.marks is not None
    }


def make_view_roles(gm: fx.GraphModule, takes: int) -> CallingConvention:
    """Return the roles that make views among results accept and refuse writes as eager's views do.

    `gm` is Dynamo's graph, read at once; it has `takes` inputs. The roles are of two kinds of views: views of
    inputs, which AOTAutograd makes anew, and views that autograd returns otherwise while gradients are
    recorded. It treats all views as parts of one function's result, and returns parts of `split` and the like
    as separate tensors, whose gradients miss later writes to the whole. A view without its base among the
    results comes back as a separate tensor as well. `make_sharing_roles` covers all other views.
    """
    placeholders = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    input_storages = {
        identify_strided_storage(value): place for place, value in reversed([*enumerate(placeholders)])
    }
    input_storages.pop(None, None)
    several = _storages_of_several(gm)
    views = []
    lone = []
    nodes = list_leaves(gm.graph.output_node().args)
    values = _list_values(gm)
    storages = [None if value is None else identify_strided_storage(value) for value in values]
    recorded = any(value is not None and value.requires_grad for value in values)
    for position, value in enumerate(values):
        creation = None if value is None else find_creation(value)
        if value is None or creation is None:
            continue
        at = Value("out", position)
        is_changed = recorded and (creation.is_of_parts or not value.requires_grad)
        if is_changed or storages[position] in input_storages:
            views.append(OutputRole(value=at, kind="created", creation=creation.name))
        elif (
            recorded
            and storages.count(storages[position]) == 1
            and _is_view_in_eager(nodes[position], value, several)
        ):
            # autograd's function gives one that comes alone as no view
            lone.append(
                OutputRole(value=at, kind="view", source=at, is_unless_view=True, creation=creation.name)
            )
    # `unsafe_split` and the like: AOTAutograd does not make these anew
    shown = [
        OutputRole(
            value=Value("out", position),
            kind="shown",
            source=Value("in", input_storages[storages[position]]),
            is_view=value._is_view(),
        )
        for position, value in enumerate(values)
        if value is not None
        and storages[position] in input_storages
        and not any(value is one or value._base is one for one in placeholders)
    ]
    first: dict[int, int] = {}
    # as `y.to(y.dtype)` is `y`: AOTAutograd makes a view of the input for each
    repeated = [
        OutputRole(value=Value("out", position), kind="is", source=Value("out", first[id(value)]))
        for position, value in enumerate(values)
        if storages[position] in input_storages and first.setdefault(id(value), position) != position
    ]
    return CallingConvention(
        takes=takes, rows=(*shown, *views, *lone, *repeated, *_list_returned_inputs(placeholders, values))
    )


def _list_returned_inputs(
    inputs: Sequence[object], values: Sequence[torch.Tensor | None]
) -> Iterator[OutputRole]:
    """Yield roles of results that are inputs which share their storage with another input.

    If one is overwritten, AOTAutograd makes a view of the storage for each.
    """
    storages = [identify_strided_storage(value) for value in inputs]
    inputs_of = Counter(storages)
    # of an input that is given twice, the first place
    places = {id(value): place for place, value in reversed(list(enumerate(inputs)))}
    for position, value in enumerate(values):
        place = None if value is None else places.get(id(value))
        if place is not None and inputs_of[storages[place]] > 1:
            yield OutputRole(value=Value("out", position), kind="is", source=Value("in", place))


def _storages_of_several(gm: fx.GraphModule) -> set[int | None]:
    """Return the storages that several values of `gm` share."""
    values = {id(node.meta.get("example_value")): node.meta.get("example_value") for node in gm.graph.nodes}
    counted = Counter(identify_strided_storage(value) for value in values.values())
    return {storage for storage, count in counted.items() if count > 1}


def _is_view_in_eager(node: fx.Node, value: torch.Tensor, several: Container[int | None]) -> bool | None:
    """Tell if `value` of `node`, a view where Dynamo computed it, is a view in eager mode; `None`: unknown.

    A value whose storage is in `several` shares memory with another call's value, so it is one. Otherwise one
    call made the memory and the view: Dynamo may have run torch's decomposition, whose last step is a view,
    where eager's operator makes the result at once.
    """
    return True if identify_strided_storage(value) in several else is_view_outside_dynamo(node)


def _marks_or_none(value: torch.Tensor | None) -> Marks | None:
    return get_marks(value) if value is not None and value.layout == torch.strided else None


def _list_values(gm: fx.GraphModule) -> list[torch.Tensor | None]:
    nodes = list_leaves(gm.graph.output_node().args)
    values = [node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in nodes]
    return [value if isinstance(value, torch.Tensor) else None for value in values]


# ---- Results in one memory ----


_HIDDEN: Final = -1 << 20


class ResultObject(NamedTuple):
    """The memory and the tensor object of a graph's result.

    Attributes:
        memory: the position of the first result in the same memory.
        same: the position of the first result that is the same object.
        is_shown: a program calls an operator for it, which may return a view where eager's result is none.
    """

    memory: int
    same: int
    is_shown: bool = False


class SharedView(NamedTuple):
    """A result that is a view of `base`; `creation` is how it was made."""

    position: int
    base: int
    creation: Creation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Results that share memory, and how they are made of one of them.

    A base of views is a result, given by its position, or hidden from the caller, given by a negative number.

    Attributes: whole: the base that is what the program returns, as it is. source: position of the result
    that is the memory. detached: pairs of another tensor in that memory that is no view, and the tensor whose
    version counter it shares; `None`: nobody's, as for `unsafe_split`. views: the views in that memory.
    repeated: pairs of a position and the position of the result that is the same object.
    """

    whole: int
    source: int
    detached: tuple[tuple[int, int | None], ...]
    views: tuple[SharedView, ...]
    repeated: tuple[tuple[int, int], ...]

    @property
    def is_lone_view(self) -> bool:
        """True for a single result that is a view of memory that the caller does not see."""
        return self.whole < 0 and len(self.views) == 1 and not (self.detached or self.repeated)


def identify_results(gm: fx.GraphModule, taken: int | None = None) -> tuple[ResultObject | None, ...]:
    """Return the memory and the object of each result of AOTAutograd's graph `gm`.

    The first `taken` outputs of a joint graph are results. `None` stands for results in the memory of inputs,
    which AOTAutograd or the program makes, and for values that are no tensors.
    """
    input_storages = {identify_node_storage(node) for node in gm.graph.nodes if node.op == "placeholder"}
    memories: dict[int, int] = {}
    objects: dict[object, int] = {}
    results: list[ResultObject | None] = []
    for position, node in enumerate(list_leaves(gm.graph.output_node().args)[:taken]):
        storage = identify_node_storage(node)
        is_shown = storage is not None and _is_shown(node)
        if storage is None or (storage in input_storages and not is_shown):
            results.append(None)
            continue
        same = objects.setdefault(node, position)
        memory = same if storage in input_storages else memories.setdefault(storage, position)
        results.append(ResultObject(memory, same, is_shown))
    return tuple(results)


def plan_shared_results(
    objects: Sequence[ResultObject | None],
    captured: Sequence[CapturedResult],
    facts: ResultFacts,
    *,
    recorded: bool,
) -> tuple[SharedMemory, ...]:
    """Plan, for each group of results in one memory, how they are made of one of them.

    `objects` are the results of AOTAutograd's graph, `captured` those of Dynamo's. With `recorded`,
    AOTAutograd records a function, whose results that require gradients must be no views.
    """
    groups: dict[int, dict[int, int]] = {}
    for position, entry in enumerate(objects):
        if entry is not None and position not in facts.remade:
            groups.setdefault(entry.memory, {})[position] = entry.same
    # subclasses that are taken apart have more results than were captured
    known = captured if len(captured) == facts.count else ()
    views: dict[int, SharedView] = {}
    counts: dict[int, int] = {}
    for position, result in enumerate(known, start=facts.start):
        counts[position] = result.count
        if result.base is None:
            continue
        base = result.base + facts.start if result.base >= 0 else result.base
        counts.setdefault(base, result.count)
        if position in facts.constant or not recorded:
            views[position] = SharedView(position, base, result.creation)
    shown = {position for position, entry in enumerate(objects) if entry is not None and entry.is_shown}
    # a single view has a hidden base; one that only torch's operator makes a view becomes no view
    return tuple(
        _plan(group, views, counts)
        for group in groups.values()
        if len(set(group.values())) > 1 or min(group) in views or min(group) in shown
    )


def make_sharing_roles(groups: Sequence[SharedMemory], *, recorded: bool) -> Iterator[OutputRole]:
    """Yield the roles that make separate objects of results in one memory.

    With `recorded`, AOTAutograd records the call for a backward.
    """
    if not groups:
        return
    for position in take_view_results() if recorded else ():
        yield OutputRole(value=Value("out", position), kind="detached")
    numbers = itertools.count()
    for group in groups:
        yield from _make_group_roles(group, numbers)


def _plan(
    group: Mapping[int, int], known: Mapping[int, SharedView], counts: Mapping[int, int]
) -> SharedMemory:
    """Plan how the results of `group` are made of one of them.

    `group` maps each position to the first position of the same object. `known` are the results that are
    views, by position; `counts` are numbers of version counters.
    """
    first: dict[int, int] = {}
    for position, same in group.items():
        first.setdefault(same, position)
    own = [position for position in first.values() if position not in known]
    views = []
    for position in first.values():
        if position in known:
            base = known[position].base
            base = first[group[base]] if base in group else base
            if base >= 0 and base not in own:
                # the base is no result of this group
                base = _HIDDEN - base
            views.append(known[position]._replace(base=base))
    whole, *others = (*own, *dict.fromkeys(view.base for view in views if view.base < 0))
    numbers = {base: counts.get(base if base > _HIDDEN else _HIDDEN - base) for base in (whole, *others)}
    # a result without a captured counterpart is what AOTAutograd makes some of the others of
    usual = next((number for number in numbers.values() if number is not None), None)
    counted: dict[int | None, int] = {}
    detached: list[tuple[int, int | None]] = []
    for base, number in numbers.items():
        source = counted.setdefault(usual if number is None else number, base)
        if base != whole:
            detached.append((base, None if source == base else source))
    return SharedMemory(
        whole=whole,
        source=whole if own else min(group),
        detached=tuple(detached),
        views=tuple(views),
        repeated=tuple(
            (position, first[same]) for position, same in group.items() if position != first[same]
        ),
    )


def _is_shown(node: fx.Node) -> bool:
    """Tell if a program calls an operator for `node`: kernels compute no complex or quantized numbers."""
    value = node.meta["val"]
    return node.op == "call_function" and (value.is_complex() or value.is_quantized)


def _make_group_roles(group: SharedMemory, numbers: Iterator[int]) -> Iterator[OutputRole]:
    """Yield the roles of results in one memory; hidden values take their numbers from `numbers`."""
    if group.is_lone_view:
        ((position, _, creation),) = group.views
        alone = Value("out", position)
        yield OutputRole(value=alone, kind="view", source=alone, creation=_creation_name(creation))
        return
    bases = {
        base: Value("out", base) if base >= 0 else Value("hidden", next(numbers))
        for base in (group.whole, *(base for base, _ in group.detached))
    }
    whole = bases[group.whole]
    if group.whole >= 0:
        # a result of an operator may be a view
        yield OutputRole(value=whole, kind="detached")
    else:
        yield OutputRole(value=whole, kind="is", source=Value("out", group.source))
    for base, counted in group.detached:
        if base < 0:
            yield OutputRole(value=bases[base], kind="is", source=whole)
        source = None if counted is None else bases[counted]
        yield OutputRole(value=bases[base], kind="counted", source=source)
    for position, base, creation in group.views:
        yield OutputRole(
            value=Value("out", position), kind="view", source=bases[base], creation=_creation_name(creation)
        )
    for position, same in group.repeated:
        yield OutputRole(value=Value("out", position), kind="is", source=Value("out", same))


def _creation_name(creation: Creation | None) -> str:
    return "" if creation is None else creation.name


# ---- Version counters of saved tensors ----


def make_version_roles(gm: fx.GraphModule, returned: int | None) -> Iterator[OutputRole]:
    """Yield the roles that give saved tensors the version counter of the input or result they share memory
    with.

    Results of the forward graph `gm` behind the first `returned` are saved; `None`: none is. A saved tensor
    may be a result although eager saves something else; then a write is refused that eager accepts, as with
    any back end, since AOTAutograd saves what costs least.
    """
    pairs = () if returned is None else _pair_saved_results(gm, returned)
    given = sum(node.op == "placeholder" for node in gm.graph.nodes)
    for position in take_view_results() if any(source >= given for _, source in pairs) else ():
        yield OutputRole(value=Value("out", position), kind="detached")
    for position, source in pairs:
        shown = Value("in", source) if source < given else Value("out", source - given)
        yield OutputRole(value=Value("out", position), kind="counted", source=shown)


def _pair_saved_results(gm: fx.GraphModule, returned: int) -> tuple[tuple[int, int], ...]:
    """Pair each saved result with the first input or returned result in its memory.

    Both are positions; those of results follow those of inputs.
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
