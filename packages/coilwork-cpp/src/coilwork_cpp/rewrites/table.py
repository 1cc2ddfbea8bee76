"""The kernel passes: from a kernel to the pieces that loops are written for, in a table with reasons.

None of them decides how a piece runs: its mapping does (`coilwork_cpp.planning.table`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_cpp.options import CppOptions
from coilwork_cpp.rewrites.normal_form import expand_reductions, normalise_ranges
from coilwork_cpp.rewrites.piecewise import cut_into_pieces
from coilwork_cpp.rewrites.shared_factors import join_casts, share_factors
from coilwork_cpp.rewrites.split import Scratch, split_reductions
from coilwork_cpp.values.element_types import convert_constant
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.rewrite import convert_constants, make_functions_strict
from coilwork_ir.machine.model import Loops
from coilwork_ir.passes import Before, Pass, PassTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The work of one launch: phases, one after the other, of pieces that may run in any order.

    Attributes:
        phases: the pieces of each phase.
        scratch: memory that one phase leaves results in for the next.
    """

    phases: tuple[tuple[Kernel, ...], ...]
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteContext:
    """The inputs of the passes: the settings, and the measured figures of the machine's loops."""

    options: CppOptions
    loops: Loops


def _map_kernels(rewrite: Callable[[Kernel], Kernel]) -> Callable[[Launch, RewriteContext], Launch]:
    def run(launch: Launch, context: RewriteContext) -> Launch:
        phases = tuple(tuple(map(rewrite, pieces)) for pieces in launch.phases)
        return Launch(phases=phases, scratch=launch.scratch)

    return run


def _run_normalise(launch: Launch, context: RewriteContext) -> Launch:
    return _map_kernels(lambda kernel: normalise_ranges(kernel, context.loops.least_lanes))(launch, context)


def _run_split(launch: Launch, context: RewriteContext) -> Launch:
    kernels = [kernel for pieces in launch.phases for kernel in pieces]
    parts = [part for kernel in kernels for part in split_reductions(kernel, context.options, context.loops)]
    scratch = tuple(memory for part in parts for memory in part.scratch)
    return Launch(phases=tuple((part.kernel,) for part in parts), scratch=(*launch.scratch, *scratch))


def _run_cut(launch: Launch, context: RewriteContext) -> Launch:
    phases = tuple(tuple(p for kernel in pieces for p in cut_into_pieces(kernel)) for pieces in launch.phases)
    return Launch(phases=phases, scratch=launch.scratch)


KERNEL_PASSES: Final[PassTable[Launch, RewriteContext]] = PassTable(
    passes=(
        Pass(
            name="strict-functions",
            run=_map_kernels(make_functions_strict),
            why="strict numerics ask for functions that are right to the last place",
        ),
        Pass(
            name="convert-constants",
            run=_map_kernels(lambda kernel: convert_constants(kernel, convert_constant)),
            why="a constant is converted once, when the kernel is compiled",
        ),
        Pass(
            name="expand",
            run=_map_kernels(expand_reductions),
            why="two passes over a cache are cheaper than one with states",
        ),
        Pass(
            name="join-casts",
            run=_map_kernels(join_casts),
            why="rounding to 16 bits takes several instructions, also where it changes nothing",
        ),
        Pass(
            name="share-factors",
            run=_map_kernels(share_factors),
            why="a weight that is widened for several rows is widened once for all of them",
        ),
        Pass(
            name="normalise",
            run=_run_normalise,
            why="few long loops with affine indices vectorise",
        ),
        Pass(
            name="split", run=_run_split, why="a reduction with few results leaves threads nothing to share"
        ),
        Pass(name="cut", run=_run_cut, why="guards and bends of indices keep loops from vectorising"),
    ),
    order=(
        Before(
            "strict-functions",
            "convert-constants",
            "functions that are written out hold constants of their own",
        ),
        Before("convert-constants", "expand", "what two passes hold is converted once"),
        Before("expand", "join-casts", "sums of products are written with conversions"),
        Before("join-casts", "share-factors", "factors that are as they lie in memory share no work"),
        Before("share-factors", "normalise", "a range of few points may be gone"),
        Before("expand", "normalise", "the passes that are written out have loops, too"),
        Before("normalise", "split", "how many results threads can share shows in whole loops"),
        Before("split", "cut", "phases run one after the other, the pieces of a phase in any order"),
    ),
)


def rewrite_launch(kernel: Kernel, options: CppOptions, loops: Loops) -> Launch:
    """Return the work of a launch of `kernel`, after all of `KERNEL_PASSES`.

    Raises:
        EmitError: the kernel holds something that has no C++ form.
    """
    context = RewriteContext(options=options, loops=loops)
    return KERNEL_PASSES.run(Launch(phases=((kernel,),)), context)
