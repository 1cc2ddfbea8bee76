"""The caller's options, all of which change a schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from coilwork_ir.kernels.nodes import Numerics
from coilwork_ir.loc import Origin
from coilwork_scheduler.cost_model import SizeHints

ContractionChoice = Literal["auto", "aten", "generated"]
ConvolutionLayout = Literal["auto", "captured", "channels_last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Settings of `schedule`. All of them change the result and so belong in a cache key.

    Attributes:
        numerics: rounding contract. `fast` keeps intermediates of fused operations as wide as they were
            computed; `eager` and `strict` round them to their buffers' types.
        inline: substitute cheap or singly used pointwise producers into their consumers.
        fuse: put several stages into one kernel.
        split: on GPUs, reduce long rows with few results in pieces, then the results of the pieces.
        single_pass: with `split`, let programs share few long rows of a scan, each of which waits for what
            those before it say.
        horizontal: also fuse stages that only share what they read.
        batch_invariant: what a row gives may not depend on how many rows there are: nothing is split, and a
            product is a sum of products also where one of its sides is a single row or column.
        combine: where the target's code generator takes it, put small kernels of one kind that do not wait
            for each other into one launch.
        chunk_products: compute products that are much larger than their factors in chunks, if nobody needs
            all of the result at once.
        contractions: who computes matrix products: `aten`, kernels (`generated`), or whichever costs less, as
            far as that is known (`auto`).
        convolution_layout: `auto` gives convolutions operands that lie otherwise than captured where that
            gains; under `strict` numerics never, since a library may add in another order. `captured` never
            does. `channels_last` computes all in floats of 16 and 32 bits in channels-last, whatever it
            costs.
        tf32_convolutions: convolutions in `f32` round their operands to TF32 on GPUs, so matrix units compute
            them.
        calls_onednn: torch has oneDNN, which may multiply matrices in `f32` on CPUs instead of MKL, under
            `fast` numerics. Default: False.
        max_ops: scalar operations that inlining may gather in one stage; fused kernels hold at most twice as
            many.
        max_body_size: nodes of what inlining may gather in one stage, conditions and written-out index
            expressions included.
        max_index_size: nodes of one index expression, written out: beyond it a value is stored instead of
            computed inside its consumers.
        weighed_index_size: the same, from which on a value is stored if the index arithmetic costs more than
            that.
        max_copied_size: nodes of a value, conditions and index expressions included, that more than one place
            may compute for itself.
        max_args: tensor arguments of one kernel.
        max_combined_args: tensor arguments of a combined one. A launch has 4 KB of parameters.
        most_sizes: on CPUs, how many kernels may differ in numbers alone (extents, strides, offsets,
            constants), each with a text of its own; beyond that they take these numbers as arguments.
        max_reductions: separate reductions in one kernel.
        max_row_reads: distinct values per element that a kernel with reductions reads along the reduced
            dimensions: a persistent reduction keeps them all in registers.
        recompute_ops: a producer of at most this cost (as in the op table) that reads at most one element is
            recomputed as often as its consumers like, unless that reads more bytes than storing it moves.
        max_evaluations: evaluations per element, over all consumers, up to which a costlier producer may be
            inlined.
        fusion_window: neighbours per shared buffer that are considered as partners.
        search_limit: groups visited to show that a fusion makes no cycle; beyond it the fusion is refused.
        max_decisions: records kept in `Schedule.decisions`.
        size_hints: likely values of size symbols, for costs only.
        default_size_hint: what other size symbols are taken to be, for costs only.
        aligned_inputs: names of inputs and constants that the caller promises to pass at multiples of 16
            bytes.
        donated_inputs: names of inputs that the caller gives away, whose memory is free when nobody needs
            them any more.
        apart: names of captured calls that share no kernel with others.
        repeat: schedule one of many equal regions in a row, and copy its steps for the others. Default:
            True.
    """

    numerics: Numerics = "fast"
    inline: bool = True
    fuse: bool = True
    split: bool = True
    single_pass: bool = True
    horizontal: bool = True
    batch_invariant: bool = False
    combine: bool = True
    chunk_products: bool = True
    contractions: ContractionChoice = "auto"
    convolution_layout: ConvolutionLayout = "auto"
    tf32_convolutions: bool = False
    calls_onednn: bool = False
    max_ops: int = 256
    max_body_size: int = 1024
    max_index_size: int = 256
    weighed_index_size: int = 96
    max_copied_size: int = 384
    max_args: int = 32
    max_combined_args: int = 384
    most_sizes: int = 8
    max_reductions: int = 12
    max_row_reads: int = 16
    recompute_ops: int = 4
    max_evaluations: float = 4.0
    fusion_window: int = 8
    search_limit: int = 256
    max_decisions: int = 2000
    size_hints: tuple[tuple[str, int], ...] = ()
    default_size_hint: int = 512
    aligned_inputs: tuple[str, ...] = ()
    donated_inputs: tuple[str, ...] = ()
    apart: frozenset[str] = frozenset()
    repeat: bool = True


def may_share_kernel(one: Iterable[Origin], two: Iterable[Origin], apart: frozenset[str]) -> bool:
    """Tell if what implements the calls `one` may be computed in a kernel with what implements `two`.

    `apart` are names of calls that share no kernel with others. The parts of one call may share a kernel.
    """
    if not apart:
        return True
    first, second = {origin.node for origin in one}, {origin.node for origin in two}
    return first == second or apart.isdisjoint(first | second)


def make_size_hints(options: ScheduleOptions) -> SizeHints:
    """Return the estimator of sizes that `options` describe."""
    return SizeHints(known=dict(options.size_hints), default=options.default_size_hint)
