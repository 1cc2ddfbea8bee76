"""Decide where run-time index checks go when their producer is inlined.

A kernel checks positions where it visits all of them: it does so when it computes a value at the points where
others read it. It does not when the value goes into a scatter, or is read at other points: at positions from
data, as part of a concatenation, beside itself. There are two ways to inline such a value all the same:

- Forwarding: scatters that read every element of the value run its checks.
- Splitting: its positions become a node of their own, which keeps the checks and is small, because one
  position stands for a whole row. Whoever computes the value reads the checked positions, and so runs after
  the checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from coilwork_ir.buffers import Buffer, make_contiguous_strides
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_int,
    find_bounds,
    find_stride,
    get_extent,
    provably_eq,
    provably_positive,
    substitute,
    symbol,
)
from coilwork_ir.loops import Check, Graph, Node, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.loops.access import list_bodies
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Load,
    Op,
    Scalar,
    cast,
    find_index_symbols,
    iterate_postorder,
    list_loads,
    load,
    rewrite,
    substitute_ranges,
)
from coilwork_ir.target import Targets
from coilwork_scheduler.cost_model import SizeHints
from coilwork_scheduler.dependence import Dependence
from coilwork_scheduler.fusion.fusion_candidate import is_fusable
from coilwork_scheduler.fusion_group import make_stage
from coilwork_scheduler.inlining.cost import Computation, InlinedComputation
from coilwork_scheduler.optimization_remarks import Remarks

# ---- Forwarding to scatters ----


IsInlined: TypeAlias = Callable[[int, str], bool]
"""True if the node at a position computes the buffer of that name itself."""


def is_unfused_scatter(node: Node) -> bool:
    """Tell if `node` is a scatter whose kernel cannot run checks of what it reads.

    On GPUs some scatters share kernels, but only with what makes their values.
    """
    return isinstance(node, Scatter) and not is_fusable(make_stage(0, node), on_gpu=False)


def find_forwardable(
    graph: Graph, readers: Mapping[str, Sequence[int]], is_inlined: IsInlined
) -> frozenset[str]:
    """Find buffers whose transitive consumers are all scatters that read every element.

    Those scatters can run the producers' checks, if everything between is inlined as `is_inlined` says.
    `readers` are those of each buffer, from `index_readers`.
    """
    found: set[str] = set()
    nodes = graph.nodes
    for node in reversed(nodes):
        if not isinstance(node, Pointwise) or node.into is not None:
            continue
        name = node.output.name
        users = readers.get(name, ())
        if users and all(
            user < len(nodes)
            and is_inlined(user, name)
            and (is_unfused_scatter(nodes[user]) or _is_among(nodes[user], found))
            and _read_index(nodes[user], node) is not None
            for user in users
        ):
            found.add(name)
    return frozenset(found)


def _is_among(node: Node, names: Collection[str]) -> bool:
    return isinstance(node, Pointwise) and not node.checks and node.output.name in names


def _read_index(user: Node, node: Pointwise) -> tuple[Expr, ...] | None:
    """Return where `user` reads the result of `node`, over its own ranges.

    None unless it reads each point of `node`.
    """
    if not isinstance(user, Pointwise | Scatter):
        return None
    found = {access.index for access in list_loads(list_bodies(user)) if access.buffer == node.output.name}
    plain = all(
        not access.indirect and access.mask is None
        for access in list_loads(list_bodies(user))
        if access.buffer == node.output.name
    )
    if len(found) != 1 or not plain:
        return None
    (index,) = found
    used: set[Expr] = set()
    for own, place in zip(node.ranges, index, strict=True):
        extent = get_extent(own)
        if as_int(extent) == 1:
            continue
        if place not in user.ranges or place in used or not provably_eq(get_extent(place), extent):
            return None
        used.add(place)
    # where there is nothing along the other ranges, nothing is checked
    return index if all(provably_positive(get_extent(r)) for r in user.ranges if r not in used) else None


def forward_checks(
    user: Node,
    nodes: Mapping[str, Pointwise],
    expand: Callable[[tuple[Scalar, ...], str], tuple[Scalar, ...]],
) -> tuple[Check, ...]:
    """Return the checks of `nodes` that are computed inside `user`, over its ranges, dependences first.

    `nodes` are by name. `expand` inlines the node of a name into scalar graphs.
    """
    return tuple(dict.fromkeys(_checks(user, {}, nodes, expand)))


def _checks(
    user: Node,
    mapping: Mapping[Expr, Expr],
    nodes: Mapping[str, Pointwise],
    expand: Callable[[tuple[Scalar, ...], str], tuple[Scalar, ...]],
) -> Iterator[Check]:
    for name in dict.fromkeys(access.buffer for access in list_loads(list_bodies(user))):
        node = nodes.get(name)
        if node is None:
            continue
        index = _read_index(user, node)
        assert index is not None, f"%{name} is handed on"
        inner = {own: substitute(place, mapping) for own, place in zip(node.ranges, index, strict=True)}
        yield from _checks(node, inner, nodes, expand)
        conditions = substitute_ranges(tuple(check.condition for check in node.checks), inner)
        for check, condition in zip(node.checks, expand(conditions, name), strict=True):
            yield Check(condition=condition, message=check.message, error=check.error)


# ---- Splitting checked gathers ----


_I32_POINTS: Final = 1 << 31


PositionTable: TypeAlias = "dict[tuple[Scalar, tuple[Check, ...], tuple[Expr, ...], str], Buffer]"
"""Where positions are stored: by their value, their checks, the ranges that both are over, and the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGather:
    """A node split into checked positions and the gather at them.

    Attributes:
        nodes: nodes that store new positions, with their checks.
        stored: buffers of all positions.
        body: the gather, which reads these.
    """

    nodes: tuple[Pointwise, ...]
    stored: tuple[Buffer, ...]
    body: Scalar


