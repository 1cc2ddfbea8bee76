"""Stores of kernels in steps: what a point stores to neighbouring elements, it stores at once."""

from __future__ import annotations

from collections.abc import Sequence

from coilwork_ir.kernels import Store
from coilwork_ir.syntax.python import Binary, Call, Expression, List, Name
from coilwork_triton.statements.loads import beside, lanes_of_run
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import conjunction, tl
from coilwork_triton.text.types import triton_type
from coilwork_triton.values.values import Values


def perform_in_steps(values: Values, scope: Scope, stores: Sequence[Store]) -> None:
    """`stores`, which are as many in a row as a step has points for each store of before."""
    step = values.shape.step
    for start in range(0, len(stores), step):
        _store(values, scope, stores[start : start + step])


def _store(values: Values, scope: Scope, run: Sequence[Store]) -> None:
    first, space = run[0], values.space
    everywhere = values.block(symbols=first.index.free_symbols)
    parts = tuple(_spread(values, scope, store, everywhere) for store in run)
    joined = scope.writer.bind("step", Call(scope.writer.device(f"joined_{len(run)}"), parts))
    offset = values.offset(scope, first.index, (), everywhere)
    pointer = Binary("+", beside(Binary("+", Name(first.buffer), offset)), lanes_of_run(len(run)))
    conditions = [space.mask(space.letters(first.index.free_symbols))]
    if first.mask is not None:
        conditions.append(values.expression(scope, first.mask))
    mask = conjunction(tuple(beside(condition) for condition in conditions if condition is not None))
    scope.writer.do(tl("store", pointer, joined, *(() if mask is None else (mask,))))


def _spread(values: Values, scope: Scope, store: Store, everywhere: tuple[str, ...]) -> Expression:
    """Return what `store` stores, also of one number as a block of `everywhere`."""
    value = values.expression(scope, store.value)
    if values.block(store.value):
        return value
    extents = List(tuple(Name(extent) for extent in everywhere))
    return tl("full", extents, value, triton_type(store.value.dtype))
