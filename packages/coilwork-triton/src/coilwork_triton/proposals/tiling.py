"""Which ranges are walked together as one tile, and in how many lanes rows of it stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from coilwork_ir.index import Expr, as_int, product, provably_le
from coilwork_ir.kernels import Range
from coilwork_triton.facts.kernel_analysis import along_rows
from coilwork_triton.facts.vectorization import in_pieces, in_rows, lanes_of_rows
from coilwork_triton.launch.parameters import Letter
from coilwork_triton.proposals.proposal import Setting
from coilwork_triton.rule_table import Rule, RuleTable, always

Groups = dict[Letter, list[Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """`groups` are the ranges of each tile by strides alone."""

    setting: Setting
    groups: Groups

    @property
    def is_line(self) -> bool:
        return tuple(self.groups) == ("x",) and not self.setting.is_flat

    @property
    def is_columns(self) -> bool:
        return tuple(self.groups) == ("x", "r")


def _has_rows_apart(q: _Question) -> bool:
    analysis = q.setting.analysis
    grids, likely = q.setting.target.machine.grids, q.setting.draft.likely_sizes
    return q.is_line and in_rows(q.groups["x"], analysis.accesses, grids, likely)


def _has_pieces_of_columns(q: _Question) -> bool:
    analysis = q.setting.analysis
    draft = q.setting.draft
    if not q.is_columns or analysis.is_segmented:
        return False
    if draft.share_along(q.groups["x"]) <= draft.share_along(q.groups["r"]):
        return False
    grids = q.setting.target.machine.grids
    return in_pieces(q.groups["x"], analysis.accesses, grids, draft.likely_sizes)


def _has_segments_per_row(q: _Question) -> bool:
    if not (q.is_columns and q.setting.analysis.is_segmented):
        return False
    inner = along_rows(q.groups["x"], q.setting.analysis.roots)
    return any(as_int(r.extent) != 1 for r in q.groups["x"] if r is not inner)


def _split_innermost(q: _Question) -> Groups:
    inner = next(r for r in reversed(q.groups["x"]) if as_int(r.extent) != 1)
    return _split(q.groups, inner)


def _split_segments(q: _Question) -> Groups:
    inner = along_rows(q.groups["x"], q.setting.analysis.roots)
    outer = [r for r in q.groups["x"] if r is not inner]
    return {"y": outer, "x": [inner], "r": q.groups["r"]}


def _split(groups: Groups, inner: Range) -> Groups:
    outer: Groups = {"y": [r for r in groups["x"] if r is not inner], "x": [inner]}
    return outer | {letter: ranges for letter, ranges in groups.items() if letter != "x"}


TILINGS: Final[RuleTable[_Question, Groups]] = RuleTable(
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
            matches=always,
            answer=lambda q: q.groups,
            why="ranges whose neighbours in memory lie along the innermost one are flattened into its tile",
        ),
    )
)


def tile_ranges(setting: Setting) -> Groups:
    """The ranges of each tile."""
    return TILINGS.answer(_Question(setting=setting, groups=setting.draft.group_ranges()))


def pad_rows(setting: Setting, groups: Groups) -> tuple[Mapping[Letter, Expr], int]:
    """The points of each tile, and in how many lanes each row of x stands; 0 where rows follow each other."""
    numels: dict[Letter, Expr] = {k: product(r.extent for r in ranges) for k, ranges in groups.items()}
    many = setting.target.machine.grids.enough_points * setting.target.multiprocessors
    if tuple(groups) != ("x",) or setting.is_flat or not provably_le(many, numels["x"]):
        return numels, 0
    lanes = lanes_of_rows(setting.kernel, setting.analysis.accesses, setting.target.machine.grids)
    if lanes:
        numels["x"] = product(r.extent for r in groups["x"][:-1]) * lanes
    return numels, lanes
