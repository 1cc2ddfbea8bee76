"""Targets with what generators of kernels for them declare: a generator of grids of programs for GPUs, one of
loops for CPUs.

The numbers are those of a large GPU; what a generator really declares is its own tests' to say.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

import coilwork_scheduler
from coilwork_ir.kernels import Schedule
from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.loops import Graph
from coilwork_ir.target import Capabilities, RowWalks, Sorting, Target, Targets
from coilwork_scheduler import ScheduleOptions
from coilwork_scheduler.options import ContractionChoice, ConvolutionLayout


class ScheduleFields(TypedDict, total=False):
    """The fields of `ScheduleOptions` that tests set."""

    numerics: Numerics
    inline: bool
    fuse: bool
    split: bool
    single_pass: bool
    horizontal: bool
    batch_invariant: bool
    combine: bool
    chunk_products: bool
    contractions: ContractionChoice
    convolution_layout: ConvolutionLayout
    tf32_convolutions: bool
    calls_onednn: bool
    max_ops: int
    max_args: int
    max_combined_args: int
    most_sizes: int
    size_hints: tuple[tuple[str, int], ...]
    default_size_hint: int
    aligned_inputs: tuple[str, ...]
    donated_inputs: tuple[str, ...]
    apart: frozenset[str]
    repeat: bool


DEFAULT = ScheduleOptions()
GRIDS = Capabilities(
    rows=RowWalks(
        kept_bytes=65536,
        kept_across=512,
        columns=32,
        crossed_share=0.125,
        loop_row=8192,
        loop_threads=512,
        loop_elements=8,
        loop_sums=64,
        loop_values=112,
    ),
    sorting=Sorting(longest=4096, most_bytes=4, longest_whole=2048, short=512, many=8),
    shares_rows=True,
    contracts=True,
    combines=True,
    takes_candidates=True,
)


def capabilities_of(target: Target) -> Capabilities:
    """What the generator for `target` declares."""
    if target.is_gpu:
        return GRIDS
    return Capabilities(
        rows=RowWalks(kept_bytes=target.l2_bytes // target.multiprocessors),
        sorting=Sorting(longest=None, most_bytes=8),
        cuts_rows=True,
        opens_extents=True,
    )


def declare(given: Target | Targets, *, kept_bytes: int | None = None, **changes: Any) -> Targets:
    """`given` with what their generators declare, but for `changes` and how long the rows are that programs
    keep.
    """
    if isinstance(given, Targets) and given.declared:
        return given
    targets = given if isinstance(given, Targets) else Targets(main=given)
    declared = {}
    for target in (targets.main, *(target for _, target in targets.by_device)):
        found = replace(capabilities_of(target), **changes)
        if kept_bytes is not None:
            found = replace(found, rows=replace(found.rows, kept_bytes=kept_bytes))
        declared[target.name] = found
    return replace(targets, declared=tuple(declared.items()))


def schedule(
    graph: Graph,
    target: Target | Targets,
    options: ScheduleOptions = DEFAULT,
    *,
    kept_bytes: int | None = None,
    **more: Any,
) -> Schedule:
    """The schedule of `graph` for a target whose generator is one of these."""
    return coilwork_scheduler.schedule(graph, declare(target, kept_bytes=kept_bytes), options, **more)
