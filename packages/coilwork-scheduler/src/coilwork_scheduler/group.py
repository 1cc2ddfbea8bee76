"""Groups: stages that become one kernel, and the common space they run over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Scalar, index_value, op
from coilwork_scheduler.stage import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A stage in a group; `mapping` gives each of its ranges over the group's ranges."""

    stage: Stage
    mapping: Mapping[Expr, Expr]


@dataclass(frozen=True, slots=True)
class Bound:
    """Points of a space exist where `position`, an expression over its ranges, is less than `extent`."""

    position: Expr
    extent: Expr

    @property
    def holds(self) -> Scalar:
        """True at the points that exist, as reductions of uneven pieces say it."""
        return op("lt", index_value(self.position), index_value(self.extent))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages in dependence order over one space of range symbols.

    Attributes:
        members: the stages.
        parallel: ranges that programs share out.
        walked: ranges whose points one program takes in order: rows, where some members reduce rows along
            `reduced` and others columns along `walked`.
        reduced: ranges that each point of the others goes through.
        bound: which points along `parallel` and `walked` exist; all of them without one.
    """

    members: tuple[Member, ...]
    parallel: tuple[Expr, ...]
    reduced: tuple[Expr, ...]
    walked: tuple[Expr, ...] = ()
    bound: Bound | None = None

    @property
    def position(self) -> int:
        """Position of its first stage in the graph."""
        return self.members[0].stage.position

    @property
    def pieces(self) -> int:
        """In how many pieces programs are to share its rows; 1 where each has rows of its own."""
        return max(member.stage.split for member in self.members)


def group_of(stage: Stage) -> Group:
    """The group of `stage` alone."""
    identity = {s: s for s in (*stage.parallel, *stage.reduced)}
    return Group(
        members=(Member(stage=stage, mapping=identity),), parallel=stage.parallel, reduced=stage.reduced
    )
