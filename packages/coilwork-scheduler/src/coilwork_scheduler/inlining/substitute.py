"""Substitute producers into the scalar graphs that load from them, and rewrite a graph so.

A load of a producer's buffer at coordinates `c` becomes the producer's body with its ranges replaced by `c`.
Values that `c` looks up go along. A mask of the load is pushed down to every load of the body that needs it,
and where it is false the load's `other` is selected. The substitution is iterative and linear in the number
of nodes made: chains may be long.

`Guards` says which loads need the mask (predicated inlining). A mask keeps loads away from places that do not
exist, and its result is selected again behind the producer, so two kinds of loads go without:

- A load whose index has nothing to do with the mask reads an element that is read anyway, as long as the mask
  holds somewhere. One value per row below a padding of columns stays one load per row, instead of one per
  point. If the load has a mask of its own that involves the other one, there may be no such point.
- A load that stays within its buffer even where the mask is false, if that is hardly anywhere: rows that are
  padded in memory as they are in the result. It can be 16 bytes wide whatever the mask's length.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from types import MappingProxyType
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import (
    Expr,
    as_int,
    evaluate,
    find_bounds,
    find_coefficients,
    provably_lt,
    provably_nonneg,
    substitute,
)
from coilwork_ir.loc import merge_origins
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    const,
    index_value,
    iterate_postorder,
    load,
    op,
    placeholder,
    replace_operands,
    where,
)
from coilwork_scheduler.inlining.check_sinking import (
    PositionTable,
    SplitGather,
    forward_checks,
    split_checked_gather,
)
from coilwork_scheduler.inlining.cost import Computation, InlinedComputation

# ---- Predicates ----


# Symbols of a mask of which every combination of a few places is tried.
_MOST_SYMBOLS: Final = 3
# Places along a range at which a mask is tried.
_PLACES: Final = 64
# Share of a range that a mask may leave out for loads to go without it: what they read in vain.
_HARDLY: Final = 1 / 32
COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = MappingProxyType(
    {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
)
# A comparison whose sides both change their sign.
_TURNED: Final[Mapping[str, str]] = MappingProxyType({"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"})


class Guards:
    """Says which masks the loads over `buffers` need."""

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers
        self._split_mask: dict[Scalar, tuple[_Condition, ...]] = {}
        self._possible: dict[tuple[Scalar, ...], bool] = {}

    def narrow_mask(
        self, mask: Scalar, buffer: str, index: Sequence[Expr], own: Scalar | None = None
    ) -> Scalar | None:
        """Return the part of `mask` that a load of `buffer` at `index` needs, beside its `own` mask.

        The load looks nothing up.
        """
        conditions = self._split_mask.get(mask)
        if conditions is None:
            conditions = self._split_mask[mask] = tuple(_split_mask(mask))
        shape = self._buffers[buffer].shape
        guarding = [c for c in conditions if not (c.leaves_little and _stays_inside(c, index, shape))]
        touched = frozenset().union(*(e.free_symbols for e in index), () if own is None else _symbols(own))
        # what is about places that have to do with the load's, and with each other
        kept: list[_Condition] = []
        while more := [c for c in guarding if c not in kept and not c.symbols.isdisjoint(touched)]:
            kept += more
            touched = touched.union(*(c.symbols for c in more))
        apart = tuple(c.value for c in guarding if c not in kept)
        if apart:
            if apart not in self._possible:
                self._possible[apart] = _holds_somewhere(apart)
            if not self._possible[apart]:
                return mask
        if len(kept) == len(conditions):
            return mask
        return (
            reduce(lambda left, right: op("bitwise_and", left, right), (c.value for c in kept))
            if kept
            else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """One of the conditions that make up a mask, the `symbols` in it, and whether it leaves little of a range
    out.
    """

    value: Scalar
    symbols: frozenset[Expr]
    leaves_little: bool


def _split_mask(mask: Scalar) -> Iterator[_Condition]:
    """Return what has to hold for `mask` to hold, in order."""
    pending = [mask]
    while pending:
        value = pending.pop()
        if isinstance(value, Op) and value.op == "bitwise_and":
            pending.extend(reversed(value.operands))
            continue
        yield _Condition(value=value, symbols=_symbols(value), leaves_little=_leaves_little(value))


def _symbols(value: Scalar) -> frozenset[Expr]:
    """Return the symbols of the places that `value` is about."""
    symbols: set[Expr] = set()
    for node in iterate_postorder((value,)):
        if isinstance(node, IndexValue):
            symbols |= node.expr.free_symbols
        elif isinstance(node, Load):
            symbols = symbols.union(*(e.free_symbols for e in node.index))
    return frozenset(symbols)


def _stays_inside(condition: _Condition, index: Sequence[Expr], shape: Sequence[Expr]) -> bool:
    """Tell if the coordinates that `condition` concerns stay inside the buffer without it."""
    concerned = [
        (e, size)
        for e, size in zip(index, shape, strict=True)
        if not condition.symbols.isdisjoint(e.free_symbols)
    ]
    return bool(concerned) and all(provably_nonneg(e) and provably_lt(e, size) for e, size in concerned)


def _leaves_little(value: Scalar) -> bool:
    """Tell if `value` holds up to nearly the end of what its positions can be."""
    match value:
        case Op(op="lt", operands=(IndexValue(expr=position, operands=()), Const(value=end))):
            limit = int(end)
        case Op(
            op="lt", operands=(IndexValue(expr=position, operands=()), IndexValue(expr=end, operands=()))
        ):
            limit = as_int(end) or 0
        case _:
            return False
    last = find_bounds(position).hi
    return last is not None and (1 - _HARDLY) * (last + 1) <= limit


def estimate_share(mask: Scalar | None) -> float:
    """Estimate the share of points that `mask` lets through, from its conditions on ranges of known
    extent.
    """
    if mask is None:
        return 1.0
    along: dict[Expr, list[Scalar]] = {}
    for condition in _split_mask(mask):
        order = tuple(iterate_postorder((condition.value,)))
        plain = all(
            isinstance(v, IndexValue | Const) or (isinstance(v, Op) and v.op in COMPARISONS) for v in order
        )
        if plain and len(condition.symbols) == 1:
            (symbol,) = condition.symbols
            along.setdefault(symbol, []).append(condition.value)
    result = 1.0
    for symbol, values in along.items():
        extent = None if symbol.extent is None else as_int(symbol.extent)
        if extent is not None and extent > 0:
            result *= _share_along(symbol, extent, values)
    return result


def _share_along(symbol: Expr, extent: int, values: Sequence[Scalar]) -> float:
    """Return the share of the places along `symbol` at which all `values` hold; places are tried where it
    can't be counted.
    """
    runs = [_places_of(value, symbol, extent) for value in values]
    if None not in runs:
        # a few rows of many: places that are tried would miss them, or find one of them by chance
        first = max(run.start for run in runs if run is not None)
        end = min(run.stop for run in runs if run is not None)
        return max(end - first, 0) / extent
    order = tuple(iterate_postorder(values))
    count = min(extent, _PLACES)
    places = [(2 * k + 1) * extent // (2 * count) for k in range(count)]
    return sum(_hold(order, values, {symbol.name: place}) for place in places) / count


def _places_of(value: Scalar, symbol: Expr, extent: int) -> range | None:
    """Return the places along `symbol` at which a comparison of positions that grow evenly holds, which are a
    run; None for others.
    """
    match value:
        case Op(op=name, operands=(left, right)) if name in COMPARISONS:
            lines = _line(left, symbol), _line(right, symbol)
        case _:
            return None
    if lines[0] is None or lines[1] is None:
        return None
    slope, start = lines[0][0] - lines[1][0], lines[0][1] - lines[1][1]
    if slope == 0:
        return range(extent if COMPARISONS[name](start, 0) else 0)
    if slope < 0:
        slope, start, name = -slope, -start, _TURNED[name]
    # where the difference of the sides reaches 0, and where it is above
    reached, above = -(start // slope), -start // slope + 1
    first, end = {
        "lt": (0, reached),
        "le": (0, above),
        "gt": (above, extent),
        "ge": (reached, extent),
    }[name]
    return range(min(max(first, 0), extent), min(max(end, 0), extent))


def _line(value: Scalar, symbol: Expr) -> tuple[int, int] | None:
    """Return by how much a position grows at each step along `symbol`, and where it starts; None if it does
    not grow evenly.
    """
    match value:
        case Const(value=number) if number == int(number):
            return 0, int(number)
        case IndexValue(expr=expr, operands=()):
            found = find_coefficients(expr, (symbol,))
        case _:
            return None
    if found is None:
        return None
    slope, start = as_int(found[0][0]), as_int(found[1])
    return None if slope is None or start is None else (slope, start)


def _holds_somewhere(values: tuple[Scalar, ...]) -> bool:
    """Tell if `values`, if they say nothing but where their symbols are, hold together somewhere."""
    order = tuple(iterate_postorder(values))
    symbols: set[Expr] = set()
    for node in order:
        match node:
            case IndexValue(expr=expr, operands=()):
                symbols |= expr.free_symbols
            case Const() | Op(op="lt" | "le" | "gt" | "ge"):
                pass
            case _:
                return False
    places: list[tuple[int, ...]] = []
    ordered = sorted(symbols, key=lambda s: s.name)
    for symbol in ordered:
        extent = None if symbol.extent is None else as_int(symbol.extent)
        if extent is None or extent < 1 or len(symbols) > _MOST_SYMBOLS:
            return False
        places.append((0, (extent - 1) // 2, extent - 1))
    names = [symbol.name for symbol in ordered]
    return any(_hold(order, values, dict(zip(names, point, strict=True))) for point in product(*places))


def _hold(order: Sequence[Scalar], values: Sequence[Scalar], point: Mapping[str, int]) -> bool:
    """Tell if all `values` hold at `point`; `order` is what they are made of."""
    known: dict[Scalar, int] = {}
    for node in order:
        match node:
            case IndexValue(expr=expr):
                known[node] = evaluate(expr, point)
            case Const(value=value):
                known[node] = int(value)
            case Op(op=name, operands=(left, right)):
                known[node] = COMPARISONS[name](known[left], known[right])
            case _:
                raise AssertionError(f"{type(node).__name__} in a mask of places")
    return all(known[value] for value in values)


# ---- Substitution ----


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
        outer = _Frame(_order_unmasked_first(roots), inlined, {}, (), None, None)
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
        mask = _join_optional_masks(frame.mask, own_mask)
        if node.buffer not in frame.inlined:
            if frame.mask is not None and not indirect:
                mask = _join_optional_masks(
                    self._guards.narrow_mask(frame.mask, node.buffer, index, own_mask), own_mask
                )
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
            order = _order_unmasked_first((producer.body,))
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


def _order_unmasked_first(roots: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Return the nodes of `roots`, operands first; loads that need nothing else stand in front.

    A producer that is loaded with a mask and without one is thus expanded without it first.
    """
    order = tuple(iterate_postorder(roots))
    leaves = tuple(node for node in order if isinstance(node, Load) and not node.operands)
    early = frozenset(leaves)
    return leaves + tuple(node for node in order if node not in early)


