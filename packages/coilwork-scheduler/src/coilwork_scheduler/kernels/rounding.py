"""Decide which 16-bit values are rounded as eager rounds them, and which roundings may be dropped.

With `fast` numerics a kernel keeps what it computes in `f32`, and `elide_rounding` drops casts to 16 bits on
the way. What the kernel also stores, another kernel or an operator of torch reads rounded. If one finds the
maximum or the median of a row, and the other what equals it, both have to begin with the same numbers. Where
a function jumps, as quantisation does, a slightly different operand gives a result that is a whole step away.
So values are rounding barriers if they are compared, searched for an extreme, sorted, or made whole or 8
bits, and so is what they are computed from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from coilwork_ir.buffers import list_references
from coilwork_ir.dtypes import DType, round_to_dtype
from coilwork_ir.loops import Extern, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort, View
from coilwork_ir.loops.access import list_bodies, list_defined_buffers
from coilwork_ir.operators import Decision, find_target_info
from coilwork_ir.scalar import Const, Op, Scalar, cast, const, iterate_postorder, list_loads, where

# ---- Rounding barriers ----


_COMPARISONS: Final = frozenset("eq ne lt le gt ge".split())
# Functions of floats that jump. So do conversions to integers and to 8-bit floats, see `_jumps`.
_JUMPING: Final = frozenset("floor ceil round trunc sign floordiv truncdiv mod fmod".split())
_EXTREMES: Final = frozenset({"max", "min", "argmax", "argmin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Selections:
    """Buffers of selected elements, and of what is computed of them point by point.

    Attributes:
        alone: of nothing else.
        among: also of other values: of what they were selected of, mostly.
    """

    alone: frozenset[str] = frozenset()
    among: frozenset[str] = frozenset()

    def is_mixed(self, value: Scalar) -> bool:
        """Tell if `value` is computed of selected elements and of others, as a difference from
        the largest.
        """
        names = [access.buffer for access in list_loads((value,)) if access.dtype.is_float]
        return not self.among.isdisjoint(names) or (
            not self.alone.isdisjoint(names) and not self.alone.issuperset(names)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The values of a graph that comparisons and the like depend on.

    Attributes:
        deciding: buffers whose values do.
        rounded: those whose elements are compared, maybe after some were selected of them.
        selections: what is selected.
    """

    deciding: frozenset[str] = frozenset()
    rounded: frozenset[str] = frozenset()
    selections: Selections = field(default_factory=Selections)


NO_DECISIONS: Final = Decisions()


def find_decisions(graph: Graph) -> Decisions:
    """Find what decides something in `graph`, in time linear in its size.

    What is selected and returned counts as compared: a backward graph compares it with what it was selected
    of.
    """
    selections = _selections(graph)
    returned = {name for output in graph.outputs for name in list_references(output)}
    return Decisions(
        deciding=_trace_back(graph, partial(_find_decisive_values, selections), set(), searches=True),
        rounded=_trace_back(
            graph, partial(_find_compared_values, selections), returned & selections.alone, searches=False
        ),
        selections=selections,
    )


def has_low_precision(graph: Graph) -> bool:
    """Tell if `graph`, as lowered, computes 16-bit floats. Inlining may leave no buffer of them."""
    return any(buffer.dtype.is_low_precision for node in graph.nodes for buffer in list_defined_buffers(node))


def find_compared(roots: tuple[Scalar, ...], selections: Selections) -> frozenset[Scalar]:
    """Find the operands of comparisons in `roots`, and of other functions that jump.

    A number that is compared with a literal is one only if it tells selected elements from others.
    """
    return frozenset(
        operand
        for node in iterate_postorder(roots)
        if isinstance(node, Op)
        if _jumps(node) or (node.op in _COMPARISONS and _decides(node, selections))
        for operand in node.operands
    )


def _jumps(node: Op) -> bool:
    """Tell if the least step of a float operand may be a whole one of the result."""
    if not node.operands[0].dtype.is_float:
        return False
    if node.op == "cast":
        return node.dtype.is_integer or node.dtype.format is not None
    return node.op in _JUMPING


def _decides(comparison: Op, selections: Selections) -> bool:
    return comparison.operands[0].dtype.is_float and (
        not any(isinstance(operand, Const) for operand in comparison.operands)
        or any(selections.is_mixed(operand) for operand in comparison.operands)
    )


