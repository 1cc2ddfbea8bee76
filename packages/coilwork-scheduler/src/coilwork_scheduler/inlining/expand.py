"""Substitution of producers into the scalar graphs that load from them.

A load of a producer's buffer at coordinates `c` becomes the producer's body with its ranges replaced by `c`.
Values that `c` looks up indirectly go along, a mask of the load is pushed down to every load of the body that
needs it, and where it is false the load's `other` is selected. Iterative, and linear in the number of nodes
made: chains may be long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr, substitute
from coilwork_ir.scalar import (
    IndexValue,
    Load,
    Scalar,
    const,
    index_value,
    load,
    op,
    placeholder,
    postorder,
    replace_operands,
    where,
)
from coilwork_scheduler.inlining.guarded import Guards


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """A pointwise computation that may be substituted; loads of `inlined` buffers in its body are
    so in turn.
    """

    ranges: tuple[Expr, ...]
    body: Scalar
    inlined: frozenset[str]


Key = tuple[str, tuple[Expr, ...], tuple[Scalar, ...], Scalar | None]


@dataclass(slots=True)
class _Frame:
    """One graph being rewritten: `mapping` may use placeholders for `indirect`; `mask` guards all of its
    loads.
    """

    order: Sequence[Scalar]
    inlined: frozenset[str]
    mapping: Mapping[Expr, Expr]
    indirect: tuple[Scalar, ...]
    mask: Scalar | None
    key: Key | None
    at: int = 0
    done: dict[Scalar, Scalar] = field(default_factory=dict)


class Expander:
    """Substitutes `producers`, by buffer name; remembers each producer at each place."""

    def __init__(self, producers: Mapping[str, Producer], buffers: Mapping[str, Buffer]) -> None:
        self._producers = producers
        self._known: dict[Key, Scalar] = {}
        # what the graph that is being expanded computes at all of its points
        self._everywhere: set[Key] = set()
        self._guards = Guards(buffers)

    def expand(self, roots: Sequence[Scalar], inlined: frozenset[str]) -> tuple[Scalar, ...]:
        """`roots` with the loads of the `inlined` buffers replaced."""
        self._everywhere.clear()
        outer = _Frame(_unmasked_first(roots), inlined, {}, (), None, None)
        stack = [outer]
        while stack:
            frame = stack[-1]
            child = self._advance(frame)
            if child is not None:
                stack.append(child)
                continue
            stack.pop()
            if frame.key is not None:
                self._known[frame.key] = frame.done[frame.order[-1]]
        return tuple(outer.done[root] for root in roots)

    def _advance(self, frame: _Frame) -> _Frame | None:
        """Rewrite nodes of `frame` until it is complete or a producer must be expanded first; return that."""
        while frame.at < len(frame.order):
            node = frame.order[frame.at]
            operands = [frame.done[operand] for operand in node.operands]
            match node:
                case Load():
                    value, child = self._load(frame, node, operands)
                    if child is not None:
                        return child
                    assert value is not None
                    frame.done[node] = value
                case IndexValue() if frame.mapping:
                    (expr,), indirect = _compose((node.expr,), operands, frame)
                    frame.done[node] = index_value(expr, indirect)
                case _:
                    frame.done[node] = replace_operands(node, operands)
            frame.at += 1
        return None

    def _load(self, frame: _Frame, node: Load, operands: list[Scalar]) -> tuple[Scalar | None, _Frame | None]:
        count = len(node.indirect)
        own_mask = operands[count] if node.mask is not None else None
        index, indirect = _compose(node.index, operands[:count], frame)
        mask = _both(frame.mask, own_mask)
        if node.buffer not in frame.inlined:
            if frame.mask is not None and not indirect:
                mask = _both(self._guards.needed(frame.mask, node.buffer, index, own_mask), own_mask)
            return load(node.buffer, index, node.dtype, indirect=indirect, mask=mask, other=node.other), None
        key: Key = (node.buffer, index, indirect, mask)
        value = self._known.get(key)
        if mask is None:
            self._everywhere.add(key)
        elif value is None and (bare := (node.buffer, index, indirect, None)) in self._everywhere:
            # computed at all points in any case: a second copy behind a mask would be work for nothing, and
            # where each step reads the one before twice, copies would double with every step
            value = self._known.get(bare)
        if value is None:
            producer = self._producers[node.buffer]
            mapping = dict(zip(producer.ranges, index, strict=True))
            order = _unmasked_first((producer.body,))
            return None, _Frame(order, producer.inlined, mapping, indirect, mask, key)
        if own_mask is None:
            return value, None
        if isinstance(value, Load) and value.mask is mask:
            # a plain copy: the mask that guards the access selects as well
            return (
                load(
                    value.buffer,
                    value.index,
                    value.dtype,
                    indirect=value.indirect,
                    mask=mask,
                    other=node.other,
                ),
                None,
            )
        return where(own_mask, value, const(node.other, node.dtype)), None


def _unmasked_first(roots: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return the nodes of `roots`, operands first; loads that need nothing else stand in front.

    A producer that is loaded with a mask and without one is thus expanded without it first.
    """
    order = tuple(postorder(roots))
    leaves = tuple(node for node in order if isinstance(node, Load) and not node.operands)
    early = frozenset(leaves)
    return leaves + tuple(node for node in order if node not in early)


def _both(first: Scalar | None, second: Scalar | None) -> Scalar | None:
    if first is None or first is second:
        return second
    return first if second is None else op("bitwise_and", first, second)


def _compose(
    exprs: tuple[Expr, ...], own: Sequence[Scalar], frame: _Frame
) -> tuple[tuple[Expr, ...], tuple[Scalar, ...]]:
    """`exprs`, which use placeholders for `own`, over the frame's mapping, and the values its placeholders
    stand for.
    """
    if not frame.mapping:
        return exprs, tuple(own)
    mapping = frame.mapping
    if frame.indirect and own:
        shift = {placeholder(k): placeholder(k + len(own)) for k in range(len(frame.indirect))}
        mapping = {symbol: substitute(expr, shift) for symbol, expr in mapping.items()}
    combined = (*own, *frame.indirect)
    result = tuple(substitute(expr, mapping) for expr in exprs)
    if not combined:
        return result, ()
    used = frozenset().union(*(expr.free_symbols for expr in result))
    renumber: dict[Expr, Expr] = {}
    kept: dict[Scalar, int] = {}
    for position, value in enumerate(combined):
        if placeholder(position) in used:
            number = kept.setdefault(value, len(kept))
            renumber[placeholder(position)] = placeholder(number)
    return tuple(substitute(expr, renumber) for expr in result), tuple(kept)
