"""Fusion candidates: stages that may become one kernel, with what fusion must know of them.

A candidate lists accesses over its common space, operations and reductions. The `find_*` functions look for a
reason why a merged candidate would compute something else than its parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr, substitute
from coilwork_ir.loc import Origin, merge_origins
from coilwork_ir.ops import SCALAR_OPS
from coilwork_ir.scalar import (
    Load,
    Op,
    Reduce,
    Scan,
    Sort,
    count_leading_points,
    iterate_postorder,
    list_loads,
)
from coilwork_scheduler.contractions.sum_of_products import match_contraction
from coilwork_scheduler.fusion.alignment import Alignment
from coilwork_scheduler.fusion_group import Bound, Group, Member, Stage

MOST_STAGES: Final = 64
# Operations per element of a sort: some dozens of comparisons and exchanges.
SORT_COST: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A read or write of `buffer` at `index`, over the group's ranges; `direct` without looked-up values."""

    buffer: str
    index: tuple[Expr, ...]
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One stage of a candidate with its accesses in the candidate's space.

    `checked` are buffers its checks read. `combines` tells whether values of several points make one:
    reductions, scans, sorts. A `contracted` one is a sum of products for matrix units. A `ragged` one reduces
    rows that end where data says, most of them early.
    """

    stage: Stage
    mapping: Mapping[Expr, Expr]
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]
    checked: frozenset[str]
    ops: int
    cost: int
    reductions: int
    combines: bool
    ragged: bool
    contracted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionCandidate:
    """Stages in dependence order over one space. Made by `make_candidate` and `merged`, which derive the
    other fields.

    Attributes:
        parts: the stages.
        parallel, sequential, reduced, bound: the space, as in `Group`.
        device: where its buffers live.
        written: where each of its buffers is written.
        read: distinct reads, in order, those of its own buffers included.
        into: new buffer to old buffer for memory that it overwrites.
        read_names: buffers that it reads.
        names: buffers that it touches.
        ops, reductions: sums over the parts.
    """

    parts: tuple[Part, ...]
    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    device: str
    written: Mapping[str, Touch]
    read: tuple[Touch, ...]
    into: Mapping[str, str]
    read_names: frozenset[str]
    names: frozenset[str]
    ops: int
    reductions: int
    sequential: tuple[Expr, ...] = ()
    bound: Bound | None = None

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The operations that its stages implement."""
        return merge_origins(*(part.stage.origins for part in self.parts))

    @property
    def group(self) -> Group:
        """The group it makes."""
        members = tuple(Member(stage=part.stage, mapping=part.mapping) for part in self.parts)
        return Group(
            members=members,
            parallel=self.parallel,
            sequential=self.sequential,
            reduced=self.reduced,
            bound=self.bound,
        )


def make_candidate(stage: Stage, device: str) -> FusionCandidate:
    """Return the candidate of `stage` alone."""
    reads: dict[Touch, None] = {}
    ops = cost = reductions = ragged = contracted = 0
    combines = False
    for node in iterate_postorder(stage.scalars):
        combines |= isinstance(node, Reduce | Scan | Sort)
        match node:
            case Load():
                reads.setdefault(Touch(buffer=node.buffer, index=node.index, direct=not node.indirect))
            case Op():
                ops += 1
                cost += SCALAR_OPS[node.op].cost
            case Reduce():
                ops += 1
                cost += 1
                reductions += 1
                ragged += count_leading_points(node.kind, node.operands[0], node.axes) is not None
                found = match_contraction(node.kind, node.operands[0], stage.parallel, node.axes)
                contracted += found is not None
            case Sort(output=0):
                ops += 1
                cost += SORT_COST
            case _:
                pass
    writes = tuple(
        Touch(buffer=store.buffer, index=store.index, direct=not store.indirect) for store in stage.stores
    )
    part = Part(
        stage=stage,
        mapping={s: s for s in (*stage.parallel, *stage.reduced)},
        reads=tuple(reads),
        writes=writes,
        checked=frozenset(access.buffer for access in list_loads(check.condition for check in stage.checks)),
        ops=ops,
        cost=cost,
        reductions=reductions,
        combines=combines,
        ragged=0 < ragged == reductions,
        contracted=contracted > 0,
    )
    names = frozenset(touch.buffer for touch in reads)
    return FusionCandidate(
        parts=(part,),
        parallel=stage.parallel,
        reduced=stage.reduced,
        device=device,
        written={touch.buffer: touch for touch in writes},
        read=part.reads,
        into=dict(stage.into),
        read_names=names,
        names=names.union(touch.buffer for touch in writes),
        ops=ops,
        reductions=reductions,
    )


def is_fusable(stage: Stage, *, on_gpu: bool) -> bool:
    """Tell if `stage` may share a kernel: pointwise ones, reductions, scans and sorts that have points.

    Of scatters, those that store at positions that data say: what they store depends on nothing that is
    there. On a CPU only those into memory of their own that cover it, as of several points that store to one
    place the last one does, in a kernel of their order.
    """
    if stage.empty:
        return False
    if stage.kind != "scatter":
        return stage.kind in ("pointwise", "reduce", "scan", "sort")
    return all(
        store.mask is None and (store.covers or (on_gpu and store.mode == "store" and bool(store.indirect)))
        for store in stage.stores
    )


def find_misplaced_scan(candidate: FusionCandidate) -> str | None:
    """Find the result of a scan that does not fit the candidate's space; `None` if all fit.

    A scan runs along the only reduced range, in its order, and shares a kernel with pointwise stages, and
    scans, at the same points.
    """
    scans = [part for part in candidate.parts if part.stage.kind == "scan"]
    if not scans:
        return None
    name = scans[0].writes[0].buffer
    if len(candidate.reduced) != 1 or (len(scans) > 1 and not _can_share_loop(scans)):
        return name
    (axis,) = candidate.reduced
    for part in candidate.parts:
        whole = all(part.mapping[s] is axis for s in part.stage.reduced)
        along = any(axis in e.free_symbols for e in part.mapping.values())
        if part.stage.kind == "reduce" or not whole or not along:
            return name
    return None


