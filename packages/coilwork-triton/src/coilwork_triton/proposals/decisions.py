"""The decisions of how a kernel runs, in order and with reasons: `PROPOSALS`. Each adds to those before it.

Decisions with several answers are tables of rules, with a pattern and a reason per row: `TILINGS` says
which ranges are one tile, `WALKS` how rows are reduced, scanned or sorted, `WIDTHS` how many neighbours a
thread has. To add an answer, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, find_bounds, multiply_all, provably_le
from coilwork_ir.kernel_source import Config
from coilwork_ir.kernels import Range
from coilwork_ir.kernels.alias_analysis import can_load_ahead
from coilwork_ir.passes import Before, Pass, PassTable
from coilwork_ir.scalar import Load
from coilwork_triton.capabilities import get_capabilities
from coilwork_triton.facts.kernel_analysis import LONGEST_SORTED_ROW, find_gather_range
from coilwork_triton.facts.vectorization import (
    count_padded_lanes,
    find_row_width,
    find_uniform_width,
    should_access_scalars,
    should_tile_column_pieces,
    should_tile_rows,
)
from coilwork_triton.iteration.shape import find_row_sharing, must_use_64_bits
from coilwork_triton.launch.configs import make_invariant_launch, propose_launches
from coilwork_triton.launch.parameters import (
    STAGES,
    Facts,
    Letter,
    Walk,
    is_reduction_across,
    round_up_to_power_of_two,
)
from coilwork_triton.launch.reductions import choose_narrow_access
from coilwork_triton.options import TritonOptions
from coilwork_triton.proposals.proposal import Proposal, Setting, launch_facts
from coilwork_triton.rule_table import Rule, RuleTable, match_always

# The table


def _tile_ranges(proposal: Proposal, setting: Setting) -> Proposal:
    groups = tile_ranges(setting)
    numels, lanes = pad_rows(setting, groups)
    invariant = setting.options.batch_invariant and "r" in groups and not setting.analysis.sorts
    return replace(proposal, groups=groups, numels=numels, lanes=lanes, is_invariant=invariant)


def _share_rows(proposal: Proposal, setting: Setting) -> Proposal:
    analysis = setting.analysis
    if analysis.sorts:
        check_sorts(setting, proposal)
    if proposal.is_invariant or analysis.sorts or analysis.is_segmented:
        return proposal
    return replace(proposal, sharing=find_row_sharing(setting.kernel, analysis.roots, setting.target))


def _walk(proposal: Proposal, setting: Setting) -> Proposal:
    if proposal.is_invariant and "w" in proposal.groups:
        raise EmitError(
            "mapping-invariant",
            f"kernel {setting.kernel.name} walks rows in pieces, whose number decides the order of sums",
            origins=setting.kernel.origins,
            remedy="schedule rows and columns as two kernels, or leave out `batch_invariant`",
        )
    walk = choose_walk(setting, proposal)
    ahead = walk in ("persistent", "shared") or can_load_ahead(setting.kernel, setting.analysis.roots)
    return replace(proposal, walk=walk, loads_ahead=ahead)


def _launch(proposal: Proposal, setting: Setting) -> Proposal:
    facts = launch_facts(setting, proposal)
    if proposal.is_invariant:
        found = make_invariant_launch(
            proposal.groups, setting.target, staged=not setting.analysis.is_segmented
        )
    else:
        found = propose_launches(facts, setting.target, setting.options.max_configs)
    return replace(proposal, facts=facts, configs=tuple(_set_arithmetic(c, proposal, setting) for c in found))


def _set_arithmetic(config: Config, proposal: Proposal, setting: Setting) -> Config:
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
    if not reduced or known or not is_reduction_across(launch_facts(setting, proposal)):
        return proposal
    return replace(proposal, axes=("r", "z", "y", "x"))


def _set_widths(proposal: Proposal, setting: Setting) -> Proposal:
    facts = launch_facts(setting, proposal)
    return replace(
        proposal,
        width=choose_width(setting, proposal, facts),
        narrow_width=choose_together(setting, proposal, facts),
    )


def _set_offsets(proposal: Proposal, setting: Setting) -> Proposal:
    choice = setting.options.index_dtype
    wide = choice == "i64" or (
        choice == "auto"
        and must_use_64_bits(setting.kernel, tuple(proposal.numels.values()), setting.analysis.roots)
    )
    return replace(proposal, index_dtype=DType.I64 if wide else DType.I32)


PROPOSALS: Final[PassTable[Proposal, Setting]] = PassTable(
    passes=(
        Pass(
            name="tile",
            run=_tile_ranges,
            why=(
                "ranges that are walked together share a block size, a "
                "grid axis and a mask (`tiling.TILINGS`)"
            ),
        ),
        Pass(
            name="share-rows",
            run=_share_rows,
            why="few long rows keep a device busy if several programs have a piece of each",
        ),
        Pass(
            name="walk-rows",
            run=_walk,
            why=(
                "a row in registers is read once, and one that is not goes through them in blocks (`WALKS`)"
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


# Tiles


Groups = dict[Letter, list[Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TilingQuestion:
    """`groups` are the ranges of each tile by strides alone."""

    setting: Setting
    groups: Groups

    @property
    def is_line(self) -> bool:
        return tuple(self.groups) == ("x",) and not self.setting.is_flat

    @property
    def is_columns(self) -> bool:
        return tuple(self.groups) == ("x", "r")


def _has_rows_apart(q: _TilingQuestion) -> bool:
    analysis = q.setting.analysis
    grids, likely = q.setting.target.machine.grids, q.setting.draft.likely_sizes
    return q.is_line and should_tile_rows(q.groups["x"], analysis.accesses, grids, likely)


def _has_pieces_of_columns(q: _TilingQuestion) -> bool:
    analysis = q.setting.analysis
    draft = q.setting.draft
    if not q.is_columns or analysis.is_segmented:
        return False
    if draft.share_along(q.groups["x"]) <= draft.share_along(q.groups["r"]):
        return False
    grids = q.setting.target.machine.grids
    return should_tile_column_pieces(q.groups["x"], analysis.accesses, grids, draft.likely_sizes)


def _has_segments_per_row(q: _TilingQuestion) -> bool:
    if not (q.is_columns and q.setting.analysis.is_segmented):
        return False
    inner = find_gather_range(q.groups["x"], q.setting.analysis.roots)
    return any(as_int(r.extent) != 1 for r in q.groups["x"] if r is not inner)


def _split_innermost(q: _TilingQuestion) -> Groups:
    inner = next(r for r in reversed(q.groups["x"]) if as_int(r.extent) != 1)
    return _split(q.groups, inner)


def _split_segments(q: _TilingQuestion) -> Groups:
    inner = find_gather_range(q.groups["x"], q.setting.analysis.roots)
    outer = [r for r in q.groups["x"] if r is not inner]
    return {"y": outer, "x": [inner], "r": q.groups["r"]}


def _split(groups: Groups, inner: Range) -> Groups:
    outer: Groups = {"y": [r for r in groups["x"] if r is not inner], "x": [inner]}
    return outer | {letter: ranges for letter, ranges in groups.items() if letter != "x"}


TILINGS: Final[RuleTable[_TilingQuestion, Groups]] = RuleTable(
    rules=(
        Rule(
            name="rows-apart",
            matches=_has_rows_apart,
            answer=_split_innermost,
            why=(
                "long rows that no accesses of 16 bytes cross are walked "
                "row by row, without a division per element"
            ),
        ),
        Rule(
            name="pieces-of-columns",
            matches=_has_pieces_of_columns,
            answer=_split_innermost,
            why="columns that are neighbours within a row alone are reduced row by row of them",
        ),
        Rule(
            name="segments-per-row",
            matches=_has_segments_per_row,
            answer=_split_segments,
            why="rows of results that end early have one length each, and few of them belong to a program",
        ),
        Rule(
            name="by-strides",
            matches=match_always,
            answer=lambda q: q.groups,
            why="ranges whose neighbours in memory lie along the innermost one are flattened into its tile",
        ),
    )
)


def tile_ranges(setting: Setting) -> Groups:
    """Return the ranges of each tile."""
    return TILINGS.answer(_TilingQuestion(setting=setting, groups=setting.draft.group_ranges()))


def pad_rows(setting: Setting, groups: Groups) -> tuple[Mapping[Letter, Expr], int]:
    """Return the points of each tile, and in how many lanes each row of x stands; 0 where rows follow each
    other.
    """
    numels: dict[Letter, Expr] = {k: multiply_all(r.extent for r in ranges) for k, ranges in groups.items()}
    many = setting.target.machine.grids.enough_points * setting.target.multiprocessors
    if tuple(groups) != ("x",) or setting.is_flat or not provably_le(many, numels["x"]):
        return numels, 0
    lanes = count_padded_lanes(setting.kernel, setting.analysis.accesses, setting.target.machine.grids)
    if lanes:
        numels["x"] = multiply_all(r.extent for r in groups["x"][:-1]) * lanes
    return numels, lanes


# Walks


@dataclass(frozen=True, slots=True, kw_only=True)
class _WalkQuestion:
    setting: Setting
    proposal: Proposal

    @property
    def row(self) -> Expr | None:
        """Points of a row, if there are rows."""
        return self.proposal.numels.get("r")

    @property
    def longest(self) -> int | None:
        """Most points of a row, if that is known."""
        return None if self.row is None else find_bounds(self.row).hi

    @property
    def is_in_row_loop(self) -> bool:
        """Rows are taken one after the other, for sums of their columns."""
        return any(r.kind == "sequential" for r in self.setting.kernel.ranges)

    def fits(self, limit: int) -> bool:
        """A row takes at most `limit` lanes."""
        return self.longest is not None and round_up_to_power_of_two(self.longest) <= limit


_Pattern = Callable[[_WalkQuestion], bool]


def _fits_in_row_loop(q: _WalkQuestion) -> bool:
    # there is no other way to walk rows
    limit = max(q.setting.options.persistent_limit, TritonOptions().persistent_limit)
    return q.is_in_row_loop and q.fits(limit)


def _is_kept(q: _WalkQuestion) -> bool:
    if q.is_in_row_loop or not q.fits(q.setting.options.persistent_limit):
        return False
    kept = q.setting.keeps_rows
    return can_keep_rows(q.setting, q.longest) if kept is None else kept


def _walk_rule(name: str, walk: Walk, why: str, matches: _Pattern) -> Rule[_WalkQuestion, Walk]:
    return Rule(name=name, matches=matches, answer=lambda q: walk, why=why)


WALKS: Final[RuleTable[_WalkQuestion, Walk]] = RuleTable(
    rules=(
        _walk_rule(
            "shared-rows",
            "shared",
            "programs that share a row tell each other what their pieces combine to",
            lambda q: q.proposal.sharing is not None,
        ),
        _walk_rule(
            "sorted-rows",
            "persistent",
            "elements of a row to sort are exchanged in registers",
            lambda q: bool(q.setting.analysis.sorts),
        ),
        _walk_rule(
            "segments",
            "looped",
            "a loop over rows that end early ends early",
            lambda q: q.setting.analysis.is_segmented,
        ),
        _walk_rule(
            "invariant-rows",
            "looped",
            "blocks of one length add a row's elements in the same order whatever rows are beside it",
            lambda q: q.proposal.is_invariant,
        ),
        _walk_rule(
            "no-rows", "pointwise", "there is nothing to reduce, scan or sort", lambda q: q.row is None
        ),
        _walk_rule(
            "row-loop",
            "persistent",
            "each row of a loop is reduced in registers, between its loads and the sums of columns",
            _fits_in_row_loop,
        ),
        _walk_rule(
            "kept-rows",
            "persistent",
            "a row that fits the registers of one program is read once, which the scheduler counts on",
            _is_kept,
        ),
        _walk_rule(
            "long-rows", "looped", "what does not fit registers goes through them in blocks", match_always
        ),
    )
)


def can_keep_rows(setting: Setting, longest: int | None) -> bool:
    """Tell if rows of at most `longest` points stay in registers from one pass to the next; None: any number
    of them.

    As costs have it that schedulers reckon with (`coilwork_triton.capabilities`). What is read once in blocks
    of neighbouring rows has nothing to keep.
    """
    kernel = setting.kernel
    reduced = {r.symbol for r in kernel.ranges if r.kind == "reduction"}
    if longest is None or not reduced:
        return False
    along = {"parallel": 0.0, "reduction": 0.0}
    for one in kernel.ranges:
        along[one.kind] = max(along.get(one.kind, 0.0), setting.draft.share_along((one,)))
    loads = [v for v in setting.analysis.nodes if isinstance(v, Load)]
    rows = get_capabilities(setting.target).rows
    across = along["parallel"]
    in_blocks = rows.are_across(across=across, along=along["reduction"])
    return rows.keeps(
        longest,
        across=across > along["reduction"] or (in_blocks and not setting.analysis.work.rereads_rows),
        values=sum(not reduced.isdisjoint(load.index[0].free_symbols) for load in loads),
    )


def choose_walk(setting: Setting, proposal: Proposal) -> Walk:
    """Return how rows are walked.

    Raises:
        EmitError: rows that are walked along with their columns do not stay in registers.
    """
    question = _WalkQuestion(setting=setting, proposal=proposal)
    walk = WALKS.answer(question)
    if walk != "persistent" and question.is_in_row_loop:
        raise EmitError(
            "sequential-rows",
            f"rows of kernel {setting.kernel.name} are walked, but do not stay in registers",
            origins=setting.kernel.origins,
            remedy="schedule rows and columns as two kernels",
        )
    return walk


def check_sorts(setting: Setting, proposal: Proposal) -> None:
    """Raises EmitError: the rows that the kernel sorts do not stay in registers."""
    row = proposal.groups.get("r", ())
    length = find_bounds(multiply_all(r.extent for r in row)).hi
    if len(row) != 1 or "w" in proposal.groups or length is None or length > LONGEST_SORTED_ROW:
        raise EmitError(
            "sort-row",
            f"kernel {setting.kernel.name} sorts rows that do not stay in registers",
            origins=setting.kernel.origins,
            remedy="run the sort as an external call",
        )


# Access widths


# Elements of 4 bytes in 16, which a thread loads at once.
WHOLE_VECTOR: Final = 4
# Bytes of elements of one thread beside which those of the next are near.
_PAIR: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _WidthQuestion:
    setting: Setting
    proposal: Proposal
    facts: Facts

    @property
    def is_along_row(self) -> bool:
        """Neighbouring addresses lie along the reduction."""
        return self.facts.coalescing["r"] >= self.facts.coalescing.get("x", 0.0)


def _is_near_anyway(q: _WidthQuestion) -> bool:
    if not q.facts.padded:
        return False
    width = find_row_width(q.setting.kernel.ranges[-1].symbol, q.setting.analysis.accesses)
    return width * q.facts.work.element_bytes <= _PAIR


def _has_wide_accesses(q: _WidthQuestion) -> bool:
    facts, groups, share = q.facts, q.proposal.groups, q.facts.coalescing
    ranges, touched = q.setting.kernel.ranges, q.setting.analysis.accesses
    grids = q.setting.target.machine.grids
    if facts.work.is_segmented and "y" not in groups:
        # what single elements look up lies anywhere, and lanes in another order would have to be brought into
        # it at each step
        return False
    if "r" in groups and q.is_along_row:
        return not should_access_scalars(ranges, touched, grids, flat=len(groups["r"]) > 1)
    if "x" not in groups or max(share.get("y", 0.0), share.get("z", 0.0)) > grids.transposed_share:
        return True
    others = [r for r in ranges if r not in groups["x"]]
    return not should_access_scalars(
        [*others, *groups["x"]], touched, grids, flat=len(groups["x"]) > 1 and not facts.padded
    )


def _find_even_width(q: _WidthQuestion) -> int:
    setting = q.setting
    return find_uniform_width(
        setting.kernel.ranges,
        setting.analysis.accesses,
        setting.target.machine.grids,
        flat=len(q.proposal.groups["r"]) > 1,
    )


def _width_rule(
    name: str,
    width: int | Callable[[_WidthQuestion], int],
    why: str,
    matches: Callable[[_WidthQuestion], bool],
) -> Rule[_WidthQuestion, int]:
    return Rule(name=name, matches=matches, answer=width if callable(width) else lambda q: width, why=why)


WIDTHS: Final[RuleTable[_WidthQuestion, int]] = RuleTable(
    rules=(
        _width_rule(
            "invariant",
            1,
            "where a row begins decides how wide it may be accessed, "
            "and that which elements a thread adds first",
            lambda q: q.proposal.is_invariant,
        ),
        _width_rule(
            "narrow-padded-rows",
            WHOLE_VECTOR,
            "what a thread has is little, so that neighbouring threads are near each other",
            _is_near_anyway,
        ),
        _width_rule(
            "steps",
            WHOLE_VECTOR,
            "the points of a step are what a thread accesses at once",
            lambda q: q.facts.step > 1,
        ),
        _width_rule(
            "wide-accesses",
            WHOLE_VECTOR,
            "most bytes lie where 16 of them are accessed at once",
            _has_wide_accesses,
        ),
        _width_rule(
            "no-rows-along-memory",
            1,
            "elements that are accessed one by one belong to neighbouring threads",
            lambda q: q.facts.work.is_segmented or "r" not in q.proposal.groups or not q.is_along_row,
        ),
        _width_rule(
            "even-rows",
            _find_even_width,
            "rows that begin at multiples of fewer bytes are accessed as wide as that allows",
            match_always,
        ),
    )
)


def choose_width(setting: Setting, proposal: Proposal, facts: Facts) -> int:
    """Neighbours that a thread has together, at least; 1 where the next thread has the next element."""
    return WIDTHS.answer(_WidthQuestion(setting=setting, proposal=proposal, facts=facts))


def choose_together(setting: Setting, proposal: Proposal, facts: Facts) -> int:
    """Neighbours along r that threads access at once, where wider accesses leave more lanes idle; else 0."""
    question = _WidthQuestion(setting=setting, proposal=proposal, facts=facts)
    if proposal.is_invariant or setting.analysis.sorts:
        return 0
    alone = "r" in proposal.groups and question.is_along_row
    most = setting.target.machine.grids.transposed_share
    if not alone or facts.coalescing.get("x", 0.0) > most:
        return 0
    return choose_narrow_access(facts, proposal.configs[0], setting.target)
