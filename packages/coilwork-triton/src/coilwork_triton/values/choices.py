"""Loads that choose: one address among those of several tensors, or one value of those of two rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Load, Op, Scalar
from coilwork_ir.syntax.python import Binary, Expression, Name, Number
from coilwork_triton.facts.joined import Joined
from coilwork_triton.facts.kernel_analysis import Levels
from coilwork_triton.iteration.row_straddling_blocks import BEYOND
from coilwork_triton.iteration.space import Space
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import tl


class Choosing(Protocol):
    """What these loads take of those who write values."""

    space: Space
    levels: Levels

    def expression(self, scope: Scope, node: Scalar) -> Expression:
        """`node`, which is known in `scope`, as an operand."""

    def block(self, *nodes: Scalar, symbols: Iterable[Expr] = ()) -> tuple[str, ...]:
        """Extents of the block of a value that depends on `nodes` and varies along `symbols`."""

    def offset(
        self, scope: Scope, expr: Expr, indirect: Sequence[Scalar], block: tuple[str, ...]
    ) -> Expression:
        """The flat offset `expr`, as a block of extents `block`."""


def emit_joined(values: Choosing, scope: Scope, node: Op, joined: Joined) -> None:
    """Bind `node`, a selection between the loads of `joined`."""
    varies = values.levels.varies[node]
    symbols = varies.union(*(values.space.simplified(load.index[0]).free_symbols for load in joined.loads))
    block = values.block(node, symbols=symbols)
    *pointers, pointer = (
        pointer_of(load, values.offset(scope, load.index[0], (), block)) for load in joined.loads
    )
    for (condition, _), chosen in reversed(list(zip(joined.choices, pointers, strict=True))):
        pointer = scope.writer.bind("at", tl("where", values.expression(scope, condition), chosen, pointer))
    mask = values.space.mask(values.space.letters(varies))
    loaded = tl("load", pointer, *(() if mask is None else (mask,)))
    scope.bound[node] = scope.writer.bind("joined", loaded)


def of_two_rows(space: Space, node: Load) -> Expression | None:
    """The value of `node`, which is one per row of `coilwork_triton.iteration.shape`; None if
    it is not.
    """
    rows = space.rows
    if (
        rows is None
        or node.indirect
        or node.mask is not None
        or (node.dtype.is_float and node.dtype.itemsize == 1)
    ):
        return None
    both = rows.both(node.index[0])
    if both is None:
        return None
    row, following = (tl("load", pointer_of(node, place)) for place in both)
    return row if row == following else tl("where", BEYOND, following, row)


def pointer_of(node: Load, offset: Expression) -> Expression:
    """The address of the element of the buffer of `node` at `offset`."""
    return Name(node.buffer) if offset == Number(0) else Binary("+", Name(node.buffer), offset)
