"""Scopes: which values are known at a place of a kernel's text, and what writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coilwork_ir.index import Expr
from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Load, Reduce, Scalar
from coilwork_ir.syntax.python import Expression
from coilwork_triton.facts.kernel_analysis import Levels
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import Space
from coilwork_triton.text.language import Writer


@dataclass(slots=True, kw_only=True)
class Scope:
    """Values known at one place: in the kernel's own level, or inside one of its loops; and the checks that
    are asserted there.
    """

    writer: Writer
    parent: Scope | None = None
    number: int = 0
    bound: dict[Scalar, Expression] = field(default_factory=dict)
    starts: dict[tuple[str, Expr, tuple[str, ...]], Expression] = field(default_factory=dict)
    asserted: set[Check] = field(default_factory=set)

    def find(self, node: Scalar) -> Expression | None:
        """Return the expression for `node`, from here or from outside."""
        found = self.bound.get(node)
        return found if found is not None or self.parent is None else self.parent.find(node)

    def has_asserted(self, check: Check) -> bool:
        """Tell if `check` is asserted here, or outside before this place is reached."""
        return check in self.asserted or (self.parent is not None and self.parent.has_asserted(check))


class ValueWriter(Protocol):
    """Writes the values of a kernel: what the writers of loads, reductions, scans and sorts ask of it.

    Attributes:
        kernel, shape, space: what is written, and where.
        order: every scalar node, operands first.
        levels: along which ranges each value varies.
        reduced_symbols, sequential_symbols: the ranges of those kinds.
    """

    kernel: Kernel
    shape: Shape
    space: Space
    levels: Levels
    order: tuple[Scalar, ...]
    reduced_symbols: frozenset[Expr]
    sequential_symbols: frozenset[Expr]

    def expression(self, scope: Scope, node: Scalar) -> Expression:
        """`node`, which is known in `scope`, as an operand."""

    def block(self, *nodes: Scalar, symbols: Iterable[Expr] = ()) -> tuple[str, ...]:
        """Extents of the block of a value that depends on `nodes` and varies along `symbols`."""

    def offset(
        self, scope: Scope, expr: Expr, indirect: Sequence[Scalar], block: tuple[str, ...]
    ) -> Expression:
        """Return the flat offset `expr`, as a block of extents `block`."""

    def address(self, scope: Scope, node: Load, block: tuple[str, ...]) -> Expression:
        """Return the pointers that `node` loads from, as a block of extents `block`."""

    def reduces_along_walk(self, node: Reduce) -> bool:
        """`node` reduces along the walk."""
