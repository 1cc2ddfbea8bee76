"""The capabilities of this generator's kernels, which schedules count on."""

from __future__ import annotations

from typing import Final

from coilwork_ir.target import Capabilities, RowWalks, Sorting, Target

# Elements and bytes that a key has room for beside its position.
_LONGEST_SORTED: Final = 4096
_MOST_SORTED_BYTES: Final = 4


def get_capabilities(target: Target) -> Capabilities:
    """Return the capabilities of kernels for `target`, a GPU: the same on all GPUs but for measured
    figures.
    """
    walks, sorts = target.machine.row_walks, target.machine.sorts
    return Capabilities(
        rows=RowWalks(
            kept_bytes=walks.kept_bytes,
            kept_across=walks.kept_across,
            columns=walks.columns,
            crossed_share=walks.crossed_share,
            loop_row=walks.loop_row,
            loop_threads=walks.loop_threads,
            loop_elements=walks.loop_elements,
            loop_sums=walks.loop_sums,
            loop_values=walks.loop_values,
        ),
        sorting=Sorting(
            longest=_LONGEST_SORTED,
            most_bytes=_MOST_SORTED_BYTES,
            longest_whole=sorts.longest_whole,
            short=sorts.short,
            many=sorts.many,
        ),
        shares_rows=True,
        contracts=True,
        combines=True,
        versions_by_size=True,
        takes_candidates=True,
        cores=frozenset({"attention", "attention-gradient"}),
    )
