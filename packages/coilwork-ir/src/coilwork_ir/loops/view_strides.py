"""Strides of views when the memory that they show is laid out anew.

A view is numbers: strides, and an offset. `remake_view` reads off them which dimensions of its source each of
its own dimensions runs through, and says how it shows the same elements where the source has other strides.
`ViewsOf` does that for all views of a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, as_expr, as_int, bounds, total
from coilwork_ir.loops.access import defined, shares_memory
from coilwork_ir.loops.nodes import Graph, View

Strides: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """How one dimension of a view runs through dimensions of its source.

    Attributes:
        dimensions: the source's, the innermost first.
        step: elements of the innermost one at once.
        reach: how far it moves in each of `dimensions`, at most.
    """

    dimensions: tuple[int, ...]
    step: int
    reach: tuple[Expr, ...]


def list_runs(view: Buffer, source: Buffer) -> tuple[Run | None, ...] | None:
    """How each dimension of `view` runs through `source`, None for one that stands still; None if that cannot
    be told.
    """
    found: list[Run | None] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if as_int(extent) == 1 or as_int(stride) == 0:
            found.append(None)
            continue
        run = _run_of(extent, stride, source)
        if run is None:
            return None
        found.append(run)
    return tuple(found)


def remake_view(view: Buffer, offset: Expr, source: Buffer, strides: Strides) -> tuple[Strides, Expr] | None:
    """Strides and offset of `view` where `source` has `strides`; None if no strides show the same elements
    then.
    """
    runs = list_runs(view, source)
    place = _digits(offset, source)
    if runs is None or place is None or _may_carry(runs, place, source):
        return None
    made: list[Expr] = []
    for run, extent, captured in zip(runs, view.shape, view.strides, strict=True):
        if run is None:
            made.append(captured if as_int(extent) == 1 else as_expr(0))
            continue
        for below, dimension in pairwise(run.dimensions):
            if strides[dimension] is not strides[below] * source.shape[below]:
                return None
        made.append(strides[run.dimensions[0]] * run.step)
    return tuple(made), total(digit * stride for digit, stride in zip(place, strides, strict=True))


class ViewsOf:
    """The views of one graph, and how they show memory that is laid out anew."""

    def __init__(self, graph: Graph) -> None:
        self._source: dict[str, str] = {}
        self._views: dict[str, View] = {}
        self._buffers: dict[str, Buffer] = {}
        self._made: dict[tuple[str, Strides], tuple[Strides, Expr] | None] = {}
        # views that are equal but for names, as layers have them, are remade once
        self._shown: dict[tuple[object, ...], tuple[Strides, Expr] | None] = {}
        self._runs: dict[tuple[Strides, ...], tuple[Run | None, ...] | None] = {}
        for entry in graph.inputs:
            if isinstance(entry, Buffer):
                self._buffers[entry.name] = entry
        for constant in graph.constants:
            self._buffers[constant.buffer.name] = constant.buffer
        for node in graph.nodes:
            for buffer in defined(node):
                self._buffers[buffer.name] = buffer
            self._source.update(shares_memory(node))
            if isinstance(node, View):
                self._views[node.output.name] = node

    def strides_of(self, name: str, strides: Strides) -> Strides | None:
        """Strides of `name` where the memory that it lies in has `strides`; None if there are none."""
        if name not in self._source:
            return strides
        found = self.remake(name, strides)
        return None if found is None else found[0]

    def remake(self, name: str, strides: Strides) -> tuple[Strides, Expr] | None:
        """Strides of `name` where the memory that it lies in has `strides`, and its offset in what it is a
        view of.
        """
        key = (name, strides)
        if key not in self._made:
            self._made[key] = self._remake(name, strides)
        return self._made[key]

    def list_runs(self, view: Buffer, source: Buffer) -> tuple[Run | None, ...] | None:
        """`list_runs`, found once for what is equal but for names."""
        key = (view.shape, view.strides, source.shape, source.strides)
        if key not in self._runs:
            self._runs[key] = list_runs(view, source)
        return self._runs[key]

    def _remake(self, name: str, strides: Strides) -> tuple[Strides, Expr] | None:
        source = self._source.get(name)
        if source is None:
            return strides, as_expr(0)
        around = self.strides_of(source, strides)
        view = self._views.get(name)
        if around is None or view is None:
            return None if around is None else (around, as_expr(0))
        output, shown = view.output, self._buffers[source]
        if output.dtype is not shown.dtype:
            return None
        key = (output.shape, output.strides, view.offset, shown.shape, shown.strides, around)
        if key not in self._shown:
            self._shown[key] = remake_view(output, view.offset, shown, around)
        return self._shown[key]


def remade(view: View, found: tuple[Strides, Expr]) -> View:
    """`view` with those strides and that offset."""
    strides, offset = found
    return replace(view, output=replace(view.output, strides=strides), offset=offset)


def _moving(source: Buffer) -> list[int]:
    return [
        d
        for d, (extent, stride) in enumerate(zip(source.shape, source.strides, strict=True))
        if as_int(extent) != 1 and as_int(stride) != 0
    ]


def _run_of(extent: Expr, stride: Expr, source: Buffer) -> Run | None:
    dimensions = _moving(source)
    for d in dimensions:
        if source.strides[d] is stride:
            return _run_outwards(extent, d, 1, source)
    far = as_int(stride)
    if far is None:
        return None
    near = {d: s for d in dimensions if (s := as_int(source.strides[d])) is not None and s < far}
    inner = max(near, key=near.__getitem__, default=None)
    if inner is None or far % near[inner]:
        return None
    return _run_outwards(extent, inner, far // near[inner], source)


def _run_outwards(extent: Expr, inner: int, step: int, source: Buffer) -> Run | None:
    """The run of `extent` points, `step` elements apart, that begins in dimension `inner`, and goes on in
    those around it.
    """
    room = source.shape[inner]
    if _is_at_least(room - 1 - (extent - 1) * step):
        return Run((inner,), step, ((extent - 1) * step,))
    length = as_int(room)
    if step != 1 and (length is None or length % step):
        return None
    dimensions, reach, covered, wanted = [inner], [room - step], room, extent * step
    while covered is not wanted:
        edge = source.strides[dimensions[-1]] * source.shape[dimensions[-1]]
        outer = next((d for d in _moving(source) if source.strides[d] is edge), None)
        if outer is None or outer in dimensions:
            return None
        dimensions.append(outer)
        inside, whole = as_int(covered), as_int(wanted)
        covered = covered * source.shape[outer]
        if inside and whole and whole % inside == 0 and _is_at_least(covered - wanted):
            reach.append(as_expr(whole // inside - 1))
            break
        reach.append(source.shape[outer] - 1)
    return Run(tuple(dimensions), step, tuple(reach))


def _digits(offset: Expr, source: Buffer) -> tuple[Expr, ...] | None:
    """The element of `source` that lies at `offset`, as an index; None if that cannot be told."""
    digits = [as_expr(0)] * len(source.shape)
    rest = as_int(offset)
    if rest == 0:
        return tuple(digits)
    numbers = {d: as_int(source.strides[d]) for d in _moving(source)}
    if rest is None or None in numbers.values():
        return None
    for d, number in sorted(numbers.items(), key=lambda item: -(item[1] or 0)):
        digit, rest = divmod(rest, number or 1)
        digits[d] = as_expr(digit)
    return None if rest else tuple(digits)


def _may_carry(runs: tuple[Run | None, ...], place: tuple[Expr, ...], source: Buffer) -> bool:
    """Tell if runs together may move past the end of a dimension of `source`, to the next element of the one
    around it.
    """
    reached = list(place)
    for run in runs:
        if run is not None:
            for d, far in zip(run.dimensions, run.reach, strict=True):
                reached[d] = reached[d] + far
    return not all(_is_at_least(extent - 1 - far) for extent, far in zip(source.shape, reached, strict=True))


def _is_at_least(difference: Expr) -> bool:
    low = bounds(difference).lo
    return low is not None and low >= 0