def _can_share_loop(scans: Sequence[Part]) -> bool:
    """Tell if each of the scans goes through whole rows, in the same direction: one loop carries what all of
    them have so far.
    """
    made = [
        node for part in scans for node in iterate_postorder(part.stage.scalars) if isinstance(node, Scan)
    ]
    return all(part.stage.split == 1 for part in scans) and len({node.reverse for node in made}) == 1


def find_misplaced_sort(candidate: FusionCandidate) -> str | None:
    """Find the result of a sort that does not fit the candidate's space; `None` if all fit.

    A kernel has one sort, and holds the rows that it sorts: no other rows are reduced or gone through.
    """
    sorts = [part for part in candidate.parts if part.stage.kind == "sort"]
    if not sorts:
        return None
    name = sorts[0].writes[0].buffer
    if len(sorts) > 1 or len(candidate.reduced) != 1 or candidate.sequential:
        return name
    whole = all(
        part.mapping[s] is candidate.reduced[0] for part in candidate.parts for s in part.stage.reduced
    )
    return None if whole and not any(part.ragged for part in candidate.parts) else name


def merge_candidates(
    first: FusionCandidate, second: FusionCandidate, alignment: Alignment
) -> FusionCandidate:
    """Merge both candidates in the space of `alignment`."""
    one, two = _remap(first, alignment.first), _remap(second, alignment.second)
    return FusionCandidate(
        parts=tuple(sorted((*one.parts, *two.parts), key=_position)),
        parallel=alignment.parallel,
        sequential=alignment.sequential,
        reduced=alignment.reduced,
        bound=alignment.bound,
        device=one.device,
        written={**one.written, **two.written},
        read=tuple(dict.fromkeys((*one.read, *two.read))),
        into={**one.into, **two.into},
        read_names=one.read_names | two.read_names,
        names=one.names | two.names,
        ops=one.ops + two.ops,
        reductions=one.reductions + two.reductions,
    )


def _position(part: Part) -> int:
    return part.stage.position


def _remap(candidate: FusionCandidate, mapping: Mapping[Expr, Expr]) -> FusionCandidate:
    """`candidate` with its ranges over other ones; its own `parallel` and `reduced` are left as they were."""
    if not mapping:
        return candidate
    known: dict[tuple[Expr, ...], tuple[Expr, ...]] = {}

    def move(touch: Touch) -> Touch:
        index = known.get(touch.index)
        if index is None:
            index = known[touch.index] = tuple(substitute(e, mapping) for e in touch.index)
        return Touch(buffer=touch.buffer, index=index, direct=touch.direct)

    parts = tuple(
        replace(
            part,
            mapping={s: substitute(e, mapping) for s, e in part.mapping.items()},
            reads=tuple(move(touch) for touch in part.reads),
            writes=tuple(move(touch) for touch in part.writes),
        )
        for part in candidate.parts
    )
    return replace(
        candidate,
        parts=parts,
        written={touch.buffer: touch for part in parts for touch in part.writes},
        read=tuple(dict.fromkeys(touch for part in parts for touch in part.reads)),
    )


def find_shifted_read(candidate: FusionCandidate) -> str | None:
    """Find a buffer that the candidate computes but reads at other points; `None` if there is none.

    A store at positions from data is read at no point, even if a dimension of one element leaves no trace of
    the positions in its index.
    """
    for touch in candidate.read:
        own = candidate.written.get(touch.buffer)
        if own is not None and not _are_one_element(touch, own):
            return touch.buffer
    return None


def _are_one_element(one: Touch, other: Touch) -> bool:
    return one.direct and other.direct and one.index == other.index


def find_overwrite_hazard(candidate: FusionCandidate, root: Mapping[str, str]) -> str | None:
    """Return a buffer whose memory the candidate overwrites while other points, or other names, still use
    it.
    """
    into = candidate.into
    if not into:
        return None
    written = candidate.written
    memory = {root[old]: (new, old) for new, old in into.items()}
    if len(memory) < len(into):
        return next(iter(into))
    for name in written:
        if root[name] in memory and name not in into:
            return name
    for touch in candidate.read:
        if root[touch.buffer] not in memory:
            continue
        new, old = memory[root[touch.buffer]]
        if touch.buffer not in (new, old) or not _are_one_element(touch, written[new]):
            return touch.buffer
    return None


def find_late_check(candidate: FusionCandidate) -> str | None:
    """Find a buffer that a check reads and that depends on a reduction, scan or sort of the same candidate.

    Code generators perform checks before anything is written, and so before the first of these is complete.
    """
    if not any(part.checked for part in candidate.parts):
        return None
    late: set[str] = set()
    for part in candidate.parts:
        if part.combines or any(touch.buffer in late for touch in part.reads):
            late.update(touch.buffer for touch in part.writes)
    return next((name for part in candidate.parts for name in sorted(part.checked & late)), None)


def compute_reduction_depths(candidate: FusionCandidate) -> tuple[int, ...]:
    """Per part: how many reductions of the candidate must be complete before it."""
    made: dict[str, int] = {}
    result: list[int] = []
    for part in candidate.parts:
        depth = max((made.get(touch.buffer, 0) for touch in part.reads), default=0)
        result.append(depth)
        for touch in part.writes:
            made[touch.buffer] = depth + (1 if part.reductions else 0)
    return tuple(result)
