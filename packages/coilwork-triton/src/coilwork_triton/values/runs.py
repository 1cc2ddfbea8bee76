"""Runs of neighbouring elements that one point has: a dimension of their own, of which the library takes them
apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from coilwork_ir.index import Expr
from coilwork_ir.scalar import Load, Scalar
from coilwork_ir.syntax.python import Binary, Call, Expression, Number
from coilwork_triton.facts.kernel_analysis import Levels
from coilwork_triton.facts.vectorization import Run
from coilwork_triton.iteration.space import Space
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import conjunction, insert_axes, tl
from coilwork_triton.text.types import coerce_constant


class Loading(Protocol):
    """What loading a run takes of those who write values."""

    space: Space
    levels: Levels

    def expression(self, scope: Scope, node: Scalar) -> Expression:
        """`node`, which is known in `scope`, as an operand."""

    def block(self, *nodes: Scalar, symbols: Iterable[Expr] = ()) -> tuple[str, ...]:
        """Extents of the block of a value that depends on `nodes` and varies along `symbols`."""

    def address(self, scope: Scope, node: Load, block: tuple[str, ...]) -> Expression:
        """The pointers that `node` loads from, as a block of extents `block`."""


def emit_load_run(values: Loading, scope: Scope, run: Run) -> None:
    """Load the elements of `run` at once, and name them one by one."""
    first = run[0]
    pointer = values.address(scope, first, values.block(first))
    conditions = []
    inside = values.space.mask(values.space.letters(values.levels.varies[first]))
    if inside is not None:
        conditions.append(beside(inside))
    options: dict[str, Expression] = {}
    if first.mask is not None:
        mask = values.expression(scope, first.mask)
        conditions.append(beside(mask) if values.block(first.mask) else mask)
        options["other"] = coerce_constant(first.other, first.dtype)
    mask_of_all = conjunction(tuple(conditions))
    loaded = tl(
        "load",
        Binary("+", beside(pointer), lanes_of_run(len(run))),
        *(() if mask_of_all is None else (mask_of_all,)),
        **options,
    )
    stems = tuple(f"{load.buffer}_" for load in run)
    names = scope.writer.bind_all(stems, Call(scope.writer.device(f"parted_{len(run)}"), (loaded,)))
    scope.bound.update(zip(run, names, strict=True))


def beside(value: Expression) -> Expression:
    """`value`, one per point, for all elements of the point's run."""
    return insert_axes(value, (True, False))


def lanes_of_run(length: int) -> Expression:
    """Places in a run."""
    return insert_axes(tl("arange", Number(0), Number(length)), (False, True))
