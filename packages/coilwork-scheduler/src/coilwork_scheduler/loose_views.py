"""Views that stand apart from the steps of their region, and where they stand among these.

A schedule begins with views of inputs, whoever reads them, and ends with views that are results alone. So of
equal regions (`repeated_regions.py`) these steps do not stand together. A view moves no memory: it may stand
anywhere between its source and its first reader. `gather_views` puts each of them beside a step of its
region, and `spread_views` puts them back, with those of copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from coilwork_ir.kernels.nodes import Step
from coilwork_ir.loops import View


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredSteps:
    """Steps of a schedule with loose views beside others.

    Attributes:
        front, back: positions of those that came first, and last, in the schedule.
    """

    steps: tuple[Step, ...]
    front: Set[int]
    back: Set[int]


def gather_views(
    steps: Sequence[Step], mentions: Sequence[Sequence[str]], entered: Set[str], known: Set[str]
) -> GatheredSteps:
    """Put views that only inputs (`entered`) are needed for before their first readers, and views at the end
    that nobody reads behind their sources. `mentions` are the names that each step reads or defines; only
    views that are called as `known` values move.
    """
    begin, end = 0, len(steps)
    while begin < end and _is_known(steps[begin], known) and _get_source(steps[begin]) in entered:
        begin += 1
    while end > begin and _is_known(steps[end - 1], known):
        end -= 1
    first: dict[str, int] = {}
    latest: dict[str, int] = {}
    for position in range(begin, end):
        for name in mentions[position]:
            first.setdefault(name, position)
    for position in range(begin, len(steps)):
        for name in mentions[position]:
            latest[name] = position
    before: dict[int, list[int]] = {}
    behind: dict[int, list[int]] = {}
    ahead: list[int] = []
    rest: list[int] = []
    for position in range(begin):
        reader = first.get(_get_name(steps[position]))
        (ahead if reader is None else before.setdefault(reader, [])).append(position)
    for position in range(end, len(steps)):
        # a source is mentioned first where it is defined
        definer = None if _get_source(steps[position]) in entered else first.get(_get_source(steps[position]))
        is_read = latest[_get_name(steps[position])] > position
        (rest if is_read or definer is None else behind.setdefault(definer, [])).append(position)
    order = list(ahead)
    for position in range(begin, end):
        order += [*before.get(position, ()), position, *behind.get(position, ())]
    order += rest
    return GatheredSteps(
        steps=tuple([steps[position] for position in order]),
        front=frozenset(place for place, position in enumerate(order) if position < begin),
        back=frozenset(place for place, position in enumerate(order) if position >= end),
    )


def spread_views(
    steps: Sequence[Step], origins: Sequence[int], gathered: GatheredSteps, order: Mapping[str, int]
) -> tuple[Step, ...]:
    """Put views back, first or last, in the `order` of their names. `origins` are the positions in `gathered`
    of what `steps` are or are copies of.
    """
    parts: tuple[list[Step], list[Step], list[Step]] = ([], [], [])
    for step, origin in zip(steps, origins, strict=True):
        parts[0 if origin in gathered.front else 2 if origin in gathered.back else 1].append(step)
    for part in (parts[0], parts[2]):
        part.sort(key=lambda step: order[_get_name(step)])
    return (*parts[0], *parts[1], *parts[2])


def _is_known(step: Step, known: Set[str]) -> bool:
    return isinstance(step, View) and step.output.name in known


def _get_source(step: Step) -> str:
    assert isinstance(step, View), "only views move"
    return step.source


def _get_name(step: Step) -> str:
    assert isinstance(step, View), "only views move"
    return step.output.name