def _join_optional_masks(first: Scalar | None, second: Scalar | None) -> Scalar | None:
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


# ---- Rewriting the graph ----


def apply_inlining(
    graph: Graph,
    facts: Mapping[int, InlinedComputation],
    candidates: Mapping[str, int],
    forwarded: Collection[str],
    readers: Mapping[str, Sequence[int]],
    buffers: Mapping[str, Buffer],
) -> Graph:
    """Compute `candidates`, producers by name, inside the nodes of `graph` whose `facts` inline them.

    Scatters take over the checks of candidates that are `forwarded` on; others with checks are split.
    Producers that nobody reads any more are left for dead code removal.
    """
    apart = _split_checked_gathers(
        graph, {n: at for n, at in candidates.items() if n not in forwarded}, buffers
    )
    with_checks = {
        n: node
        for n, at in candidates.items()
        if n in forwarded and isinstance(node := graph.nodes[at], Pointwise)
    }
    stored = {buffer.name: buffer for found in apart.values() for buffer in found.stored}
    producers: dict[str, Producer] = {}
    expander = Expander(producers, {**buffers, **stored})
    for position in sorted(candidates.values()):
        node = graph.nodes[position]
        assert isinstance(node, Pointwise)
        body, inlined = node.body, facts[position].inlined
        if position in apart:
            body = apart[position].body
        if facts[position].composed:
            (body,), inlined = expander.expand((body,), inlined), frozenset()
        producers[node.output.name] = Producer(ranges=node.ranges, body=body, inlined=inlined)

    def stays(node: Node) -> bool:
        """False for a producer that every reader inlines: it is about to be removed, so leave its
        body alone.
        """
        if not isinstance(node, Pointwise) or node.output.name not in candidates:
            return True
        name = node.output.name
        return any(
            reader not in facts or name not in facts[reader].inlined for reader in readers.get(name, ())
        )

    def expand(values: tuple[Scalar, ...], name: str) -> tuple[Scalar, ...]:
        return expander.expand(values, facts[candidates[name]].inlined)

    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        own = facts.get(position)
        parts: tuple[Node, ...] = (node,)
        if position in apart:
            assert isinstance(node, Pointwise)
            parts = (*apart[position].nodes, replace(node, body=apart[position].body, checks=()))
        elif isinstance(node, Pointwise) and node.checks and node.output.name in with_checks:
            parts = (replace(node, checks=()),)
        for part in parts:
            if own is None or not own.inlined or not stays(part):
                nodes.append(part)
                continue
            assert isinstance(part, Pointwise | Reduce | Scan | Sort | Scatter)
            values = expander.expand(list_bodies(part), own.inlined)
            origins = merge_origins(*(graph.nodes[p].origins for p in sorted(own.closure)))
            whole = replace_bodies(part, values)
            if isinstance(part, Scatter):
                whole = replace(whole, checks=(*forward_checks(part, with_checks, expand), *whole.checks))
            nodes.append(replace(whole, origins=origins))
    return replace(graph, nodes=tuple(nodes))


