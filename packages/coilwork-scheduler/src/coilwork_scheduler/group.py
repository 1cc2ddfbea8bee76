"""Groups: stages that become one kernel, and the common space they run over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coilwork_ir.index import Expr
from coilwork_scheduler.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A stage in a group; `mapping` gives each of its ranges over the group's ranges."""

    stage: Stage
    mapping: Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages in dependence order over one space of parallel and reduced range symbols."""

    members: tuple[Member, ...]
    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]

    @property
    def position(self) -> int:
        """Position of its first stage in the graph."""
        return self.members[0].stage.position


def group_of(stage: Stage) -> Group:
    """The group of `stage` alone."""
    identity = {s: s for s in (*stage.parallel, *stage.reduced)}
    return Group(
        members=(Member(stage=stage, mapping=identity),), parallel=stage.parallel, reduced=stage.reduced
    )
