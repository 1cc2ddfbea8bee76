"""How rows are reduced, scanned or sorted: in one piece, block by block, or by several programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, bounds, product
from coilwork_ir.scalar import Load
from coilwork_triton.capabilities import capabilities_of
from coilwork_triton.facts.kernel_analysis import LONGEST_ROW
from coilwork_triton.launch.parameters import Walk, next_power_of_two
from coilwork_triton.options import TritonOptions
from coilwork_triton.proposals.proposal import Proposal, Setting
from coilwork_triton.rule_table import Rule, RuleTable, always


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    setting: Setting
    proposal: Proposal

    @property
    def row(self) -> Expr | None:
        """Points of a row, if there are rows."""
        return self.proposal.numels.get("r")

    @property
    def longest(self) -> int | None:
        """Most points of a row, if that is known."""
        return None if self.row is None else bounds(self.row).hi

    @property
    def is_in_row_loop(self) -> bool:
        """Rows are taken one after the other, for sums of their columns."""
        return any(r.kind == "walked" for r in self.setting.kernel.ranges)

    def fits(self, limit: int) -> bool:
        """A row takes at most `limit` lanes."""
        return self.longest is not None and next_power_of_two(self.longest) <= limit


_Pattern = Callable[[_Question], bool]


def _fits_in_row_loop(q: _Question) -> bool:
    # there is no other way to walk rows
    limit = max(q.setting.options.persistent_limit, TritonOptions().persistent_limit)
    return q.is_in_row_loop and q.fits(limit)


def _is_kept(q: _Question) -> bool:
    if q.is_in_row_loop or not q.fits(q.setting.options.persistent_limit):
        return False
    kept = q.setting.keeps_rows
    return keeps_rows(q.setting, q.longest) if kept is None else kept


def _rule(name: str, walk: Walk, why: str, matches: _Pattern) -> Rule[_Question, Walk]:
    return Rule(name=name, matches=matches, answer=lambda q: walk, why=why)


WALKS: Final[RuleTable[_Question, Walk]] = RuleTable(
    rules=(
        _rule(
            "shared-rows",
            "shared",
            "programs that share a row tell each other what their pieces combine to",
            lambda q: q.proposal.sharing is not None,
        ),
        _rule(
            "sorted-rows",
            "persistent",
            "elements of a row to sort are exchanged in registers",
            lambda q: bool(q.setting.analysis.sorts),
        ),
        _rule(
            "segments",
            "looped",
            "a loop over rows that end early ends early",
            lambda q: q.setting.analysis.is_segmented,
        ),
        _rule(
            "invariant-rows",
            "looped",
            "blocks of one length add a row's elements in the same order whatever rows are beside it",
            lambda q: q.proposal.is_invariant,
        ),
        _rule("no-rows", "pointwise", "there is nothing to reduce, scan or sort", lambda q: q.row is None),
        _rule(
            "row-loop",
            "persistent",
            "each row of a loop is reduced in registers, between its loads and the sums of columns",
            _fits_in_row_loop,
        ),
        _rule(
            "kept-rows",
            "persistent",
            "a row that fits the registers of one program is read once, which the scheduler counts on",
            _is_kept,
        ),
        _rule("long-rows", "looped", "what does not fit registers goes through them in blocks", always),
    )
)


def keeps_rows(setting: Setting, longest: int | None) -> bool:
    """True if rows of at most `longest` points stay in registers from one pass to the next; None: any number
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
    rows = capabilities_of(setting.target).rows
    across = along["parallel"]
    in_blocks = rows.are_across(across=across, along=along["reduction"])
    return rows.keeps(
        longest,
        across=across > along["reduction"] or (in_blocks and not setting.analysis.work.rereads_rows),
        values=sum(not reduced.isdisjoint(load.index[0].free_symbols) for load in loads),
    )


def choose_walk(setting: Setting, proposal: Proposal) -> Walk:
    """How rows are walked.

    Raises:
        EmitError: rows that are walked along with their columns do not stay in registers.
    """
    question = _Question(setting=setting, proposal=proposal)
    walk = WALKS.answer(question)
    if walk != "persistent" and question.is_in_row_loop:
        raise EmitError(
            "walked-rows",
            f"rows of kernel {setting.kernel.name} are walked, but do not stay in registers",
            origins=setting.kernel.origins,
            remedy="schedule rows and columns as two kernels",
        )
    return walk


def check_sorts(setting: Setting, proposal: Proposal) -> None:
    """Raises EmitError: the rows that the kernel sorts do not stay in registers."""
    row = proposal.groups.get("r", ())
    length = bounds(product(r.extent for r in row)).hi
    if len(row) != 1 or "w" in proposal.groups or length is None or length > LONGEST_ROW:
        raise EmitError(
            "sort-row",
            f"kernel {setting.kernel.name} sorts rows that do not stay in registers",
            origins=setting.kernel.origins,
            remedy="run the sort as an external call",
        )
