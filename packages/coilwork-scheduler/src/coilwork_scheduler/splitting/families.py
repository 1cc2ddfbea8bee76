"""Families of reductions, which are cut in pieces together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.buffers import Buffer
from coilwork_ir.index import Expr
from coilwork_ir.loops import Reduce
from coilwork_ir.scalar import Load, loads

# Kinds whose results are positions along the axes, in the order of these.
POSITIONS: Final = ("argmin", "argmax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Reductions over the same ranges and axes; `rows` are what they load at points of the axes,
    each once.
    """

    positions: tuple[int, ...]
    members: tuple[Reduce, ...]
    rows: tuple[Load, ...]

    @property
    def ranges(self) -> tuple[Expr, ...]:
        """Ranges of the results."""
        return self.members[0].ranges

    @property
    def axes(self) -> tuple[Expr, ...]:
        """Return what is reduced."""
        return self.members[0].axes

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """All results."""
        return tuple(b for member in self.members for b in member.outputs if b is not None)


def rows_of(node: Reduce) -> tuple[Load, ...]:
    """Return what `node` loads at points of its axes, each once."""
    axes = frozenset(node.axes)
    return tuple(
        access
        for access in loads((node.body,))
        if any(not axes.isdisjoint(e.free_symbols) for e in access.index)
    )


def alone(node: Reduce) -> Family:
    """The family of `node` alone, which is no node of the graph yet."""
    return Family(positions=(), members=(node,), rows=rows_of(node))
