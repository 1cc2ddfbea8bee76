"""The decisions of how a kernel runs, in order and with reasons: `PROPOSALS`. Each adds to those
before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels.overwriting import loads_ahead
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_triton.iteration.shape import needs_64_bits, sharing_of
from coilwork_triton.launch.configs import fixed, propose
from coilwork_triton.launch.parameters import STAGES, reduces_across
from coilwork_triton.proposals.access_width import choose_together, choose_width
from coilwork_triton.proposals.proposal import Proposal, Setting, launch_facts
from coilwork_triton.proposals.tiling import pad_rows, tile_ranges
from coilwork_triton.proposals.walks import check_sorts, choose_walk


def _tile(proposal: Proposal, setting: Setting) -> Proposal:
    groups = tile_ranges(setting)
    numels, lanes = pad_rows(setting, groups)
    invariant = setting.options.batch_invariant and "r" in groups and not setting.analysis.sorts
    return replace(proposal, groups=groups, numels=numels, lanes=lanes, is_invariant=invariant)


def _share(proposal: Proposal, setting: Setting) -> Proposal:
    analysis = setting.analysis
    if analysis.sorts:
        check_sorts(setting, proposal)
    if proposal.is_invariant or analysis.sorts or analysis.is_segmented:
        return proposal
    return replace(proposal, sharing=sharing_of(setting.kernel, analysis.roots, setting.target))


def _walk(proposal: Proposal, setting: Setting) -> Proposal:
    if proposal.is_invariant and "w" in proposal.groups:
        raise EmitError(
            "mapping-invariant",
            f"kernel {setting.kernel.name} walks rows in pieces, whose number decides the order of sums",
            origins=setting.kernel.origins,
            remedy="schedule rows and columns as two kernels, or leave out `batch_invariant`",
        )
    walk = choose_walk(setting, proposal)
    ahead = walk in ("persistent", "shared") or loads_ahead(setting.kernel, setting.analysis.roots)
    return replace(proposal, walk=walk, loads_ahead=ahead)


def _launch(proposal: Proposal, setting: Setting) -> Proposal:
    facts = launch_facts(setting, proposal)
    if proposal.is_invariant:
        found = fixed(proposal.groups, setting.target, staged=not setting.analysis.is_segmented)
    else:
        found = propose(facts, setting.target, setting.options.max_configs)
    return replace(
        proposal, facts=facts, configs=tuple(_with_arithmetic(c, proposal, setting) for c in found)
    )


def _with_arithmetic(config: Config, proposal: Proposal, setting: Setting) -> Config:
    """`config` with the kernel's arithmetic; one block of a loop at a time, unless loads may go ahead."""
    meta = config.meta
    if not proposal.loads_ahead:
        meta = tuple((name, 1 if name == STAGES else value) for name, value in meta)
    return replace(config, meta=meta, fp_fusion=setting.kernel.numerics == "fast")


def _order_axes(proposal: Proposal, setting: Setting) -> Proposal:
    analysis = setting.analysis
    if proposal.walk != "persistent" or analysis.sorts or analysis.work.scan_words:
        return proposal
    reduced = {r.symbol for r in proposal.groups.get("r", ())}
    known = any(not reduced.isdisjoint(access.index.free_symbols) for access in analysis.accesses)
    if not reduced or known or not reduces_across(launch_facts(setting, proposal)):
        return proposal
    return replace(proposal, axes=("r", "z", "y", "x"))


def _set_widths(proposal: Proposal, setting: Setting) -> Proposal:
    facts = launch_facts(setting, proposal)
    return replace(
        proposal,
        width=choose_width(setting, proposal, facts),
        together=choose_together(setting, proposal, facts),
    )


def _set_offsets(proposal: Proposal, setting: Setting) -> Proposal:
    choice = setting.options.index_dtype
    wide = choice == "i64" or (
        choice == "auto"
        and needs_64_bits(setting.kernel, tuple(proposal.numels.values()), setting.analysis.roots)
    )
    return replace(proposal, index_dtype=DType.I64 if wide else DType.I32)


PROPOSALS: Final[PassTable[Proposal, Setting]] = PassTable(
    passes=(
        Pass(
            name="tile",
            run=_tile,
            why=(
                "ranges that are walked together share a block size, a "
                "grid axis and a mask (`tiling.TILINGS`)"
            ),
        ),
        Pass(
            name="share-rows",
            run=_share,
            why="few long rows keep a device busy if several programs have a piece of each",
        ),
        Pass(
            name="walk-rows",
            run=_walk,
            why=(
                "a row in registers is read once, and one that is not goes "
                "through them in blocks (`walks.WALKS`)"
            ),
        ),
        Pass(
            name="launch",
            run=_launch,
            why="block sizes and warps decide how many bytes are in flight (`launch.configs.LAUNCHES`)",
        ),
        Pass(
            name="order-axes",
            run=_order_axes,
            why=(
                "Triton lays threads along the last axis of a block unless known "
                "places say otherwise: what is looked up has none"
            ),
        ),
        Pass(
            name="set-widths",
            run=_set_widths,
            why=(
                "wide accesses are fewest, and neighbouring threads need "
                "neighbours where there are none (`access_width.WIDTHS`)"
            ),
        ),
        Pass(
            name="set-offsets",
            run=_set_offsets,
            why="offsets of 32 bits take half the instructions, where all of them fit",
        ),
    ),
    order=(
        Before("tile", "share-rows", "rows that are sorted are checked as tiles, before any is shared"),
        Before("tile", "walk-rows", "a row is as long as its tile"),
        Before("share-rows", "walk-rows", "a row that programs share is walked piece by piece"),
        Before("walk-rows", "launch", "each walk has launches of its own"),
        Before("launch", "order-axes", "axes are of tiles whose blocks have several points"),
        Before("order-axes", "set-widths", "threads lie along the last axis, and have neighbours along it"),
        Before("launch", "set-widths", "lanes are idle by the first launch's block and warps"),
        Before("tile", "set-offsets", "positions in padded rows count empty lanes"),
        Before("set-widths", "set-offsets", "nothing depends on offsets, which are last"),
    ),
)
