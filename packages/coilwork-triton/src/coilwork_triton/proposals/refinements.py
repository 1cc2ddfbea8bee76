"""Decisions that follow a kernel's shape, as they depend on tiles and masks: `REFINEMENTS`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_triton.iteration.in_two_rows import in_two_rows
from coilwork_triton.iteration.shape import Shape, plan
from coilwork_triton.iteration.vectorized import in_whole_vectors, wants_a_loop
from coilwork_triton.launch.options import TritonOptions
from coilwork_triton.proposals.proposal import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A kernel and its shape, which is right for it."""

    setting: Setting
    shape: Shape


def plan_kernel(setting: Setting) -> Planned:
    """The kernel of `setting` in the shape that is proposed for it.

    Raises:
        EmitError: a tensor has a type that Triton lacks, or tiles are inconsistent.
    """
    return Planned(setting=setting, shape=plan(setting))


def _loop_over_shifted_rows(planned: Planned, options: TritonOptions) -> Planned:
    setting, shape = planned.setting, planned.shape
    if options.batch_invariant or not wants_a_loop(setting.kernel, shape, setting.analysis.roots):
        return planned
    return plan_kernel(replace(setting, keeps_rows=False))


def _use_whole_vectors(planned: Planned, options: TritonOptions) -> Planned:
    if options.batch_invariant:
        # which elements are added first depends on where a row begins
        return planned
    setting, shape = planned.setting, planned.shape
    return replace(planned, shape=in_whole_vectors(setting.kernel, shape, setting.analysis.roots))


def _cut_blocks_to_rows(planned: Planned, options: TritonOptions) -> Planned:
    setting, shape = planned.setting, planned.shape
    return replace(planned, shape=in_two_rows(setting.kernel, shape, setting.analysis.roots))


REFINEMENTS: Final[PassTable[Planned, TritonOptions]] = PassTable(
    passes=(
        Pass(
            name="loop-over-shifted-rows",
            run=_loop_over_shifted_rows,
            why=(
                "long rows that begin anywhere, and fill their block but for a "
                "vector, are read in whole vectors in a loop"
            ),
        ),
        Pass(
            name="use-whole-vectors",
            run=_use_whole_vectors,
            why=(
                "rows that begin or end within 16 bytes are accessed 16 bytes "
                "at a time if lanes stand on whole vectors"
            ),
        ),
        Pass(
            name="cut-blocks-to-rows",
            run=_cut_blocks_to_rows,
            why=(
                "a block no longer than a row has points of two rows at most, "
                "so that none needs a division to know its own"
            ),
        ),
    ),
    order=(
        Before("loop-over-shifted-rows", "use-whole-vectors", "only a loop has room for shifted lanes"),
        Before(
            "use-whole-vectors", "cut-blocks-to-rows", "lines of which lanes are shifted stay as they are"
        ),
    ),
)
# Forms for open sizes share their grid, whatever the length of rows.
OF_OPEN_SIZES: Final[PassTable[Planned, TritonOptions]] = REFINEMENTS.select("use-whole-vectors")
