"""What a kernel does with its values: stores, atomic updates, checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import Store
from coilwork_ir.loops import Check
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar
from coilwork_ir.syntax.python import Binary, Call, Do, Expression, If, Name, Number, Text, Unary
from coilwork_triton.facts.kernel_analysis import action_roots
from coilwork_triton.iteration.vector_peeling import RowAccess
from coilwork_triton.kernel_passes.histogram import find_bins
from coilwork_triton.statements.counts import add_counts
from coilwork_triton.statements.scope import Scope
from coilwork_triton.text.language import conjunction, tl
from coilwork_triton.values.values import Values

# Element types that the GPUs' atomic instructions, and Triton's forms of them, cover.
_ATOMIC_TYPES: Final[Mapping[StoreMode, frozenset[DType]]] = MappingProxyType(
    {
        "add": frozenset({DType.F64, DType.F32, DType.F16, DType.I64, DType.I32, DType.U64, DType.U32}),
        "min": frozenset({DType.F64, DType.F32, DType.I64, DType.I32, DType.U64, DType.U32}),
        "max": frozenset({DType.F64, DType.F32, DType.I64, DType.I32, DType.U64, DType.U32}),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A store or a check, with the values that it takes.

    `stage` is the first pass over the reduced ranges in which it may happen. It is `reduced` if it happens at
    points of the reduced ranges, and `walked` if at points of the walked ones.
    """

    what: Store | Check
    roots: tuple[Scalar, ...]
    stage: int
    reduced: bool
    walked: bool


def perform(values: Values, scope: Scope, what: Store | Check) -> None:
    """Write `what` into `scope`, where its values are known.

    Raises:
        EmitError: an atomic update that the hardware has no instruction for.
    """
    if isinstance(what, Check):
        values.require(scope, what)
    else:
        _store(values, scope, what)


def _store(values: Values, scope: Scope, store: Store) -> None:
    bins = find_bins(values.kernel, store) if values.shape.counted else None
    if bins is not None:
        add_counts(values, scope, store, bins)
        return
    space = values.space
    roots = action_roots(store)
    varies = frozenset(store.index.free_symbols).union(*(values.levels.varies[r] for r in roots))
    once: list[Expr] = []
    if store.mode != "store":
        _require_atomic(values, store)
        once = _repeated(values, varies, scope)
        # each point of the parallel ranges counts, also of those that nothing here depends on
        varies |= {r.symbol for r in values.kernel.ranges if r.kind == "parallel"}
    spans = varies | frozenset(once)
    symbols = space.simplified(store.index).free_symbols
    plain = store.mode == "store" and not store.indirect and store.mask is None
    row = space.row((store.buffer, store.index)) if plain else None
    pointer = None if row is None else row.pointer
    if pointer is None:
        block = values.block(*roots, symbols=symbols | spans)
        offset = values.offset(scope, store.index, store.indirect, block)
        pointer = Name(store.buffer) if offset == Number(0) else Binary("+", Name(store.buffer), offset)
    conditions: list[Expression] = []
    bounds = space.mask(space.letters(spans))
    if bounds is not None:
        conditions.append(bounds)
    if store.mask is not None:
        conditions.append(values.expression(scope, store.mask))
    conditions += [Binary("==", space.index(symbol), Number(0)) for symbol in once]
    mask = conjunction(tuple(conditions))
    value = values.expression(scope, store.value)
    if row is not None and mask is not None:
        _store_row(scope, row, pointer, value, mask)
    elif store.mode == "store":
        scope.writer.do(tl("store", pointer, value, *(() if mask is None else (mask,))))
    elif store.mode != "add" and _stored_type(values, store).is_float:
        update = scope.writer.device(f"atomic_{store.mode}_nan")
        scope.writer.do(Call(update, (pointer, value, Name("None") if mask is None else mask)))
    else:
        keywords: dict[str, Expression] = {} if mask is None else {"mask": mask}
        scope.writer.do(tl(f"atomic_{store.mode}", pointer, value, **keywords, sem=Text("relaxed")))


def _store_row(
    scope: Scope, row: RowAccess, pointer: Expression, value: Expression, mask: Expression
) -> None:
    """Store `value` in whole vectors, and element by element what `mask` leaves of others at the ends of a
    row.
    """
    if not isinstance(value, Name):
        value = scope.writer.bind("value", value)
    whole = row.whole
    scope.writer.do(tl("store", pointer, value, whole))
    ends = Do(tl("store", pointer, value, Binary("&", mask, Unary("~", whole))))
    # in lines of points only one program has an end
    last = row.last_program
    scope.writer.statements.append(ends if last is None else If(last, (ends,)))


def _stored_type(values: Values, store: Store) -> DType:
    return next((a.dtype for a in values.kernel.args if a.name == store.buffer), store.value.dtype)


def _require_atomic(values: Values, store: Store) -> None:
    dtype = _stored_type(values, store)
    if dtype not in _ATOMIC_TYPES.get(store.mode, frozenset()):
        raise EmitError(
            "atomic",
            f"no atomic {store.mode} on {dtype.text} (store to {store.buffer} in {values.kernel.name})",
            origins=values.kernel.origins,
            remedy="run the operation as an external call",
        )


def _repeated(values: Values, varies: frozenset[Expr], scope: Scope) -> list[Expr]:
    """Reduced ranges that an update does not depend on, over whose points it would happen again: only the
    first counts.
    """
    in_pass = scope.parent is not None or values.shape.walk != "looped"
    if not in_pass or not _along_reduction(values, varies):
        return []
    return [
        r.symbol
        for r in values.kernel.ranges
        if r.kind != "parallel" and r.symbol not in varies and as_int(r.extent) != 1
    ]


def _along_reduction(values: Values, varies: frozenset[Expr]) -> bool:
    return any(r.kind == "reduction" and r.symbol in varies for r in values.kernel.ranges)
