"""How many neighbours a thread has together: 16 bytes of them, or one if the next thread has the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_triton.facts.vectorization import even_width, needs_scalar_access, row_width
from coilwork_triton.launch.parameters import Facts
from coilwork_triton.launch.reductions import narrower
from coilwork_triton.proposals.proposal import Proposal, Setting
from coilwork_triton.rule_table import Rule, RuleTable, always

# Elements of 4 bytes in 16, which a thread loads at once.
WHOLE_VECTOR: Final = 4
# Bytes of elements of one thread beside which those of the next are near.
_PAIR: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    setting: Setting
    proposal: Proposal
    facts: Facts

    @property
    def is_along_row(self) -> bool:
        """Neighbouring addresses lie along the reduction."""
        return self.facts.coalescing["r"] >= self.facts.coalescing.get("x", 0.0)


def _is_near_anyway(q: _Question) -> bool:
    if not q.facts.padded:
        return False
    width = row_width(q.setting.kernel.ranges[-1].symbol, q.setting.analysis.accesses)
    return width * q.facts.work.element_bytes <= _PAIR


def _has_wide_accesses(q: _Question) -> bool:
    facts, groups, share = q.facts, q.proposal.groups, q.facts.coalescing
    ranges, touched = q.setting.kernel.ranges, q.setting.analysis.accesses
    grids = q.setting.target.machine.grids
    if facts.work.is_segmented and "y" not in groups:
        # what single elements look up lies anywhere, and lanes in another order would have to be brought into
        # it at each step
        return False
    if "r" in groups and q.is_along_row:
        return not needs_scalar_access(ranges, touched, grids, flat=len(groups["r"]) > 1)
    if "x" not in groups or max(share.get("y", 0.0), share.get("z", 0.0)) > grids.transposed_share:
        return True
    others = [r for r in ranges if r not in groups["x"]]
    return not needs_scalar_access(
        [*others, *groups["x"]], touched, grids, flat=len(groups["x"]) > 1 and not facts.padded
    )


def _even_width(q: _Question) -> int:
    setting = q.setting
    return even_width(
        setting.kernel.ranges,
        setting.analysis.accesses,
        setting.target.machine.grids,
        flat=len(q.proposal.groups["r"]) > 1,
    )


def _rule(
    name: str, width: int | Callable[[_Question], int], why: str, matches: Callable[[_Question], bool]
) -> Rule[_Question, int]:
    return Rule(name=name, matches=matches, answer=width if callable(width) else lambda q: width, why=why)


WIDTHS: Final[RuleTable[_Question, int]] = RuleTable(
    rules=(
        _rule(
            "invariant",
            1,
            "where a row begins decides how wide it may be accessed, "
            "and that which elements a thread adds first",
            lambda q: q.proposal.is_invariant,
        ),
        _rule(
            "narrow-padded-rows",
            WHOLE_VECTOR,
            "what a thread has is little, so that neighbouring threads are near each other",
            _is_near_anyway,
        ),
        _rule(
            "steps",
            WHOLE_VECTOR,
            "the points of a step are what a thread accesses at once",
            lambda q: q.facts.step > 1,
        ),
        _rule(
            "wide-accesses",
            WHOLE_VECTOR,
            "most bytes lie where 16 of them are accessed at once",
            _has_wide_accesses,
        ),
        _rule(
            "no-rows-along-memory",
            1,
            "elements that are accessed one by one belong to neighbouring threads",
            lambda q: q.facts.work.is_segmented or "r" not in q.proposal.groups or not q.is_along_row,
        ),
        _rule(
            "even-rows",
            _even_width,
            "rows that begin at multiples of fewer bytes are accessed as wide as that allows",
            always,
        ),
    )
)


def choose_width(setting: Setting, proposal: Proposal, facts: Facts) -> int:
    """Neighbours that a thread has together, at least; 1 where the next thread has the next element."""
    return WIDTHS.answer(_Question(setting=setting, proposal=proposal, facts=facts))


def choose_together(setting: Setting, proposal: Proposal, facts: Facts) -> int:
    """Neighbours along r that threads access at once, where wider accesses leave more lanes idle; else 0."""
    question = _Question(setting=setting, proposal=proposal, facts=facts)
    if proposal.is_invariant or setting.analysis.sorts:
        return 0
    alone = "r" in proposal.groups and question.is_along_row
    most = setting.target.machine.grids.transposed_share
    if not alone or facts.coalescing.get("x", 0.0) > most:
        return 0
    return narrower(facts, proposal.configs[0], setting.target)
