"""The rewrites of kernels, in order and with reasons: `LEGALIZATION` by target, then `KERNEL_PASSES`.

A kernel is legalized as a whole; comments and arguments of the text show the result. The passes behind that
work on one computation. Some of them settle a part of how it runs as well, which a `Draft` says beside the
kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.kernels.rewrite import convert_constants, make_functions_strict, store_small_floats_as_bits
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.target import Target
from coilwork_triton.facts.memory_traffic import find_transposed_ranges, share_unit_strides
from coilwork_triton.kernel_passes.histogram import privatize_histogram
from coilwork_triton.kernel_passes.range_unrolling import deinterleave, split_concat
from coilwork_triton.kernel_passes.thread_coarsening import CoarseKernel, coarsen
from coilwork_triton.kernel_passes.topk_range import split_topk_range
from coilwork_triton.kernel_passes.window_sharing import share_windows
from coilwork_triton.launch.parameters import UNKNOWN_EXTENT, Letter
from coilwork_triton.text.language import SMALL_FLOATS
from coilwork_triton.text.ops import convert_constant


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A kernel on its way to text.

    Attributes:
        kernel: what is computed.
        likely: what its sizes likely are, one number for each: they likely do not exceed it, and are
            multiples of 16 where it is one. 0 if nothing is known of a size.
        topk: the range of the first elements of sorted rows, if that is all that is kept of them.
        unit_strides: the share of bytes at unit stride along each range, by its name, before points were in
            steps.
        transposed: names of ranges before the innermost one, inner ones first, that have blocks of their own;
            the ranges outside of one share its tile, up to the next one.
        coarsening: points of the original kernel that one of its points computes.
        neighbours: points of the original kernel, along outer ranges, that one of its points computes.
        bins: programs count their points in so many at most, before they update memory; 0 if they do not.
    """

    kernel: Kernel
    likely: tuple[int, ...]
    unit_strides: Mapping[str, float]
    transposed: tuple[str, ...] = ()
    topk: Expr | None = None
    coarsening: int = 1
    neighbours: int = 1
    bins: int = 0

    @property
    def likely_sizes(self) -> dict[Expr, int]:
        """The sizes of which something is likely, and what."""
        return {size: number for size, number in zip(self.kernel.sizes, self.likely, strict=False) if number}

    def share_along(self, ranges: Iterable[Range]) -> float:
        """Return the share of bytes at unit stride along any of `ranges`."""
        return sum(self.unit_strides[r.symbol.name] for r in ranges)

    @property
    def is_line(self) -> bool:
        """True if all ranges are parallel, and points follow each other in one tile."""
        return not self.transposed and all(r.kind == "parallel" for r in self.kernel.ranges)

    def group_ranges(self) -> dict[Letter, list[Range]]:
        """Return the ranges by tile: `x` has the innermost parallel ones, before `y` and `z`; `w` those that
        are sequential, `r` those that are reduced.
        """
        letters: list[Letter] = ["x", "y", "z"]
        groups: dict[Letter, list[Range]] = {}
        for one in reversed(self.kernel.ranges):
            if one.symbol.name in self.transposed:
                letters = letters[1:]
            letter: Letter = (
                "r" if one.kind == "reduction" else "w" if one.kind == "sequential" else letters[0]
            )
            groups.setdefault(letter, []).insert(0, one)
        order: tuple[Letter, ...] = ("z", "y", "x", "w", "r")
        return {letter: groups[letter] for letter in order if letter in groups}

    @property
    def contiguous_range(self) -> Range | None:
        """The range along which most bytes are at unit stride; None if there are no ranges."""
        return max(self.kernel.ranges, key=lambda r: self.share_along((r,)), default=None)


def begin_draft(kernel: Kernel, likely: tuple[int, ...] = ()) -> Draft:
    """`kernel` before its passes; `likely` is as in `Draft`."""
    known = {size: number for size, number in zip(kernel.sizes, likely, strict=False) if number}
    return Draft(
        kernel=kernel,
        likely=likely,
        unit_strides=share_unit_strides(kernel, known, unknown=UNKNOWN_EXTENT),
        transposed=find_transposed_ranges(kernel, known, unknown=UNKNOWN_EXTENT),
    )


def _store_bits(kernel: Kernel, target: Target) -> Kernel:
    return store_small_floats_as_bits(kernel, kept=SMALL_FLOATS if "fp8" in target.features else ())


def _write_strict_functions(kernel: Kernel, target: Target) -> Kernel:
    return make_functions_strict(kernel)


def _convert_constants(kernel: Kernel, target: Target) -> Kernel:
    return convert_constants(kernel, convert_constant)


