"""Results of Dynamo's graph as eager mode makes them: of what they are views, what these refuse, whose writes
are counted together.

All of it is read off the tensors that Dynamo computed with, before anything is rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from coilwork_frontend.torch_compat.aot_autograd import ResultFacts
from coilwork_frontend.torch_compat.tensors import (
    Creation,
    Marks,
    creation_of,
    identify_strided_storage,
    identify_version_counters,
    is_view_outside_dynamo,
    leaves_of,
    marks_of,
)
from coilwork_ir.roles import CallingConvention, OutputRole, Value


@dataclass(frozen=True, slots=True)
class CapturedResult:
    """One result.

    Attributes:
        base: what it is a view of: the position of a result, or a negative number for what is none. `None`:
            it is no view.
        creation: how a view was made, which decides if it takes writes that are recorded.
        count: a number that results have in common if writes to one are counted as writes to the others.
        marks: torch's bits; `None`: it is no tensor with strides.
    """

    base: int | None = None
    creation: Creation | None = None
    count: int = 0
    marks: Marks | None = None


def captured_results(gm: fx.GraphModule) -> tuple[CapturedResult, ...]:
    """The results of Dynamo's graph."""
    nodes = leaves_of(gm.graph.output_node().args)
    values = _values(gm)
    positions = {
        id(value): position for position, value in reversed([*enumerate(values)]) if value is not None
    }
    several = _storages_of_several(gm)
    hidden: dict[int, int] = {}
    counts = identify_version_counters(values)
    found = []
    for node, value, count in zip(nodes, values, counts, strict=True):
        base = value._base if value is not None and value._is_view() else None
        if value is None or base is None or _is_view_in_eager(node, value, several) is False:
            found.append(CapturedResult(count=count, marks=_marks(value)))
            continue
        place = positions.get(id(base))
        place = hidden.setdefault(id(base), -1 - len(hidden)) if place is None else place
        found.append(CapturedResult(place, creation_of(value), count, _marks(value)))
    return tuple(found)


def list_marks(results: Sequence[CapturedResult], facts: ResultFacts) -> dict[int, Marks]:
    """By position of an output of AOTAutograd's graph: the marks that it has in eager mode."""
    # subclasses that are taken apart have more results than were captured
    known = results if len(results) == facts.count else ()
    return {
        position: result.marks
        for position, result in enumerate(known, start=facts.start)
        if result.marks is not None
    }


def created_roles(gm: fx.GraphModule, takes: int) -> CallingConvention:
    """The roles by which views of the program that is made of `gm`, Dynamo's graph, take and refuse eager's
    writes; `takes`: so many inputs has it.

    They are those of views of inputs, which AOTAutograd makes anew, and of others where gradients are
    recorded. There autograd takes all views for parts of one function's result, and parts that `split` and
    the like give come back as tensors of their own: a write to the whole would leave them the gradients of
    what they showed before. A view that comes alone, of memory that the caller does not see, comes back as a
    tensor of its own as well. Other views have the roles of `shared_results`. `gm` is looked at at once.
    """
    placeholders = [node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")]
    given = {identify_strided_storage(value): place for place, value in reversed([*enumerate(placeholders)])}
    given.pop(None, None)
    several = _storages_of_several(gm)
    views = []
    lone = []
    nodes = leaves_of(gm.graph.output_node().args)
    values = _values(gm)
    storages = [None if value is None else identify_strided_storage(value) for value in values]
    recorded = any(value is not None and value.requires_grad for value in values)
    for position, value in enumerate(values):
        creation = None if value is None else creation_of(value)
        if value is None or creation is None:
            continue
        at = Value("out", position)
        is_changed = recorded and (creation.is_of_parts or not value.requires_grad)
        if is_changed or storages[position] in given:
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
            source=Value("in", given[storages[position]]),
            is_view=value._is_view(),
        )
        for position, value in enumerate(values)
        if value is not None
        and storages[position] in given
        and not any(value is one or value._base is one for one in placeholders)
    ]
    first: dict[int, int] = {}
    # as `y.to(y.dtype)` is `y`: AOTAutograd makes a view of the input for each
    repeated = [
        OutputRole(value=Value("out", position), kind="is", source=Value("out", first[id(value)]))
        for position, value in enumerate(values)
        if storages[position] in given and first.setdefault(id(value), position) != position
    ]
    return CallingConvention(takes=takes, rows=(*shown, *views, *lone, *repeated))


def _storages_of_several(gm: fx.GraphModule) -> set[int | None]:
    """The memory that several calls of `gm` show, or one shows of what it is given."""
    values = {id(node.meta.get("example_value")): node.meta.get("example_value") for node in gm.graph.nodes}
    counted = Counter(identify_strided_storage(value) for value in values.values())
    return {storage for storage, count in counted.items() if count > 1}


def _is_view_in_eager(node: fx.Node, value: torch.Tensor, several: Container[int | None]) -> bool | None:
    """Tell if `value` of `node`, which is a view where Dynamo computed it, is one in eager mode; `None`:
    unknown.

    A view of what another call gave is one; `several` are the storages of such values. Else the call made
    memory and showed that: Dynamo may have called torch's decomposition, which shows what the operator itself
    makes at once.
    """
    return True if identify_strided_storage(value) in several else is_view_outside_dynamo(node)


def _marks(value: torch.Tensor | None) -> Marks | None:
    return marks_of(value) if value is not None and value.layout == torch.strided else None


def _values(gm: fx.GraphModule) -> list[torch.Tensor | None]:
    nodes = leaves_of(gm.graph.output_node().args)
    values = [node.meta.get("example_value") if isinstance(node, fx.Node) else None for node in nodes]
    return [value if isinstance(value, torch.Tensor) else None for value in values]