def _split_checked_gathers(
    graph: Graph, candidates: Mapping[str, int], buffers: Mapping[str, Buffer]
) -> dict[int, SplitGather]:
    """Return the `candidates` that have checks, by place, taken apart in order: those after the first to look
    up the same share its positions.
    """
    known: PositionTable = {}
    found: dict[int, SplitGather] = {}
    for position in sorted(candidates.values()):
        node = graph.nodes[position]
        if isinstance(node, Pointwise) and node.checks:
            apart = split_checked_gather(node, known, buffers)
            assert apart is not None, f"%{node.output.name} is a candidate for its positions"
            found[position] = apart
    return found


def replace_bodies(node: Computation, values: tuple[Scalar, ...]) -> Computation:
    """`node` with the scalar graphs that `bodies` lists replaced."""
    count = len(values) - len(node.checks)
    checks = tuple(
        Check(condition=condition, message=check.message, error=check.error)
        for condition, check in zip(values[count:], node.checks, strict=True)
    )
    if isinstance(node, Scatter):
        end = 1 + len(node.indirect)
        mask = values[end] if node.mask is not None else None
        return replace(node, value=values[0], indirect=values[1:end], mask=mask, checks=checks)
    if isinstance(node, Scan):
        return replace(node, body=values[0], others=values[1:count], checks=checks)
    return replace(node, body=values[0], checks=checks)
