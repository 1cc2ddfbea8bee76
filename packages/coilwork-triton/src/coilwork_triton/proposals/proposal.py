"""The `Setting` of a proposal, which is a kernel and where it runs, and the `Proposal`: what is decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, evaluate, find_bounds, multiply_all
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Kernel, Range
from coilwork_ir.target import Target
from coilwork_triton.facts.kernel_analysis import KernelAnalysis
from coilwork_triton.facts.memory_traffic import find_streaming_args
from coilwork_triton.iteration.shape import RowSharing
from coilwork_triton.kernel_passes.table import Draft
from coilwork_triton.kernel_passes.topk_range import compute_topk_block
from coilwork_triton.launch.parameters import UNKNOWN_EXTENT, Facts, Letter, Walk
from coilwork_triton.options import TritonOptions


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The kernel and where it runs: all that proposals may ask for.

    Attributes:
        draft: the kernel, and what its passes settled.
        target: what it runs on.
        options: the generator's settings.
        points: those of a whole launch of which the kernel does a part; they stand for an unknown extent.
        least: as which open sizes that say how many rows there are count at least, whatever is likely.
        keeps_rows: rows are kept in registers, or are not; None: by how long they may be.
    """

    draft: Draft
    target: Target
    options: TritonOptions
    points: int | None = None
    least: int = 1
    keeps_rows: bool | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel that is computed."""
        return self.draft.kernel

    @cached_property
    def analysis(self) -> KernelAnalysis:
        """Facts about the kernel."""
        return KernelAnalysis(self.kernel, self.target.machine)

    @cached_property
    def streamed_args(self) -> frozenset[str]:
        """Arguments that pass through the second-level cache."""
        return find_streaming_args(self.kernel, self.analysis.roots, self.target)

    @property
    def is_flat(self) -> bool:
        """Rows have no tile of their own: a point is a step, or the kernel counts its points."""
        return self.draft.coarsening > 1 or self.draft.bins > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The decisions so far on how a kernel is to run.

    Attributes:
        groups: the ranges of each tile.
        numels: the points of each tile.
        lanes: in how many lanes each row of the x tile stands; 0 where rows follow each other.
        sharing: how programs share rows, if they do.
        walk: how the r tile is walked.
        is_invariant: one launch for all numbers of rows is asked for, and concerns this kernel.
        facts: what launches rest on, once tiles and walks are proposed.
        configs: launch candidates, best guess first.
        loads_ahead: loads may be in flight for blocks of a loop that are still to come.
        axes: tiles in the order of their axes in blocks.
        width: neighbours that a thread has together, at least; 1 where the next thread has the next element.
        narrow_width: neighbours along r that threads are to access at once, where wider accesses leave
            more lanes idle; else 0.
        index_dtype: type of offsets and sizes.
    """

    groups: Mapping[Letter, Sequence[Range]] = field(default_factory=lambda: MappingProxyType({}))
    numels: Mapping[Letter, Expr] = field(default_factory=lambda: MappingProxyType({}))
    lanes: int = 0
    sharing: RowSharing | None = None
    walk: Walk = "pointwise"
    is_invariant: bool = False
    facts: Facts | None = None
    configs: tuple[Config, ...] = ()
    loads_ahead: bool = False
    axes: tuple[Letter, ...] = ("z", "y", "x", "w", "r")
    width: int = 1
    narrow_width: int = 0
    index_dtype: DType = DType.I64


def launch_facts(setting: Setting, proposal: Proposal) -> Facts:
    """Facts that launches rest on, once tiles and walks are proposed."""
    if proposal.facts is not None:
        return proposal.facts
    known = setting.draft.likely_sizes
    larger = {size: max(setting.least, number) for size, number in known.items()}
    groups, walk, draft = proposal.groups, proposal.walk, setting.draft
    row = as_int(multiply_all(r.extent for r in groups.get("r", ()))) or 0
    return Facts(
        work=setting.analysis.work,
        walk=walk,
        extents={
            letter: _estimate(
                multiply_all(r.extent for r in ranges),
                letter,
                walk,
                setting.points,
                known if letter == "r" or (letter == "x" and "y" in groups) else larger,
            )
            for letter, ranges in groups.items()
        },
        coalescing={k: min(1.0, draft.share_along(ranges)) for k, ranges in groups.items()},
        padded=proposal.lanes > 0,
        step=draft.coarsening,
        neighbours=draft.neighbours,
        piece=0 if proposal.sharing is None else proposal.sharing.length,
        row=row if walk == "persistent" else 0,
        first=0 if draft.topk is None else compute_topk_block(draft.topk),
        bins=draft.bins,
    )


def _estimate(numel: Expr, letter: Letter, walk: Walk, points: int | None, likely: Mapping[Expr, int]) -> int:
    exact = as_int(numel)
    if exact is not None:
        return exact
    if points is not None and letter == "x":
        return points
    longest = find_bounds(numel).hi
    if letter == "r" and walk == "persistent" and longest is not None:
        return longest
    return max(1, evaluate(numel, {s.name: likely.get(s) or _typical(s) for s in numel.free_symbols}))


def _typical(size: Expr) -> int:
    low, high = find_bounds(size)
    return max(1, low or 1, min(UNKNOWN_EXTENT, UNKNOWN_EXTENT if high is None else high))