LEGALIZATION: Final[PassTable[Kernel, Target]] = PassTable(
    passes=(
        Pass(
            name="store-small-floats-as-bits",
            run=_store_bits,
            why="devices without instructions for 8-bit floats have no type for them either",
        ),
        Pass(
            name="write-strict-functions",
            run=_write_strict_functions,
            why="where `strict` is asked for, functions of the device are not exact enough",
        ),
        Pass(
            name="convert-constants",
            run=_convert_constants,
            why=(
                "compilers fold a constant that its new type does not hold "
                "to something else than devices make of it"
            ),
        ),
    ),
    order=(
        Before(
            "store-small-floats-as-bits",
            "write-strict-functions",
            "conversions of 8-bit floats are functions like others, once they are written out",
        ),
        Before(
            "write-strict-functions",
            "convert-constants",
            "functions that are written out hold constants of their own",
        ),
    ),
)


def _split_topk_range(draft: Draft, target: Target) -> Draft:
    found = split_topk_range(draft.kernel)
    return draft if found is None else replace(draft, kernel=found.kernel, topk=found.index)


def _split_concat(draft: Draft, target: Target) -> Draft:
    if not draft.is_line:
        return draft
    found = split_concat(draft.kernel, target.machine.grids)
    return draft if found is None else replace(draft, kernel=found)


def _coarsen_deinterleaved(draft: Draft, target: Target) -> Draft:
    found = deinterleave(draft.kernel)
    if found is None:
        return draft
    coarse = _coarse(replace(draft, transposed=()), coarsen(found, target.machine.grids))
    # neighbours along the last range are read together and stored together
    if coarse.coarsening == draft.coarsening:
        return draft
    *outer, inner = (r.symbol.name for r in coarse.kernel.ranges)
    return replace(coarse, unit_strides={**dict.fromkeys(outer, 0.0), inner: 1.0})


def _coarsen(draft: Draft, target: Target) -> Draft:
    if draft.coarsening > 1 or not draft.is_line:
        return draft
    return _coarse(draft, coarsen(draft.kernel, target.machine.grids))


def _coarse(draft: Draft, coarse: CoarseKernel | None) -> Draft:
    return draft if coarse is None else replace(draft, kernel=coarse.kernel, coarsening=coarse.points)


def _share_windows(draft: Draft, target: Target) -> Draft:
    if draft.coarsening > 1 or draft.topk is not None or not draft.kernel.ranges:
        return draft
    innermost = (draft.kernel.ranges[-1].symbol.name, *draft.transposed)
    found = share_windows(draft.kernel, innermost, target)
    return draft if found is None else replace(draft, kernel=found.kernel, neighbours=found.points)


def _privatize_histogram(draft: Draft, target: Target) -> Draft:
    found = (
        privatize_histogram(draft.kernel, target.machine.grids, draft.likely_sizes) if draft.is_line else None
    )
    if found is None:
        return draft
    # programs count what belongs to a row of bins
    rows = draft.kernel.ranges[: found.rows]
    return replace(draft, bins=found.bins, transposed=tuple(r.symbol.name for r in rows[-1:]))


KERNEL_PASSES: Final[PassTable[Draft, Target]] = PassTable(
    passes=(
        Pass(
            name="split-topk-range",
            run=_split_topk_range,
            why=(
                "a row of which the first elements are kept takes half a sort or "
                "less, and what follows is computed for these alone"
            ),
        ),
        Pass(
            name="split-concat",
            run=_split_concat,
            why="parts that are joined again read the same elements: one point reads them once for all parts",
        ),
        Pass(
            name="coarsen-deinterleaved",
            run=_coarsen_deinterleaved,
            why=(
                "neighbours that are dealt out to places far apart are "
                "read together where a point has all of them"
            ),
        ),
        Pass(
            name="coarsen",
            run=_coarsen,
            why=(
                "a point that does what several neighbours did loads what "
                "they share once, and stores 16 bytes at a time"
            ),
        ),
        Pass(
            name="share-windows",
            run=_share_windows,
            why="windows overlap along outer ranges, too: a point of several windows loads each element once",
        ),
        Pass(
            name="privatize-histogram",
            run=_privatize_histogram,
            why=(
                "a program that counts its points first updates memory once per bin instead of once per point"
            ),
        ),
    ),
    order=(
        Before("split-topk-range", "split-concat", "sorted rows have reduced ranges, and stay whole"),
        Before(
            "split-concat",
            "coarsen-deinterleaved",
            "what is chosen between parts is no condition on points of "
            "one part, which then are neighbours in memory",
        ),
        Before("split-concat", "coarsen", "a part's loads are wide where those of the whole had conditions"),
        Before(
            "coarsen-deinterleaved",
            "coarsen",
            "neighbours that lie together after dealing them out are "
            "few enough loads, which they are not before",
        ),
        Before(
            "coarsen",
            "share-windows",
            "steps along rows share more, and have their own way to pair rows",
        ),
        Before(
            "share-windows",
            "privatize-histogram",
            "tiles are assigned last: a window's points are those of its tiles",
        ),
        Before(
            "coarsen",
            "privatize-histogram",
            "tiles are assigned last: other passes want all ranges in one tile",
        ),
    ),
)
# Those for the body of several computations in one launch, whose programs have lines of points of one size.
MEMBER_PASSES: Final[PassTable[Draft, Target]] = KERNEL_PASSES.select("split-concat")
