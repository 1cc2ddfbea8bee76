"""A proposal as a mapping, with the numbers of its candidates: what is handed to whoever writes the text.

tile x0 by ?XBLOCK in 1 2 4
keep r0 by 8192
lanes r0 by 4
warps ?num_warps in 8 4 16
index i32
contract
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from coilwork_ir.device_traits import FAST_F64
from coilwork_ir.dtypes import DType
from coilwork_ir.index import as_int, ceildiv, extent_of, provably_le
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Range
from coilwork_ir.mapping import (
    Coarsen,
    Contract,
    Directive,
    Evict,
    FlatGrid,
    Index,
    Invariant,
    Keep,
    Lanes,
    Loop,
    Number,
    Privatise,
    Runs,
    Select,
    Sequential,
    Share,
    Sort,
    Tile,
    Warps,
)
from coilwork_ir.mapping import Mapping as Directives
from coilwork_ir.target import Target
from coilwork_triton.iteration.mapping_parameters import chosen
from coilwork_triton.iteration.refusals import GRID_AXIS_MAX
from coilwork_triton.launch.parameters import (
    BLOCKS,
    RUN,
    SORT_GROUPS,
    SORT_ROOM,
    SORT_SHARE,
    SORT_SPREAD,
    SORT_THREADS,
    SORT_WIDTH,
    STAGES,
    WARPS,
    Letter,
)
from coilwork_triton.proposals.decisions import WHOLE_VECTOR
from coilwork_triton.proposals.proposal import Proposal, Setting

_INNERMOST_FIRST: Final[tuple[Letter, ...]] = ("x", "y", "z")


def outline(setting: Setting, proposal: Proposal, numbers: Mapping[str, Number]) -> Directives:
    """The kernel of `setting` as `proposal` runs it, with `numbers` for the parameters of its launch."""
    return Directives(
        directives=(
            *_cuts(setting, proposal, numbers),
            *_rows(setting, proposal, numbers),
            *_threads(setting, proposal),
            Warps(count=numbers[WARPS]),
            *_memory(setting, proposal),
            *([Contract()] if proposal.configs[0].fp_fusion else []),
        )
    )


def _cuts(setting: Setting, proposal: Proposal, numbers: Mapping[str, Number]) -> Iterator[Directive]:
    """Return which points programs have."""
    groups = proposal.groups
    for letter in _INNERMOST_FIRST:
        if letter in groups:
            yield Tile(ranges=_names(groups[letter]), by=numbers[BLOCKS[letter]], padded=proposal.lanes)
    # programs that share rows count along one axis in any case
    if _is_crowded(proposal) if proposal.sharing is None else len(groups) > 2:
        yield FlatGrid()
    if setting.draft.coarsening > 1:
        yield Coarsen(range=setting.kernel.ranges[-1].symbol.name, by=setting.draft.coarsening)


def _is_crowded(proposal: Proposal) -> bool:
    """True if an axis of the grid that is not its first one may not have room for all programs."""
    for letter in _INNERMOST_FIRST[1:]:
        if letter in proposal.groups:
            least = min(dict(config.meta)[BLOCKS[letter]] for config in proposal.configs)
            if not provably_le(ceildiv(proposal.numels[letter], least), GRID_AXIS_MAX):
                return True
    return False


def _rows(setting: Setting, proposal: Proposal, numbers: Mapping[str, Number]) -> Iterator[Directive]:
    """How rows are walked, scanned and sorted."""
    groups, stages = proposal.groups, numbers.get(STAGES, 1)
    if "w" in groups:
        yield Sequential(ranges=_names(groups["w"]), by=numbers[BLOCKS["w"]], stages=stages)
    if "r" not in groups:
        return
    ranges, block, sharing = _names(groups["r"]), numbers[BLOCKS["r"]], proposal.sharing
    if sharing is not None:
        yield Share(ranges=ranges, by=sharing.length, workspace=sharing.workspace)
    elif proposal.walk == "persistent":
        yield Keep(ranges=ranges, by=block, first=proposal.axes[0] == "r" and len(groups) > 1)
    else:
        yield Loop(ranges=ranges, by=block, stages=stages)
    if proposal.is_invariant:
        yield Invariant(lanes=chosen(block), block=chosen(block))
    yield from _order(setting, ranges[-1], numbers)


def _order(setting: Setting, axis: str, numbers: Mapping[str, Number]) -> Iterator[Directive]:
    """How rows are scanned and sorted along `axis`."""
    if RUN in numbers:
        yield Runs(range=axis, by=numbers[RUN])
    if SORT_THREADS in numbers:
        fast = setting.target.has(FAST_F64)
        keys: Final = "float" if fast else "integer"
        yield Sort(range=axis, threads=numbers[SORT_THREADS], width=numbers[SORT_WIDTH], keys=keys)
    if setting.draft.topk is not None:
        yield Select(
            range=axis,
            first=as_int(extent_of(setting.draft.topk)) or 0,
            share=numbers[SORT_SHARE],
            groups=numbers[SORT_GROUPS],
            room=numbers[SORT_ROOM],
            spread=numbers[SORT_SPREAD],
        )


def _threads(setting: Setting, proposal: Proposal) -> Iterator[Directive]:
    """How many neighbours a thread has together, and accesses at once."""
    groups = proposal.groups
    rows = _names(groups.get("r", ()))[-1:]
    chunk = min(proposal.width, _chunk(proposal.configs, setting.target))
    if proposal.width == 1:
        along = rows or next((_names(groups[one])[-1:] for one in _INNERMOST_FIRST if one in groups), ())
        if along:
            yield Lanes(ranges=along, by=1)
    if chunk > 1:
        yield Lanes(ranges=rows, by=chunk)
    if proposal.together:
        yield Lanes(ranges=rows, by=proposal.together, narrow=True)


def _chunk(configs: tuple[Config, ...], target: Target) -> int:
    """Elements of 4 bytes in 16, which a thread loads at once, if all threads of every candidate then have
    some.
    """
    blocks = [(dict(c.meta).get(BLOCKS["r"], 1), c.num_warps * target.warp_size) for c in configs]
    return WHOLE_VECTOR if all(block >= WHOLE_VECTOR * threads for block, threads in blocks) else 1


def _memory(setting: Setting, proposal: Proposal) -> Iterator[Directive]:
    """Return where data go on their way, and of what type positions are."""
    kernel = setting.kernel
    if setting.draft.bins:
        args = tuple(dict.fromkeys(store.buffer for store in kernel.stores))
        yield Privatise(args=args, bins=setting.draft.bins)
    if setting.streamed:
        yield Evict(args=tuple(a.name for a in kernel.args if a.name in setting.streamed), priority="first")
    if proposal.index_dtype is DType.I64:
        yield Index(dtype="i64")
    else:
        yield Index(dtype="i32", promised=setting.options.index_dtype == "i32")


def _names(ranges: Sequence[Range]) -> tuple[str, ...]:
    return tuple(r.symbol.name for r in ranges)
