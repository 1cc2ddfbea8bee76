"""Whether a family of reductions is cut in pieces, and into which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr, bounds, product, provably_positive
from coilwork_ir.loops import Reduce
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Load, substitute_ranges
from coilwork_scheduler.contractions.known import contraction_of_node
from coilwork_scheduler.cost import FULL_PROGRAMS, KernelWork
from coilwork_scheduler.fusion.space import refine, split_over, symbols_over
from coilwork_scheduler.journal import Journal
from coilwork_scheduler.occupancy import LONGEST_COLUMN, programs_of, row_stays
from coilwork_scheduler.options import ScheduleOptions
from coilwork_scheduler.splitting.beside_rows import RowReductions
from coilwork_scheduler.splitting.families import Family, alone, rows_of
from coilwork_scheduler.splitting.figures import LEAST_ACROSS, PROGRAMS, Figures
from coilwork_scheduler.splitting.merging import merged_axes
from coilwork_scheduler.splitting.pieces import Pieces, cut_axes
from coilwork_scheduler.splitting.short_runs import Runs, runs_of
from coilwork_scheduler.stage import extent_of

# The two kernels must together take less than this share of the one's time: the estimate is rough, and the one might
# have fused with more of what surrounds it.
CLEAR_WIN: Final = 0.8
# Columns beside rows get a piece per program; by this factor fewer programs are better than masks for uneven pieces.
WALKED_MISS: Final = 1.15
POSITIONS: Final = ("argmin", "argmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """Pieces of a family.

    Its axes are `refined` first, into the axes of the pieces, where that says something. Pieces are `apart` in memory, each with
    all of its results, where a program has all of these.
    """

    pieces: Pieces
    refined: tuple[tuple[Expr, Expr], ...] = ()
    apart: bool = False

    def along(self, node: Reduce) -> Reduce:
        """`node`, of the family, along the axes of the pieces."""
        if not self.refined:
            return node
        (body,) = substitute_ranges((node.body,), dict(self.refined))
        return replace(node, axes=self.pieces.axes, body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weighed:
    """A way to cut a family, and what that takes."""

    pieces: Pieces
    refined: tuple[tuple[Expr, Expr], ...]
    count: int
    programs: int
    whole_us: float
    split_us: float

    @property
    def pays(self) -> bool:
        return self.split_us < CLEAR_WIN * self.whole_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Decides whether a family is cut, and into what. `rows` are the reductions that it may share a kernel with."""

    figures: Figures
    options: ScheduleOptions
    journal: Journal
    rows: RowReductions

    def candidate(self, node: Reduce) -> bool:
        """True if `node` has so few results that one kernel for them might leave the device idle."""
        extents = tuple(extent_of(r) for r in (*node.ranges, *node.axes))
        if node.checks or not all(provably_positive(e) for e in extents):
            return False
        target = self.figures.target(node)
        if not target.is_gpu:
            return False
        if contraction_of_node(node) is not None:
            # in pieces already, where that pays
            return False
        results = self.figures.sizes.numel(extents[: len(node.ranges)])
        fewest = programs_of(results, across=True)
        return (
            fewest < target.multiprocessors * PROGRAMS and self.figures.length(node.axes) >= 2 * LEAST_ACROSS
        )

    def pieces_of(self, family: Family) -> Cutting | None:
        """How to cut the axes of `family`; `None` if one kernel for each result does as well."""
        found = self._weighed(family)
        walked = self._walked(family, found)
        if walked is not None:
            return walked
        runs = self._runs(family)
        if runs is not None:
            self.journal.note(
                "split-runs",
                tuple(b.name for b in family.outputs),
                runs.pays,
                "wide loads go across short runs"
                if runs.pays
                else "another kernel costs more than narrow loads do",
                pieces=self.figures.sizes.value(runs.pieces.count),
                saved_us=round(runs.saved_us, 3),
                costs_us=round(runs.costs_us, 3),
            )
            if runs.pays:
                return Cutting(pieces=runs.pieces, refined=runs.refined)
        if found is None:
            return None
        self.journal.note(
            "split",
            tuple(b.name for b in family.outputs),
            found.pays,
            "pieces fill the device" if found.pays else "a second kernel costs more than idle programs do",
            pieces=found.count,
            programs=found.programs,
            whole_us=round(found.whole_us, 3),
            split_us=round(found.split_us, 3),
        )
        return Cutting(pieces=found.pieces, refined=found.refined) if found.pays else None

    def splits(self, family: Family) -> bool:
        """Whether `pieces_of` cuts `family`; records nothing."""
        found, runs = self._weighed(family), self._runs(family)
        return (runs is not None and runs.pays) or (found is not None and found.pays)

    def _runs(self, family: Family) -> Runs | None:
        """How to reduce across short runs of memory first, if it has them."""
        shape = self.figures.shape(family)
        if shape.across:
            return None
        on_chip = 4 * shape.length <= self.options.persistent_bytes
        return runs_of(self.figures, family, on_chip=on_chip)

    def reads_again(self, node: Reduce) -> bool:
        """Whether two reductions over the rows of `node`, one of which needs the other's result, read them twice.

        They do unless a program keeps its row on chip; rows of unknown length it does not keep.
        """
        if not self.figures.target(node).is_gpu:
            return False
        if self.candidate(node) and self.splits(alone(node)):
            return True
        longest = 1
        for axis in node.axes:
            top = bounds(extent_of(axis)).hi
            if top is None:
                return True
            longest *= top
        return longest > LONGEST_COLUMN if self.across(node) else 4 * longest > self.options.persistent_bytes

    def across(self, node: Reduce) -> bool:
        """Whether the results of `node`, rather than the points that it reduces, lie side by side in memory."""
        return self.figures.shape(alone(node)).across

    def _weighed(self, family: Family) -> _Weighed | None:
        shape = self.figures.shape(family)
        wanted = self.figures.wanted(family, shape)
        if wanted < 2 or (not shape.across and 4 * shape.length <= self.options.persistent_bytes):
            # a row that stays on chip is read once for all that needs it
            return None
        ordered = family.members[0].kind in POSITIONS
        order, refined = family.axes, dict[Expr, Expr]()
        if not ordered:
            order, refined = merged_axes(self.figures.by_memory(family), self.figures.offsets(family))
        pieces = cut_axes(
            order if refined else family.axes,
            order,
            {axis: self.figures.sizes.value(extent_of(axis)) for axis in order},
            wanted=wanted,
            skip=not ordered,
            held=LONGEST_COLUMN if shape.across else self.options.persistent_bytes // 4,
        )
        if pieces is None:
            return None
        count = max(self.figures.sizes.value(pieces.count), 1)
        return _Weighed(
            pieces=pieces,
            refined=tuple(refined.items()),
            count=count,
            programs=shape.programs,
            whole_us=self.figures.reduce_us(shape, 1),
            split_us=self.figures.reduce_us(shape, count) + self.figures.second_us(family, shape, count),
        )

    def _walked(self, family: Family, otherwise: _Weighed | None) -> Cutting | None:
        """Pieces for a kernel that reduces rows of what `family` reads, if that saves enough of its reading."""
        if not (self.options.fuse and self.options.horizontal):
            return None
        shape = self.figures.shape(family)
        if not shape.across or any(member.kind not in SELF_COMBINING for member in family.members):
            return None
        if not row_stays(1, sums=len(family.outputs), reads=1):
            return None
        owners = {access: member for member in family.members for access in rows_of(member)}
        partners = {access: self._partner(family, owners[access], access) for access in family.rows}
        beside = [access for access, rows in partners.items() if rows is not None]
        if not beside:
            return None
        axes, refined = _refined(family.axes, [rows for rows in partners.values() if rows is not None])
        pieces = cut_axes(
            axes,
            axes,
            {axis: self.figures.sizes.value(extent_of(axis)) for axis in axes},
            wanted=self.figures.target(family.members[0]).multiprocessors * FULL_PROGRAMS,
            skip=False,
            miss=WALKED_MISS,
        )
        if pieces is None:
            return None
        count = max(self.figures.sizes.value(pieces.count), 1)
        shared = sum(self.figures.touched(access) for access in beside)
        apart_us = self.figures.reduce_us(shape, 1)
        if otherwise is not None:
            apart_us = min(apart_us, otherwise.split_us)
        moved = self.figures.moved(family, shape, count)
        alone = KernelWork(
            read_bytes=shared,
            write_bytes=0,
            operations=0,
            rows=shape.length,
            row_length=shape.results,
            programs=count,
        )
        more = replace(alone, read_bytes=max(shape.read_bytes, shared), write_bytes=moved)
        walked_us = self.figures.model.kernel_us(more) - self.figures.model.kernel_us(alone)
        walked_us += self.figures.second_us(family, shape, count, across=True)
        pays = walked_us < CLEAR_WIN * apart_us
        self.journal.note(
            "split-walked",
            tuple(b.name for b in family.outputs),
            pays,
            "columns are summed where rows are reduced" if pays else "pieces cost more than a second reading",
            pieces=count,
            shared_read_bytes=shared,
            apart_us=round(apart_us, 3),
            walked_us=round(walked_us, 3),
        )
        return Cutting(pieces=pieces, refined=tuple(refined.items()), apart=True) if pays else None

    def _partner(self, family: Family, member: Reduce, access: Load) -> Reduce | None:
        """A reduction of rows of what `member` loads by `access` whose kernel has room for the sums of `family`."""
        rows = self.rows.partner(member, access)
        if rows is None:
            return None
        longest = bounds(product(extent_of(axis) for axis in rows.axes)).hi
        reads = {load.buffer for load in (*family.rows, *rows_of(rows))}
        fits = longest is not None and row_stays(longest, sums=len(family.outputs), reads=len(reads))
        return rows if fits else None


def _refined(
    axes: tuple[Expr, ...], partners: Sequence[Reduce]
) -> tuple[tuple[Expr, ...], Mapping[Expr, Expr]]:
    """`axes` in as many parts as some of `partners` goes through rows with, and what they are over the parts.

    So that all that joins one kernel is cut alike, though it sums `[batch * tokens]` here and `[batch, tokens]` there.
    """
    extents = tuple(extent_of(axis) for axis in axes)
    best: tuple[tuple[Expr, ...], Mapping[Expr, Expr]] = (axes, {})
    for rows in partners:
        common = refine(extents, tuple(extent_of(r) for r in rows.ranges))
        if common is not None and len(common.pieces) > len(best[0]):
            parts = symbols_over(axes, common.first, common.pieces, "row")
            best = (parts, split_over(axes, common.first, parts))
    return best