def split_checked_gather(node: Pointwise, known: PositionTable, taken: Collection[str]) -> SplitGather | None:
    """Split `node`, which has checks; add what it stores to `known`, under names that are not `taken`.

    None if some check is of anything but one position that `node` looks something up at, or if the positions
    alone might have points where the node has none: nothing is checked where nothing is read.
    """
    checks = _group_checks(node)
    if checks is None:
        return None
    nodes: list[Pointwise] = []
    stored: list[Buffer] = []
    reads: dict[Scalar, Scalar] = {}
    for number, (value, own) in enumerate(checks.items()):
        used = find_index_symbols((value,))
        if not all(provably_positive(get_extent(r)) for r in node.ranges if r not in used):
            return None
        places = tuple(r for r in node.ranges if r in used)
        ranges = tuple(symbol(f"i{k}", extent=get_extent(r)) for k, r in enumerate(places))
        moved = dict(zip(places, ranges, strict=True))
        found, *conditions = substitute_ranges((value, *(check.condition for check in own)), moved)
        moved_checks = tuple(
            Check(condition=condition, message=check.message, error=check.error)
            for condition, check in zip(conditions, own, strict=True)
        )
        key = (found, moved_checks, ranges, node.output.device)
        buffer = known.get(key)
        if buffer is None:
            name = f"{node.output.name}_positions{number or ''}"
            if name in taken:
                return None
            dtype = _pick_index_type(value, own)
            shape = tuple(get_extent(r) for r in ranges)
            buffer = known[key] = Buffer(
                name=name,
                dtype=dtype,
                shape=shape,
                strides=make_contiguous_strides(shape),
                device=node.output.device,
            )
            nodes.append(
                Pointwise(
                    output=buffer,
                    ranges=ranges,
                    body=_cast_to(found, dtype),
                    checks=moved_checks,
                    origins=node.origins,
                )
            )
        stored.append(buffer)
        reads[value] = _cast_to(load(buffer.name, places, buffer.dtype), value.dtype)
    (body,) = rewrite((node.body,), lambda scalar: reads.get(scalar, scalar))
    return SplitGather(nodes=tuple(nodes), stored=tuple(stored), body=body)


