"""Loop nodes in one common form (`Stage`), and groups of them that become one kernel (`Group`).

A stage has parallel and reduction ranges, and stores whose values are scalar graphs that hold reductions and
scans as nodes. Ranges of extent 1 are dropped. A domain without points has one range, of extent 0. A group
maps the ranges of its stages to the ranges of one space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, get_extent, substitute
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops import Check, Pointwise, Reduce, Scan, Scatter, Sort
from coilwork_ir.ops import REDUCE_OPS, StoreMode
from coilwork_ir.scalar import Scalar, const, index_value, op, reduce, scan, sort, substitute_ranges

# ---- Stages ----


StageKind = Literal["pointwise", "reduce", "scan", "sort", "scatter"]
Computation: TypeAlias = Pointwise | Reduce | Scan | Sort | Scatter
_ZERO: Final = as_expr(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStore:
    """A store: `buffer[index] <mode>= value` where `mask`; `index` has one expression per dimension.

    `covers` and `sparse` are those of a `Scatter`.
    """

    buffer: str
    index: tuple[Expr, ...]
    value: Scalar
    indirect: tuple[Scalar, ...] = ()
    mode: StoreMode = "store"
    mask: Scalar | None = None
    covers: bool = False
    sparse: bool = False

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar graph of the store."""
        mask = () if self.mask is None else (self.mask,)
        return (self.value, *self.indirect, *mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One computation.

    Attributes:
        position: of its node in the graph.
        kind: what kind of node it was.
        parallel, reduced: range symbols, outermost first.
        stores: what it writes.
        checks: run-time checks over the same ranges.
        into: pairs (new buffer, old buffer) for overwritten memory.
        split: how many programs share a row of it.
        origins: operations it implements.
    """

    position: int
    kind: StageKind
    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    stores: tuple[StageStore, ...]
    checks: tuple[Check, ...] = ()
    into: tuple[tuple[str, str], ...] = ()
    split: int = 1
    origins: tuple[Origin, ...] = UNKNOWN

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """Every scalar graph of the stage."""
        values = tuple(s for store in self.stores for s in store.scalars)
        return (*values, *(check.condition for check in self.checks))

    @property
    def empty(self) -> bool:
        """True if it is known to have no point to compute."""
        return any(get_extent(s) is _ZERO for s in (*self.parallel, *self.reduced))


def make_stage(position: int, node: Computation) -> Stage:
    """Return the stage that computes `node`."""
    axes = node.axes if isinstance(node, Reduce) else (node.axis,) if isinstance(node, Scan | Sort) else ()
    parallel, gone_parallel = _drop_unit_ranges(tuple(r for r in node.ranges if r not in axes))
    # a scan or sort over one element still runs over its axis
    reduced, gone_reduced = _drop_unit_ranges(axes) if not isinstance(node, Scan | Sort) else (axes, {})
    gone = {**gone_parallel, **gone_reduced}
    coordinates = tuple(gone.get(r, r) for r in node.ranges)
    checks = _substitute_checks(node.checks, gone)
    into: tuple[tuple[str, str], ...] = ()
    kind: StageKind
    stores: tuple[StageStore, ...]
    match node:
        case Pointwise():
            (body,) = substitute_ranges((node.body,), gone) if gone else (node.body,)
            stores = (StageStore(buffer=node.output.name, index=coordinates, value=body),)
            kind = "pointwise"
            into = () if node.into is None else ((node.output.name, node.into),)
        case Reduce():
            (body,) = substitute_ranges((node.body,), gone) if gone else (node.body,)
            stores = tuple(
                StageStore(buffer=b.name, index=coordinates, value=_reduction(node, body, reduced, k))
                for k, b in enumerate(node.outputs)
                if b is not None
            )
            kind = "reduce" if reduced else "pointwise"
        case Scan():
            values = (node.body, *node.others)
            body, *others = substitute_ranges(values, gone) if gone else values
            stores = tuple(
                StageStore(
                    buffer=b.name,
                    index=coordinates,
                    value=scan(node.kind, body, node.axis, others=others, output=k, reverse=node.reverse),
                )
                for k, b in enumerate(node.outputs)
                if b is not None
            )
            kind = "scan"
        case Sort():
            (body,) = substitute_ranges((node.body,), gone) if gone else (node.body,)
            stores = _sort_stores(node, body, coordinates)
            kind = "sort"
        case _:
            stores = (_scatter_store(node, gone),)
            kind = "scatter"
            into = () if node.into is None else ((node.output.name, node.into),)
    return Stage(
        position=position,
        kind=kind,
        parallel=parallel,
        reduced=reduced,
        stores=stores,
        checks=checks,
        into=into,
        split=node.split if isinstance(node, Scan) else 1,
        origins=node.origins,
    )


def _drop_unit_ranges(ranges: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], dict[Expr, Expr]]:
    """Ranges that are kept, and values for the others."""
    for symbol in ranges:
        if as_int(get_extent(symbol)) == 0:
            return (symbol,), {other: _ZERO for other in ranges if other is not symbol}
    kept = tuple(s for s in ranges if as_int(get_extent(s)) != 1)
    return kept, {s: _ZERO for s in ranges if s not in kept}


def _substitute_checks(checks: tuple[Check, ...], gone: Mapping[Expr, Expr]) -> tuple[Check, ...]:
    if not gone or not checks:
        return checks
    conditions = substitute_ranges(tuple(c.condition for c in checks), gone)
    return tuple(
        Check(condition=condition, message=check.message, error=check.error)
        for condition, check in zip(conditions, checks, strict=True)
    )


def _reduction(node: Reduce, body: Scalar, axes: tuple[Expr, ...], output: int) -> Scalar:
    if axes:
        return reduce(node.kind, (body,), axes, output=output)
    # over one element: the combination of a value with nothing
    match node.kind:
        case "argmin" | "argmax":
            return const(0, DType.I64)
        case "welford" if output == 1:
            # zero, but nan for infinities, as the mean of squared differences gives
            return op("sub", body, body)
        case "online_softmax" if output == 1:
            return op("exp", op("sub", body, body))
        case _:
            assert node.kind in REDUCE_OPS
            return body


def _sort_stores(node: Sort, body: Scalar, coordinates: tuple[Expr, ...]) -> tuple[StageStore, ...]:
    """The whole row is sorted; of some rows only the first elements are kept."""
    mask = None
    if node.count is not None and node.count is not get_extent(node.axis):
        mask = op("lt", index_value(node.axis), index_value(node.count))
    return tuple(
        StageStore(
            buffer=b.name,
            index=coordinates,
            value=sort(body, node.axis, output=k, descending=node.descending, topk=node.topk),
            mask=mask,
        )
        for k, b in enumerate(node.outputs)
        if b is not None
    )


def _scatter_store(node: Scatter, gone: Mapping[Expr, Expr]) -> StageStore:
    mask = () if node.mask is None else (node.mask,)
    scalars = (node.value, *node.indirect, *mask)
    index = node.index
    if gone:
        scalars = substitute_ranges(scalars, gone)
        index = tuple(substitute(e, gone) for e in index)
    count = len(node.indirect)
    return StageStore(
        buffer=node.output.name,
        index=index,
        value=scalars[0],
        indirect=scalars[1 : 1 + count],
        mode=node.mode,
        mask=scalars[1 + count] if mask else None,
        covers=node.covers,
        sparse=node.sparse,
    )


# ---- Groups ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A stage in a group; `mapping` gives each of its ranges over the group's ranges."""

    stage: Stage
    mapping: Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Bound:
    """Points of a space exist where `position`, an expression over its ranges, is less than `extent`."""

    position: Expr
    extent: Expr

    @property
    def holds(self) -> Scalar:
        """True at the points that exist, as reductions of uneven pieces say it."""
        return op("lt", index_value(self.position), index_value(self.extent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages in dependence order over one space of range symbols.

    Attributes:
        members: the stages.
        parallel: ranges that programs share out.
        sequential: ranges whose points one program takes in order: rows, where some members reduce rows along
            `reduced` and others columns along `sequential`.
        reduced: ranges that each point of the others goes through.
        bound: which points along `parallel` and `sequential` exist; all of them without one.
    """

    members: tuple[Member, ...]
    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    sequential: tuple[Expr, ...] = ()
    bound: Bound | None = None

    @property
    def position(self) -> int:
        """Position of its first stage in the graph."""
        return self.members[0].stage.position

    @property
    def pieces(self) -> int:
        """Return in how many pieces programs are to share its rows; 1 where each has rows of its own."""
        return max(member.stage.split for member in self.members)


def group_of(stage: Stage) -> Group:
    """Return the group of `stage` alone."""
    identity = {s: s for s in (*stage.parallel, *stage.reduced)}
    return Group(
        members=(Member(stage=stage, mapping=identity),), parallel=stage.parallel, reduced=stage.reduced
    )
