"""Layouts of the buffers of a graph: layouts are fixed, with a reason, or free.

Most reasons stand in the graph itself, and are read off it here, so that no pass can leave a stale one
behind: memory that comes from outside, that a call reads or makes, that another name shows as another type,
or that the caller sees. What the graph cannot know by itself, that nobody depends on a result's strides, it
is told: `Graph.free_results`. Views fix nothing: they are made anew for the strides of what they show
(`view_strides.py`).

Free memory still has strides, those of capture. Passes that run before layouts are assigned read them, and
they are kept where no others are better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, Constant, Ref, references
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.loops.access import defined, read, shares_memory
from coilwork_ir.loops.nodes import (
    Attention,
    AttentionGradient,
    Cond,
    Contraction,
    Convolution,
    Extern,
    Graph,
    Node,
    View,
    While,
)


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


def layouts_of(graph: Graph, *, obliging: Mapping[int, Collection[str]] = NOTHING) -> Mapping[str, Layout]:
    """The layout of all memory of `graph`, by its first name. Linear in the size of the graph.

    Args:
        graph: the graph.
        obliging: names of buffers that nodes at these positions do not fix, since the caller knows how they
            take them otherwise.
    """
    roots = memory_roots(graph)
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
        for buffer in defined(node):
            types[buffer.name] = buffer.dtype
            if roots[buffer.name] == buffer.name:
                first[buffer.name] = buffer
        if isinstance(node, View) and node.output.dtype is not types[node.source]:
            why.setdefault(roots[node.source], f"%{node.output.name} shows its bits as another type")
        obliged = obliging.get(position, ())
        for name, reason in _fixed_by(node):
            if name not in obliged:
                why.setdefault(roots[name], reason)
    for output in graph.outputs:
        if isinstance(output, Ref) and output.name not in graph.free_results:
            why.setdefault(roots[output.name], "a result whose strides the caller sees")
    found: dict[str, Layout] = {}
    for name, buffer in first.items():
        known = why[name] if name in why else _irregular(buffer)
        found[name] = Free(buffer.shape) if known is None else Fixed(buffer.strides, known)
    return found


def release_results(graph: Graph, unseen: Iterable[str]) -> Graph:
    """`graph` with the strides of those of the results `unseen` free that lie in memory of the graph's own,
    alone.
    """
    roots = memory_roots(graph)
    given = {(e.buffer if isinstance(e, Constant) else e).name for e in (*graph.inputs, *graph.constants)}
    returned = Counter(roots[output.name] for output in graph.outputs if isinstance(output, Ref))
    free = tuple(n for n in unseen if roots[n] not in given and returned[roots[n]] == 1)
    return replace(graph, free_results=free) if free else graph


def memory_roots(graph: Graph) -> Mapping[str, str]:
    """The first name of the memory that each buffer of `graph` lies in."""
    roots: dict[str, str] = {}
    for entry in (*graph.inputs, *graph.constants):
        buffer = entry.buffer if isinstance(entry, Constant) else entry
        if isinstance(buffer, Buffer):
            roots[buffer.name] = buffer.name
    for node in graph.nodes:
        shared = dict(shares_memory(node))
        for buffer in defined(node):
            source = shared.get(buffer.name)
            roots[buffer.name] = buffer.name if source is None else roots[source]
    return roots


def dense_order(buffer: Buffer) -> tuple[int, ...] | None:
    """Dimensions of `buffer` as they are nested in memory, the outermost first, if they fill it without gaps;
    else None.

    Dimensions of one element come first.
    """
    sizes, steps = [as_int(e) for e in buffer.shape], [as_int(s) for s in buffer.strides]
    several = [k for k, size in enumerate(sizes) if size != 1]
    if None not in sizes and None not in steps:
        return _dense_order_of_numbers(sizes, steps, several)
    order: list[int] = []
    step = as_expr(1)
    while several:
        inner = next((k for k in reversed(several) if buffer.strides[k] is step), None)
        if inner is None:
            return None
        order.append(inner)
        several.remove(inner)
        step = step * buffer.shape[inner]
    ones = [k for k in range(len(buffer.shape)) if k not in order]
    return (*ones, *reversed(order))


def _dense_order_of_numbers(
    sizes: Sequence[int | None], steps: Sequence[int | None], several: list[int]
) -> tuple[int, ...] | None:
    """`dense_order` where all sizes and strides are numbers, as most are."""
    order: list[int] = []
    step = 1
    while several:
        inner = next((k for k in reversed(several) if steps[k] == step), None)
        if inner is None:
            return None
        order.append(inner)
        several.remove(inner)
        step *= sizes[inner] or 0
    ones = [k for k in range(len(sizes)) if k not in order]
    return (*ones, *reversed(order))


def nested_strides(shape: tuple[Expr, ...], order: tuple[int, ...]) -> tuple[Expr, ...]:
    """Strides that nest dimensions in `order`, the outermost first, without gaps."""
    strides = [as_expr(1)] * len(shape)
    step = as_expr(1)
    for dimension in reversed(order):
        strides[dimension] = step
        step = step * shape[dimension]
    return tuple(strides)


def _fixed_by(node: Node) -> Iterator[tuple[str, str]]:
    """Pairs (buffer, reason) of what `node` holds to its strides."""
    match node:
        case Extern():
            for argument in (*node.args, *(value for _, value in node.kwargs)):
                for name in references(argument):
                    yield name, f"{node.target} reads it"
            for buffer in defined(node):
                yield buffer.name, f"{node.target} makes it"
        case Contraction() | Convolution():
            for name in (*read(node), *(buffer.name for buffer in defined(node))):
                yield name, f"a {type(node).__name__.lower()} reads or makes it"
        case Attention() | AttentionGradient():
            for name in (*read(node), *(buffer.name for buffer in defined(node))):
                yield name, "an attention reads or makes it"
        case Cond() | While():
            for name in (*read(node), *(buffer.name for buffer in defined(node))):
                yield name, "it is handed to a region or by one"
        case _:
            return


def _irregular(buffer: Buffer) -> str | None:
    """Why the strides of computed memory are not just one order of its dimensions."""
    if any(as_int(extent) == 0 for extent in buffer.shape):
        return "it has no elements"
    return None if dense_order(buffer) is not None else "its rows are padded"
