"""Layouts of a graph's buffers: which are fixed and why, and what views become when one changes.

Most reasons stand in the graph itself and are read off it, so that no pass can leave a stale one behind:
memory that comes from outside, that a call reads or makes, that another name shows as another type, or that
the caller sees. One reason the graph cannot know: that nobody depends on a result's strides. It is told so by
`Graph.free_results`. Free memory has the strides of capture until layouts are assigned.

Views fix nothing. `remake_view` reads off a view's strides and offset which dimensions of its source each of
its own runs through, and says how it shows the same elements of a source with other strides. `ViewsOf` does
that for all views of a graph.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from coilwork_ir.buffers import Buffer, Constant, Ref, list_references
from coilwork_ir.dimension_order import find_dimension_order, make_dense_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, add_all, as_expr, as_int, find_bounds
from coilwork_ir.loops.access import list_defined_buffers, list_memory_aliases, list_read_buffers
from coilwork_ir.loops.nodes import (
    Attention,
    AttentionGradient,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Loop,
    Node,
    View,
)

# ---- Fixed layouts ----


@dataclass(frozen=True, slots=True)
class Fixed:
    """Memory lies with these strides, because of `why`: a clause about it."""

    strides: tuple[Expr, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Free:
    """Memory of this shape may lie in any order of its dimensions."""

    shape: tuple[Expr, ...]


Layout: TypeAlias = Fixed | Free

NOTHING: Final[Mapping[int, Collection[str]]] = MappingProxyType({})


def find_layouts(graph: Graph, *, obliging: Mapping[int, Collection[str]] = NOTHING) -> Mapping[str, Layout]:
    """Return the layout of all memory of `graph`, by its first name. Linear in the size of the graph.

    Args:
        graph: the graph.
        obliging: names of buffers that nodes at these positions do not fix, since the caller knows how they
            take them otherwise.
    """
    roots = find_memory_roots(graph)
    why: dict[str, str] = {}
    first: dict[str, Buffer] = {}
    types: dict[str, DType] = {}
    for entry in (*graph.inputs, *graph.constants):
        buffer = entry.buffer if isinstance(entry, Constant) else entry
        if isinstance(buffer, Buffer):
            first[buffer.name] = buffer
            why[buffer.name] = "a constant" if isinstance(entry, Constant) else "an input"
            types[buffer.name] = buffer.dtype
    for position, node in enumerate(graph.nodes):
        for buffer in list_defined_buffers(node):
            types[buffer.name] = buffer.dtype
            if roots[buffer.name] == buffer.name:
                first[buffer.name] = buffer
        if isinstance(node, View) and node.output.dtype is not types[node.source]:
            why.setdefault(roots[node.source], f"%{node.output.name} shows its bits as another type")
        obliged = obliging.get(position, ())
        for name, reason in _list_fixed_buffers(node):
            if name not in obliged:
                why.setdefault(roots[name], reason)
    for output in graph.outputs:
        if isinstance(output, Ref) and output.name not in graph.free_results:
            why.setdefault(roots[output.name], "a result whose strides the caller sees")
    layouts: dict[str, Layout] = {}
    for name, buffer in first.items():
        known = why[name] if name in why else _irregular(buffer)
        layouts[name] = Free(buffer.shape) if known is None else Fixed(buffer.strides, known)
    return layouts


def release_results(graph: Graph, unseen: Iterable[str]) -> Graph:
    """`graph` with the strides of those of the results `unseen` free that lie in memory of the graph's own,
    alone.
    """
    roots = find_memory_roots(graph)
    given = {(e.buffer if isinstance(e, Constant) else e).name for e in (*graph.inputs, *graph.constants)}
    returned = Counter(roots[output.name] for output in graph.outputs if isinstance(output, Ref))
    free = tuple(n for n in unseen if roots[n] not in given and returned[roots[n]] == 1)
    return replace(graph, free_results=free) if free else graph


def find_memory_roots(graph: Graph) -> Mapping[str, str]:
    """Return the first name of the memory that each buffer of `graph` lies in."""
    roots: dict[str, str] = {}
    for entry in (*graph.inputs, *graph.constants):
        buffer = entry.buffer if isinstance(entry, Constant) else entry
        if isinstance(buffer, Buffer):
            roots[buffer.name] = buffer.name
    for node in graph.nodes:
        shared = dict(list_memory_aliases(node))
        for buffer in list_defined_buffers(node):
            source = shared.get(buffer.name)
            roots[buffer.name] = buffer.name if source is None else roots[source]
    return roots


def find_dense_order(buffer: Buffer) -> tuple[int, ...] | None:
    """Return the dimensions of `buffer` as they are nested in memory, the outermost first; None: it has gaps,
    or its strides do not tell.

    Dimensions of one element come first.
    """
    sizes: Sequence[Any] = [as_int(extent) for extent in buffer.shape]
    steps: Sequence[Any] = [as_int(stride) for stride in buffer.strides]
    several = [k for k, size in enumerate(sizes) if size != 1]
    is_same: Callable[[Any, Any], bool] = operator.eq
    if None in sizes or None in steps:
        sizes, steps, is_same = buffer.shape, buffer.strides, _are_same_expressions
    order = find_dimension_order([sizes[k] for k in several], [steps[k] for k in several], is_same)
    if order is None:
        return None
    return (*(k for k in range(len(sizes)) if k not in several), *(several[place] for place in order))


def _are_same_expressions(one: Expr | int, other: Expr | int) -> bool:
    return as_expr(one) is as_expr(other)


def make_nested_strides(shape: tuple[Expr, ...], order: tuple[int, ...]) -> tuple[Expr, ...]:
    """Return the strides that nest dimensions in `order`, the outermost first, without gaps."""
    return tuple(map(as_expr, make_dense_strides(shape, order)))


def make_padded_strides(
    shape: tuple[Expr, ...], order: tuple[int, ...], inner: int, multiple: int
) -> tuple[Expr, ...] | None:
    """Strides that nest dimensions in `order`, the outermost first. The last `inner` of them are a row, and
    rows begin at multiples of `multiple` elements.

    None if the length of a row is not known.
    """
    strides = [as_expr(1)] * len(shape)
    step = as_expr(1)
    for count, dimension in enumerate(reversed(order)):
        if count == inner:
            length = as_int(step)
            if length is None:
                return None
            step = as_expr(-(-length // multiple) * multiple)
        strides[dimension] = step
        step = step * shape[dimension]
    return tuple(strides)


def _list_fixed_buffers(node: Node) -> Iterator[tuple[str, str]]:
    """Pairs (buffer, reason) of what `node` holds to its strides."""
    match node:
        case Extern():
            for argument in (*node.args, *(value for _, value in node.kwargs)):
                for name in list_references(argument):
                    yield name, f"{node.target} reads it"
            for buffer in list_defined_buffers(node):
                yield buffer.name, f"{node.target} makes it"
        case Contraction() | Convolution():
            for name in (*list_read_buffers(node), *(buffer.name for buffer in list_defined_buffers(node))):
                yield name, f"a {type(node).__name__.lower()} reads or makes it"
        case Attention() | AttentionGradient():
            for name in (*list_read_buffers(node), *(buffer.name for buffer in list_defined_buffers(node))):
                yield name, "an attention reads or makes it"
        case Cond() | Loop():
            for name in (*list_read_buffers(node), *(buffer.name for buffer in list_defined_buffers(node))):
                yield name, "it is handed to a region or by one"
        case _:
            return


def _irregular(buffer: Buffer) -> str | None:
    """Return why the strides of computed memory are not just one order of its dimensions."""
    if any(as_int(extent) == 0 for extent in buffer.shape):
        return "it has no elements"
    return None if find_dense_order(buffer) is not None else "its rows are padded"


# ---- Strides of views ----


Strides: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """The way of one dimension of a view through dimensions of its source.

    Attributes:
        dimensions: the source's, the innermost first.
        step: elements of the innermost one at once.
        reach: how far it moves in each of `dimensions`, at most.
    """

    dimensions: tuple[int, ...]
    step: int
    reach: tuple[Expr, ...]


def list_runs(view: Buffer, source: Buffer) -> tuple[Run | None, ...] | None:
    """Return the run of each dimension of `view` through `source`, None for one that stands still.

    None if strides do not tell.
    """
    runs: list[Run | None] = []
    for extent, stride in zip(view.shape, view.strides, strict=True):
        if as_int(extent) == 1 or as_int(stride) == 0:
            runs.append(None)
            continue
        run = _run_of(extent, stride, source)
        if run is None:
            return None
        runs.append(run)
    return tuple(runs)


def remake_view(view: Buffer, offset: Expr, source: Buffer, strides: Strides) -> tuple[Strides, Expr] | None:
    """Strides and offset of `view` where `source` has `strides`; None if no strides show the same elements
    then.
    """
    runs = list_runs(view, source)
    place = _find_element(offset, source)
    if runs is None or place is None or _may_carry(runs, place, source):
        return None
    remade_strides: list[Expr] = []
    for d in reversed(range(len(runs))):
        run = runs[d]
        if run is None:
            remade_strides.append(_remake_still_stride(view, d, remade_strides))
            continue
        for below, dimension in pairwise(run.dimensions):
            if strides[dimension] is not strides[below] * source.shape[below]:
                return None
        remade_strides.append(strides[run.dimensions[0]] * run.step)
    return tuple(reversed(remade_strides)), add_all(
        digit * stride for digit, stride in zip(place, strides, strict=True)
    )


def _remake_still_stride(view: Buffer, d: int, behind: Sequence[Expr]) -> Expr:
    """Return the stride of dimension `d`, which stands still, where those behind it have the strides
    `behind`, the last dimension's first.

    That of one element says nothing of where elements lie, but libraries read layouts off it. What
    `unsqueeze` gave it as captured it has in the other layout, too.
    """
    if as_int(view.shape[d]) != 1:
        return as_expr(0)
    if behind and view.strides[d] is view.shape[d + 1] * view.strides[d + 1]:
        return view.shape[d + 1] * behind[-1]
    return view.strides[d]


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
            for buffer in list_defined_buffers(node):
                self._buffers[buffer.name] = buffer
            self._source.update(list_memory_aliases(node))
            if isinstance(node, View):
                self._views[node.output.name] = node

    def strides_of(self, name: str, strides: Strides) -> Strides | None:
        """Strides of `name` where the memory that it lies in has `strides`; None if there are none."""
        if name not in self._source:
            return strides
        layout = self.remake(name, strides)
        return None if layout is None else layout[0]

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


def restride_view(view: View, found: tuple[Strides, Expr]) -> View:
    """`view` with those strides and that offset."""
    strides, offset = found
    return replace(view, output=replace(view.output, strides=strides), offset=offset)


def _list_moving_dims(source: Buffer) -> list[int]:
    return [
        d
        for d, (extent, stride) in enumerate(zip(source.shape, source.strides, strict=True))
        if as_int(extent) != 1 and as_int(stride) != 0
    ]


def _run_of(extent: Expr, stride: Expr, source: Buffer) -> Run | None:
    dimensions = _list_moving_dims(source)
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
    """Return the run of `extent` points, `step` elements apart, that begins in dimension `inner`, and goes on
    in those around it.
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
        outer = next((d for d in _list_moving_dims(source) if source.strides[d] is edge), None)
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


def _find_element(offset: Expr, source: Buffer) -> tuple[Expr, ...] | None:
    """Return the element of `source` that lies at `offset`, as an index; None if that cannot be told."""
    digits = [as_expr(0)] * len(source.shape)
    rest = as_int(offset)
    if rest == 0:
        return tuple(digits)
    numbers = {d: as_int(source.strides[d]) for d in _list_moving_dims(source)}
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
    low = find_bounds(difference).lo
    return low is not None and low >= 0
