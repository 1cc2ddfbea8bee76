"""Results that share memory: as many tensor objects as in eager mode, and one count of their writes.

A program drops views that change nothing and merges equal ones, so one tensor may come back for several
results; other views it makes by place and strides alone. Hence results that share memory are made of one of
them once the program has run. Which of them are one object is read off the graph before anything is
rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from torch import fx

from coilwork_frontend.calling_convention.captured_results import CapturedResult
from coilwork_frontend.torch_compat.aot_autograd import ResultFacts, take_view_results
from coilwork_frontend.torch_compat.tensors import Creation, identify_node_storage, leaves_of
from coilwork_ir.roles import OutputRole, Value

_HIDDEN: Final = -1 << 20


class ResultObject(NamedTuple):
    """A result of a graph.

    Attributes:
        memory: the position of the first result in the same memory.
        same: the position of the first result that is the same object.
        is_shown: a program calls an operator for it, and torch may make a view of what eager makes anew.
    """

    memory: int
    same: int
    is_shown: bool = False


class SharedView(NamedTuple):
    """A result that is a view of `base`, made in the way of `creation`."""

    position: int
    base: int
    creation: Creation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Results that share memory.

    Views are of a base that autograd knows. It is a result, by its position, or hidden from the caller, by a
    negative number.

    Attributes:
        whole: the base that is what the program returns, as it is.
        source: position of the result that is the memory.
        detached: pairs (other tensor in that memory that is no view, the tensor with whose writes its own are
            counted); `None`: with nobody's, as those of `unsafe_split`.
        views: what else lies in that memory.
        repeated: pairs (position, position of the result that is the same object).
    """

    whole: int
    source: int
    detached: tuple[tuple[int, int | None], ...]
    views: tuple[SharedView, ...]
    repeated: tuple[tuple[int, int], ...]

    @property
    def is_lone_view(self) -> bool:
        """Tell if this is one result, a view of memory that the caller does not see."""
        return self.whole < 0 and len(self.views) == 1 and not (self.detached or self.repeated)


def result_objects(gm: fx.GraphModule, taken: int | None = None) -> tuple[ResultObject | None, ...]:
    """Memory and object of each result of `gm`, which AOTAutograd made; of a joint graph the first `taken`
    are results.

    `None` stands for results in the memory of inputs, which AOTAutograd or the program makes, and for what
    is no tensor.
    """
    given = {identify_node_storage(node) for node in gm.graph.nodes if node.op == "placeholder"}
    memories: dict[int, int] = {}
    objects: dict[object, int] = {}
    found: list[ResultObject | None] = []
    for position, node in enumerate(leaves_of(gm.graph.output_node().args)[:taken]):
        storage = identify_node_storage(node)
        is_shown = storage is not None and _is_shown(node)
        if storage is None or (storage in given and not is_shown):
            found.append(None)
            continue
        same = objects.setdefault(node, position)
        memory = same if storage in given else memories.setdefault(storage, position)
        found.append(ResultObject(memory, same, is_shown))
    return tuple(found)


def plan_shared_results(
    objects: Sequence[ResultObject | None],
    captured: Sequence[CapturedResult],
    facts: ResultFacts,
    *,
    recorded: bool,
) -> tuple[SharedMemory, ...]:
    """Return what there is to do for groups of several objects in one memory.

    `captured` are the results of Dynamo's graph. `recorded`: AOTAutograd records a function, of which what
    asks for gradients must be no view.
    """
    groups: dict[int, dict[int, int]] = {}
    for position, found in enumerate(objects):
        if found is not None and position not in facts.remade:
            groups.setdefault(found.memory, {})[position] = found.same
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
    shown = {position for position, found in enumerate(objects) if found is not None and found.is_shown}
    # a view that comes alone is one of a hidden base; one that torch alone takes for a view becomes none
    return tuple(
        _plan(group, views, counts)
        for group in groups.values()
        if len(set(group.values())) > 1 or min(group) in views or min(group) in shown
    )


def shared_roles(groups: Sequence[SharedMemory], *, recorded: bool) -> Iterator[OutputRole]:
    """The roles of results that are separate objects; `recorded`: AOTAutograd records the call for a
    backward.
    """
    if not groups:
        return
    for position in take_view_results() if recorded else ():
        yield OutputRole(value=Value("out", position), kind="detached")
    numbers = count()
    for group in groups:
        yield from _group_roles(group, numbers)


def _plan(
    group: Mapping[int, int], known: Mapping[int, SharedView], counts: Mapping[int, int]
) -> SharedMemory:
    """How results that share memory are made of one of them.

    `group` has the first of the same object for each position, `known` the results that are views, `counts`
    numbers that those have in common whose writes are counted together.
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
                # the caller gets it in another way, if at all
                base = _HIDDEN - base
            views.append(known[position]._replace(base=base))
    whole, *others = (*own, *dict.fromkeys(view.base for view in views if view.base < 0))
    numbers = {base: counts.get(base if base > _HIDDEN else _HIDDEN - base) for base in (whole, *others)}
    # what is not among the captured results is what AOTAutograd makes some of them of
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
    """Tell if a program calls operators for `node`: kernels compute neither complex nor quantized numbers."""
    value = node.meta["val"]
    return node.op == "call_function" and (value.is_complex() or value.is_quantized)


def _group_roles(group: SharedMemory, numbers: Iterator[int]) -> Iterator[OutputRole]:
    """The roles of results that share memory; `numbers` are those of hidden values that are free."""
    if group.is_lone_view:
        ((position, _, creation),) = group.views
        alone = Value("out", position)
        yield OutputRole(value=alone, kind="view", source=alone, creation=_name(creation))
        return
    bases = {
        base: Value("out", base) if base >= 0 else Value("hidden", next(numbers))
        for base in (group.whole, *(base for base, _ in group.detached))
    }
    whole = bases[group.whole]
    if group.whole >= 0:
        # an operator's result that the program shows otherwise may be a view
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
            value=Value("out", position), kind="view", source=bases[base], creation=_name(creation)
        )
    for position, same in group.repeated:
        yield OutputRole(value=Value("out", position), kind="is", source=Value("out", same))


def _name(creation: Creation | None) -> str:
    return "" if creation is None else creation.name