def _group_checks(node: Pointwise) -> dict[Scalar, list[Check]] | None:
    """Return the checks of `node` by the position that each is of; None if one is of something else, or
    positions depend on others.
    """
    looked_up = tuple(
        dict.fromkeys(value for access in list_loads((node.body,)) for value in access.indirect)
    )
    checks: dict[Scalar, list[Check]] = {}
    for check in node.checks:
        found = [value for value in looked_up if _is_about(check.condition, value)]
        if len(found) != 1:
            return None
        checks.setdefault(found[0], []).append(check)
    nested = any(
        inner is not value and inner in checks for value in checks for inner in iterate_postorder((value,))
    )
    return None if nested else checks


def _cast_to(value: Scalar, dtype: DType) -> Scalar:
    return value if value.dtype is dtype else cast(value, dtype)


def _is_about(condition: Scalar, value: Scalar) -> bool:
    """Tell if `condition` reads nothing but what goes into `value`, which is part of it."""
    pending, seen = [condition], {condition}
    found = False
    while pending:
        node = pending.pop()
        if node is value:
            found = True
            continue
        if isinstance(node, Load):
            return False
        fresh = [operand for operand in node.operands if operand not in seen]
        seen.update(fresh)
        pending += fresh
    return found


def _pick_index_type(value: Scalar, checks: Sequence[Check]) -> DType:
    """Return the type for stored positions: 32 bits where `checks` leave no larger ones."""
    for check in checks:
        for node in iterate_postorder((check.condition,)):
            if isinstance(node, Op) and node.op == "lt" and node.operands[0] is value:
                most = _max_value(node.operands[1])
                if most is not None and most <= _I32_POINTS:
                    return DType.I32
    return value.dtype


def _max_value(value: Scalar) -> int | None:
    """Return the largest value of a size; None if that is not known."""
    match value:
        case IndexValue(expr=expr, operands=()):
            return find_bounds(expr).hi
        case Const(value=number):
            return int(number)
        case _:
            return None


# ---- Placement ----