def _selections(graph: Graph) -> Selections:
    alone: set[str] = set()
    among: set[str] = set()
    for node in graph.nodes:
        match node:
            case Extern():
                found = alone if _decision(node) == "selects" else None
            case View() | Pointwise() | Scatter():
                names = [access.buffer for access in list_loads(list_bodies(node)) if access.dtype.is_float]
                names += [node.source] if isinstance(node, View) else []
                some = any(name in alone or name in among for name in names)
                found = None if not some else alone if alone.issuperset(names) else among
            case _:
                found = alone if _selects(node) else None
        if found is not None:
            found.update(buffer.name for buffer in list_defined_buffers(node))
    return Selections(alone=frozenset(alone), among=frozenset(among))


def _trace_back(
    graph: Graph, values_of: Callable[[Node, bool], Iterator[Scalar]], found: set[str], *, searches: bool
) -> frozenset[str]:
    """Buffers that `found` ones and the values of nodes are computed from.

    `values_of` is also told whether a result of the node is among them. Whether torch's operators that select
    do `searches` whoever looks at what they select is up to the caller.
    """
    for node in reversed(graph.nodes):
        inside = any(buffer.name in found for buffer in list_defined_buffers(node))
        match node:
            case View():
                if inside:
                    found.add(node.source)
            case Extern():
                decision = _decision(node)
                moved = inside and decision == "moves"
                decides = decision == "selects" and (inside or searches)
                if decision == "compares" or moved or decides:
                    for argument in (*node.args, *(value for _, value in node.kwargs)):
                        found.update(list_references(argument))
            case _:
                if inside and isinstance(node, Scatter) and node.into is not None:
                    found.add(node.into)
                for root in values_of(node, inside):
                    found.update(access.buffer for access in list_loads((root,)))
    return frozenset(found)


def _decision(node: Extern) -> Decision:
    """Return what the order of the operands decides in a call of torch's; nothing is known of the user's own
    operators.
    """
    return find_target_info(node.target).decision


def _find_decisive_values(selections: Selections, node: Node, inside: bool) -> Iterator[Scalar]:
    match node:
        case Reduce() | Scan() if node.kind in _EXTREMES:
            yield from list_bodies(node)
        case Sort():
            yield from list_bodies(node)
        case Pointwise() if inside:
            yield from list_bodies(node)
        case _:
            yield from find_compared(list_bodies(node), selections)


def _find_compared_values(selections: Selections, node: Node, inside: bool) -> Iterator[Scalar]:
    if inside and _selects(node):
        yield from list_bodies(node)
    else:
        yield from find_compared(list_bodies(node), selections)


def _selects(node: Node) -> bool:
    """Tell if an element of the result is made of one of each operand, as a sum is not."""
    match node:
        case Reduce() | Scan():
            return node.kind in _EXTREMES
        case _:
            return isinstance(node, Pointwise | Sort | Scatter)


# ---- Cast elision ----


def iter_choices(value: Scalar) -> Iterator[Scalar]:
    """Yield what `value` may be: itself, and, if it is a select, what that chooses from."""
    seen: set[Scalar] = set()
    stack = [value]
    while stack:
        one = stack.pop()
        if one not in seen:
            seen.add(one)
            yield one
            stack += _choices(one)


def elide_rounding(value: Scalar, dtype: DType) -> Scalar:
    """Return `value` as it was before it was rounded to bf16 or f16 from `dtype`.

    Of selects, what was rounded is taken as it was, and the rest converted. 8-bit floats are kept: a program
    rounds to them to see the effect.
    """
    if not value.dtype.is_low_precision or value.dtype.itemsize < 2:
        return value
    wide: dict[Scalar, Scalar | None] = {}
    stack = [value]
    while stack:
        one = stack[-1]
        waiting = [choice for choice in _choices(one) if choice not in wide]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        wide[one] = _find_unrounded(one, dtype, [wide[choice] for choice in _choices(one)])
    found = wide[value]
    return value if found is None else found


def _choices(value: Scalar) -> tuple[Scalar, ...]:
    return value.operands[1:] if isinstance(value, Op) and value.op == "where" else ()


def _find_unrounded(value: Scalar, dtype: DType, choices: list[Scalar | None]) -> Scalar | None:
    """`value` in `dtype`, if something was rounded for it; `choices` are its own."""
    match value:
        case Op(op="cast", operands=(inner,)) if inner.dtype is dtype:
            return inner
        case Op(op="where", operands=(condition, *rounded)) if any(one is not None for one in choices):
            then, otherwise = (
                _convert(one, dtype) if wide is None else wide
                for one, wide in zip(rounded, choices, strict=True)
            )
            return where(condition, then, otherwise)
        case _:
            return None


def _convert(value: Scalar, dtype: DType) -> Scalar:
    if isinstance(value, Const):
        return const(round_to_dtype(float(value.value), value.dtype), dtype)
    return cast(value, dtype)
