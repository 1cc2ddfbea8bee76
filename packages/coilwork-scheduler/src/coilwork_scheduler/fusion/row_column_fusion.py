"""Align a group that reduces rows with one that sums pieces of columns of the same matrix.

    rows     [rows | columns]             a result per row, and what follows from it along the row
    columns  [columns, pieces | points]   a result per column and piece of the rows
    both     [pieces, points sequential | columns]

A program of both takes the rows of a piece one after the other, each as the first group does, and keeps a sum
per column. What both read is read once: the gradients of a layer norm take three passes instead of five.
Pieces whose sizes do not divide the rows leave points that are no rows, and what moves along rows is masked
there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from coilwork_ir.index import Expr, ceildiv, find_bounds, get_extent, get_extents, multiply_all, substitute
from coilwork_ir.ops import SELF_COMBINING
from coilwork_ir.scalar import Reduce, iterate_postorder
from coilwork_ir.target import RowWalks
from coilwork_scheduler.fusion.alignment import (
    Alignment,
    Refinement,
    make_piece_symbols,
    refine_extents,
    split_over,
)
from coilwork_scheduler.fusion.fusion_candidate import FusionCandidate, Part, compute_reduction_depths
from coilwork_scheduler.fusion_group import Bound


def is_column_sum(candidate: FusionCandidate) -> bool:
    """True for reductions that may be columns: several results per piece, combined as values are, and used
    later only.
    """
    return (
        bool(candidate.reduced)
        and not candidate.sequential
        and len(candidate.parallel) > 1
        and not any(part.stage.checks or part.ragged for part in candidate.parts)
        and not any(compute_reduction_depths(candidate))
        and all(
            node.kind in SELF_COMBINING
            for part in candidate.parts
            for node in iterate_postorder(part.stage.scalars)
            if isinstance(node, Reduce)
        )
    )


def is_row_reduction(candidate: FusionCandidate) -> bool:
    """True for reductions that columns may join."""
    return bool(candidate.reduced) and not any(part.stage.checks or part.ragged for part in candidate.parts)


def find_row_column_spaces(
    rows: FusionCandidate,
    columns: FusionCandidate,
    shared: Sequence[tuple[tuple[Expr, ...], tuple[Expr, ...]]],
    tag: str,
) -> Iterator[Alignment]:
    """Common spaces in which the points of `columns` are walked, likely ones first.

    `shared` are pairs of coordinates at which the two touch one buffer, which are one in the spaces given;
    `tag` makes names of new ranges unique. Ranges that come of both are new: of square matrices, what one
    reduces and what the other reduces may well be the same symbol.
    """
    if not rows.read_names.isdisjoint(columns.written.keys()):
        return
    for ours, theirs in shared:
        across = _find_column_ranges(rows, columns, ours, theirs)
        if not across:
            continue
        found = _align(rows, columns, across, tag)
        if found is not None and _substitute_all(ours, found.first) == _substitute_all(theirs, found.second):
            yield found


def can_stay_in_registers(both: FusionCandidate, walks: RowWalks) -> bool:
    """Tell if a row of `both`, which is walked, and a sum per column stay in registers."""
    length = find_bounds(multiply_all(get_extent(s) for s in both.reduced)).hi
    if length is None:
        return False
    sums = sum(part.reductions for part in both.parts if _is_sequential_sum(part, both.sequential))
    reduced = frozenset(both.reduced)
    rows = sum(
        touch.buffer not in both.written and any(not reduced.isdisjoint(e.free_symbols) for e in touch.index)
        for touch in both.read
    )
    return walks.keeps_beside_sums(length, sums=sums, reads=rows)


def _is_sequential_sum(part: Part, sequential: tuple[Expr, ...]) -> bool:
    """Tell if `part` reduces along the walk."""
    return any(not part.mapping.get(s, s).free_symbols.isdisjoint(sequential) for s in part.stage.reduced)


def _substitute_all(index: tuple[Expr, ...], mapping: Mapping[Expr, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(e, mapping) for e in index) if mapping else index


def _find_column_ranges(
    rows: FusionCandidate, columns: FusionCandidate, ours: tuple[Expr, ...], theirs: tuple[Expr, ...]
) -> tuple[Expr, ...]:
    """Return the ranges with which `columns` goes through what `rows` reduces; none unless the others go
    through rows.
    """
    if len(ours) != len(theirs):
        return ()
    reduced = frozenset(rows.reduced)
    across: set[Expr] = set()
    along: set[Expr] = set()
    for a, b in zip(ours, theirs, strict=True):
        inside = a.free_symbols & reduced
        if inside and not a.free_symbols.isdisjoint((*rows.parallel, *rows.sequential)):
            return ()
        (across if inside else along).update(s for s in b.free_symbols if s.extent is not None)
    whole = across | along == {*columns.parallel, *columns.reduced}
    if not whole or not across.isdisjoint((*along, *columns.reduced)):
        return ()
    return tuple(s for s in columns.parallel if s in across)


def _align(
    rows: FusionCandidate, columns: FusionCandidate, across: tuple[Expr, ...], tag: str
) -> Alignment | None:
    inner = refine_extents(get_extents(rows.reduced), get_extents(across))
    pieces = tuple(s for s in columns.parallel if s not in across)
    if inner is None or not pieces:
        return None
    # names of the rows' own are kept only where those of the columns do not stay beside them
    kept = rows.reduced if rows.sequential else ()
    reduced = make_piece_symbols(kept, inner.first if kept else (), inner.pieces, f"q{tag}_")
    first = split_over(rows.reduced, inner.first, reduced)
    second = split_over(across, inner.second, reduced)
    points = columns.reduced
    if rows.sequential:
        # those that joined before have settled the rows
        for theirs, ours in ((pieces, rows.parallel), (points, rows.sequential)):
            same = refine_extents(get_extents(theirs), get_extents(ours))
            if same is None or same.pieces != get_extents(ours):
                return None
            second |= split_over(theirs, same.first, ours)
        return Alignment(
            parallel=rows.parallel,
            sequential=rows.sequential,
            reduced=reduced,
            first=first,
            second=second,
            bound=rows.bound,
        )
    outer = refine_extents(get_extents(rows.parallel), get_extents((*pieces, *points)))
    if outer is None:
        return _align_uneven_pieces(
            rows, pieces, points, Alignment(parallel=(), reduced=reduced, first=first, second=second), tag
        )
    return _align_even_pieces(
        rows, pieces, points, outer, Alignment(parallel=(), reduced=reduced, first=first, second=second), tag
    )


def _align_even_pieces(
    rows: FusionCandidate,
    pieces: tuple[Expr, ...],
    points: tuple[Expr, ...],
    outer: Refinement,
    inner: Alignment,
    tag: str,
) -> Alignment:
    """Align rows with pieces of equal size: a row is a piece and a point of it, in row-major order."""
    theirs = (*pieces, *points)
    symbols = make_piece_symbols((), (), outer.pieces, f"p{tag}_")
    count = sum(len(made) for made in outer.second[: len(pieces)])
    return Alignment(
        parallel=symbols[:count],
        sequential=symbols[count:],
        reduced=inner.reduced,
        first={**inner.first, **split_over(rows.parallel, outer.first, symbols)},
        second={**inner.second, **split_over(theirs, outer.second, symbols)},
    )


def _align_uneven_pieces(
    rows: FusionCandidate, pieces: tuple[Expr, ...], points: tuple[Expr, ...], inner: Alignment, tag: str
) -> Alignment | None:
    """Align rows of which one range is cut unevenly.

    Ranges outside it are pieces; ranges inside it are walked whole.
    """
    cut = len(pieces) - 1
    if len(rows.parallel) != cut + len(points):
        return None
    outside, own, inside = rows.parallel[:cut], rows.parallel[cut], rows.parallel[cut + 1 :]
    if get_extents(outside) != get_extents(pieces[:-1]) or get_extents(inside) != get_extents(points[1:]):
        return None
    if not _covers(get_extent(own), get_extent(pieces[-1]), get_extent(points[0])):
        return None
    theirs = (*pieces, *points)
    symbols = make_piece_symbols((), (), get_extents(theirs), f"p{tag}_")
    pieces, points = symbols[: len(pieces)], symbols[len(pieces) :]
    piece, point = pieces[-1], points[0]
    position = piece * get_extent(point) + point
    mapping = dict(zip((*outside, own, *inside), (*pieces[:-1], position, *points[1:]), strict=True))
    return Alignment(
        parallel=pieces,
        sequential=points,
        reduced=inner.reduced,
        first={**inner.first, **mapping},
        second={**inner.second, **dict(zip(theirs, symbols, strict=True))},
        bound=Bound(position, get_extent(own)),
    )


def _covers(extent: Expr, count: Expr, length: Expr) -> bool:
    """Tell if `count` pieces of `length` points surely hold `extent` points."""
    if extent.is_const and count.is_const and length.is_const:
        return count.value * length.value >= extent.value
    return ceildiv(extent, count) is length