# A position is written and read where what it stands for need not be.
_WRITTEN_AND_READ: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """The fate of the checks of candidates.

    Attributes:
        rejected: candidates that are better stored.
        forwarded: those whose checks scatters take over.
    """

    rejected: frozenset[str] = frozenset()
    forwarded: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class CheckPlacement:
    """Decides for the pointwise nodes of one graph that have checks.

    Attributes:
        graph, facts: the loop graph and its dependences.
        targets: the devices.
        sizes: likely sizes.
        readers: nodes that read each buffer, from `index_readers`.
        us: estimates the time of a kernel from the bytes that it reads and writes.
    """

    graph: Graph
    facts: Dependence
    readers: Mapping[str, Sequence[int]]
    targets: Targets
    sizes: SizeHints
    us: Callable[[float, float], float]
    _names: frozenset[str] = frozenset()
    _forwarded: frozenset[str] = frozenset()
    _rejected: frozenset[str] = frozenset()
    _shifted: dict[int, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(isinstance(node, Pointwise) and node.checks for node in self.graph.nodes):
            self._names = self._find_unchecked(_accept_any_user)
            self._forwarded = find_forwardable(self.graph, self.readers, _accept_any_user)

    def should_sink(self, node: Pointwise, remarks: Remarks) -> bool:
        """Tell if `node` should be computed without its checks, by its readers."""
        name = node.output.name
        if name not in self._names or name in self._rejected:
            return False
        reason = self._drawback(node, forwarded=name in self._forwarded)
        if reason:
            remarks.note("inline", (name,), False, reason)
        return reason is None

    def _drawback(self, node: Pointwise, *, forwarded: bool) -> str | None:
        """Return why `node` should keep its checks, "" if it must; None if it should be computed without."""
        name, size = node.output.name, self.sizes.size_bytes(node.output)
        target = self.targets.of(node.output.device)
        users = self.readers[name]
        # Shorter rows are fetched once on a GPU, as it would fetch as much again for another consumer; and by
        # all threads on a CPU, as few of them share a scatter.
        is_short = self._row_bytes(node) < target.machine.memory.fetched_bytes
        if is_short and (len(users) > 1 or not target.is_gpu):
            return "what it looks up at a position is too short to be fetched again"
        if forwarded:
            return None
        split = split_checked_gather(node, {}, self.facts.buffers)
        if split is None:
            return ""
        if _WRITTEN_AND_READ * sum(self.sizes.size_bytes(buffer) for buffer in split.stored) > size:
            return "its checked positions would take as much memory as it does"
        held = [user for user in users if not self._loses_checks(user, name, self._names)]
        if held and self.us(size, size) - self.us(0, 0) < target.launch_us:
            return "it shares a kernel with a consumer, and is small"
        return None

    def _row_bytes(self, node: Pointwise) -> int:
        """Bytes that `node` looks up at a position."""
        points = 1
        for check in node.checks:
            used = find_index_symbols((check.condition,))
            points = max(points, self.sizes.numel(tuple(get_extent(r) for r in node.ranges if r in used)))
        return self.sizes.size_bytes(node.output) // points

    def reject(self, names: Collection[str]) -> None:
        """Leave the checks of `names` where they are."""
        self._rejected = self._rejected.union(names)

    def place(self, candidates: Mapping[str, int], facts: Mapping[int, InlinedComputation]) -> CheckOutcome:
        """Return what becomes of the checks of `candidates`, which are computed where `facts` say."""
        nodes = [node for at in candidates.values() if isinstance(node := self.graph.nodes[at], Pointwise)]
        with_checks = [node for node in nodes if node.checks]
        if not with_checks:
            return CheckOutcome()

        def is_inlined(user: int, name: str) -> bool:
            return name in candidates and user in facts and name in facts[user].inlined

        going, forwarded = (
            self._find_unchecked(is_inlined),
            find_forwardable(self.graph, self.readers, is_inlined),
        )
        rejected = {
            node.output.name
            for node in with_checks
            if node.output.name not in forwarded
            and (node.output.name not in going or self._drawback(node, forwarded=False) is not None)
        }
        return CheckOutcome(rejected=frozenset(rejected), forwarded=forwarded)

    def _find_unchecked(self, is_inlined: IsInlined) -> frozenset[str]:
        """Find results of pointwise nodes that reach a reader that cannot run their checks.

        They may do so through other nodes that inline them, as `is_inlined` says.
        """
        found: set[str] = set()
        nodes = self.graph.nodes
        for node in reversed(nodes):
            if not isinstance(node, Pointwise) or node.into is not None:
                continue
            name = node.output.name
            users = self.readers.get(name, ())
            if any(user == len(nodes) or not isinstance(nodes[user], Computation) for user in users):
                # the caller wants it, or an operator: it is stored
                continue
            if any(is_inlined(user, name) and self._loses_checks(user, name, found) for user in users):
                found.add(name)
        return frozenset(found)

    def _loses_checks(self, user: int, name: str, found: Collection[str]) -> bool:
        """Tell if `user` reads `name` where its checks do not run. `found` are such results of later
        nodes.
        """
        match node := self.graph.nodes[user]:
            case Pointwise(checks=(), output=output) if output.name in found:
                return True
            case Pointwise() | Reduce() | Scan() | Sort():
                if user not in self._shifted:
                    self._shifted[user] = self._find_shifted_reads(node)
                return name in self._shifted[user]
            case _:
                return is_unfused_scatter(node)

    def _find_shifted_reads(self, user: Node) -> frozenset[str]:
        """Buffers that `user` reads at other points than its own, so that it shares no kernel with who
        computes them.
        """
        places: dict[str, tuple[Expr, ...]] = {}
        found: set[str] = set()
        for access in list_loads(list_bodies(user)):
            shape = self.facts.buffers[access.buffer].shape
            moved = any(_is_moved(e, size) for e, size in zip(access.index, shape, strict=True))
            same = places.setdefault(access.buffer, access.index) == access.index
            if access.indirect or access.mask is not None or moved or not same:
                found.add(access.buffer)
        return frozenset(found)


def _is_moved(place: Expr, size: Expr) -> bool:
    """Tell whether `place` goes through a dimension of `size` in part, from elsewhere or by steps, along one
    range or none.
    """
    symbols = tuple(place.free_symbols)
    if len(symbols) != 1 or symbols[0].extent is None:
        return not symbols and as_int(size) != 1
    (along,) = symbols
    if place is along:
        return not provably_eq(get_extent(along), size)
    return find_stride(place, along) is not None


def _accept_any_user(user: int, name: str) -> bool:
    return True
