"""Write what a kernel does with its values: stores, atomic updates, checks.

Stores of one coarse point to neighbouring elements are one access. Updates that a histogram counts are made
once per bin and program. A store over memory that other threads of the program have yet to load waits behind
a barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int
from coilwork_ir.kernels import Kernel, Store
from coilwork_ir.kernels.alias_analysis import find_overwritten_arguments
from coilwork_ir.loops import Check
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Const, Load, Reduce, Scalar, Sort, list_loads
from coilwork_ir.syntax.python import (
    Binary,
    Call,
    Do,
    Expression,
    If,
    List,
    Name,
    Number,
    Text,
    Unary,
    method,
)
from coilwork_triton.facts.kernel_analysis import Levels, list_action_roots, list_actions
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.vector_peeling import RowAccess
from coilwork_triton.kernel_passes.histogram import Bins, find_bins
from coilwork_triton.launch.parameters import round_up_to_power_of_two
from coilwork_triton.statements.loads import broadcast_over_run, run_lanes
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import conjunction, exact_constant, get_triton_type, tl, tl_name

# Stores and checks


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
    points of the reduced ranges, and `sequential` if at points of the sequential ones.
    """

    what: Store | Check
    roots: tuple[Scalar, ...]
    stage: int
    reduced: bool
    sequential: bool


def perform(values: Values, scope: Scope, action: Store | Check) -> None:
    """Write `action` into `scope`, where its values are known.

    Raises:
        EmitError: an atomic update that the hardware has no instruction for.
    """
    if isinstance(action, Check):
        values.require(scope, action)
    else:
        _store(values, scope, action)


def _store(values: Values, scope: Scope, store: Store) -> None:
    bins = find_bins(values.kernel, store) if values.shape.has_histogram else None
    if bins is not None:
        add_counts(values, scope, store, bins)
        return
    space = values.space
    roots = list_action_roots(store)
    varies = frozenset(store.index.free_symbols).union(*(values.levels.varies[r] for r in roots))
    once: list[Expr] = []
    if store.mode != "store":
        _require_atomic(values, store)
        once = _find_repeated_ranges(values, varies, scope)
        # each point of the parallel ranges counts, also of those that nothing here depends on
        varies |= {r.symbol for r in values.kernel.ranges if r.kind == "parallel"}
    spans = varies | frozenset(once)
    symbols = space.simplify(store.index).free_symbols
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
    elif store.mode != "add" and _store_dtype(values, store).is_float:
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
    whole = row.whole_mask
    scope.writer.do(tl("store", pointer, value, whole))
    ends = Do(tl("store", pointer, value, Binary("&", mask, Unary("~", whole))))
    # in lines of points only one program has an end
    last = row.last_program
    scope.writer.statements.append(ends if last is None else If(last, (ends,)))


def _store_dtype(values: Values, store: Store) -> DType:
    return next((a.dtype for a in values.kernel.args if a.name == store.buffer), store.value.dtype)


def _require_atomic(values: Values, store: Store) -> None:
    dtype = _store_dtype(values, store)
    if dtype not in _ATOMIC_TYPES.get(store.mode, frozenset()):
        raise EmitError(
            "atomic",
            f"no atomic {store.mode} on {dtype.text} (store to {store.buffer} in {values.kernel.name})",
            origins=values.kernel.origins,
            remedy="run the operation as an external call",
        )


def _find_repeated_ranges(values: Values, varies: frozenset[Expr], scope: Scope) -> list[Expr]:
    """Reduced ranges that an update does not depend on, over whose points it would happen again: only the
    first counts.
    """
    in_pass = scope.parent is not None or values.shape.walk != "looped"
    if not in_pass or not _varies_along_reduction(values, varies):
        return []
    return [
        r.symbol
        for r in values.kernel.ranges
        if r.kind != "parallel" and r.symbol not in varies and as_int(r.extent) != 1
    ]


def _varies_along_reduction(values: Values, varies: frozenset[Expr]) -> bool:
    return any(r.kind == "reduction" and r.symbol in varies for r in values.kernel.ranges)


# Histograms


def add_counts(values: Values, scope: Scope, store: Store, bins: Bins) -> None:
    """Write `store`, which counts in `bins`, as counts of the program's points, and one update for each of
    them that is not 0.
    """
    space, (chosen,) = values.space, store.indirect
    assert isinstance(store.value, Const)
    conditions: list[Expression] = []
    inside = space.mask(space.letters(r.symbol for r in values.kernel.ranges))
    if inside is not None:
        conditions.append(inside)
    if store.mask is not None:
        conditions.append(values.expression(scope, store.mask))
    place = values.expression(scope, chosen)
    number = (
        place
        if chosen.dtype is DType.I32
        else scope.writer.bind("number", method(place, "to", tl_name("int32")))
    )
    if not bins.certain:
        # a number that is out of range, for which nobody may have checked, would be taken for one that is not
        tested = place if chosen.dtype.itemsize > 4 else number
        conditions += [Binary(">=", tested, Number(0)), Binary("<", tested, Number(bins.count))]
    lanes = Number(round_up_to_power_of_two(bins.count))
    mask = conjunction(tuple(conditions))
    keywords: dict[str, Expression] = {} if mask is None else {"mask": mask}
    counts = scope.writer.bind("counts", tl("histogram", number, lanes, **keywords))
    numbers = scope.writer.bind("bins", tl("arange", Number(0), lanes))
    pointer = Binary("+", Name(store.buffer), space.index(store.index, [numbers]))
    # as many bits as memory has, in which products and sums wrap alike
    added: Expression = counts
    if store.value.dtype.itemsize > 4 or not store.value.dtype.is_signed_integer:
        added = method(added, "to", get_triton_type(store.value.dtype))
    if store.value.value != 1:
        added = Binary("*", added, exact_constant(store.value.value, store.value.dtype))
    # of lanes behind the last bin, too, nothing was counted
    some = Binary("!=", counts, Number(0))
    scope.writer.do(tl("atomic_add", pointer, added, mask=some, sem=Text("relaxed")))


# Stores of coarse points


def store_steps(values: Values, scope: Scope, stores: Sequence[Store]) -> None:
    """`stores`, which are as many in a row as a step has points for each store of before."""
    step = values.shape.step
    for start in range(0, len(stores), step):
        _store_step(values, scope, stores[start : start + step])


def _store_step(values: Values, scope: Scope, run: Sequence[Store]) -> None:
    first, space = run[0], values.space
    everywhere = values.block(symbols=first.index.free_symbols)
    parts = tuple(_broadcast_value(values, scope, store, everywhere) for store in run)
    joined = scope.writer.bind("step", Call(scope.writer.device(f"joined_{len(run)}"), parts))
    offset = values.offset(scope, first.index, (), everywhere)
    pointer = Binary("+", broadcast_over_run(Binary("+", Name(first.buffer), offset)), run_lanes(len(run)))
    conditions = [space.mask(space.letters(first.index.free_symbols))]
    if first.mask is not None:
        conditions.append(values.expression(scope, first.mask))
    mask = conjunction(
        tuple(broadcast_over_run(condition) for condition in conditions if condition is not None)
    )
    scope.writer.do(tl("store", pointer, joined, *(() if mask is None else (mask,))))


def _broadcast_value(values: Values, scope: Scope, store: Store, everywhere: tuple[str, ...]) -> Expression:
    """Return the value of `store` as a block of extents `everywhere`, also if it is one number."""
    value = values.expression(scope, store.value)
    if values.block(store.value):
        return value
    extents = List(tuple(Name(extent) for extent in everywhere))
    return tl("full", extents, value, get_triton_type(store.value.dtype))


# Overwritten memory


def perform_all(values: Values, scope: Scope, actions: Sequence[Action]) -> None:
    """The actions, whose values are known: checks, then stores, after a barrier where threads share what they
    overwrite.
    """
    stores = [action.what for action in actions if isinstance(action.what, Store)]
    if must_have_barrier(values.kernel, values.shape, values.levels, stores):
        scope.writer.do(tl("debug_barrier"))
    if values.shape.step > 1:
        store_steps(values, scope, stores)
        return
    reduces = any(r.kind == "reduction" for r in values.kernel.ranges)
    for action in order_stores(actions) if reduces else actions:
        perform(values, scope, action.what)


def order_stores(actions: Sequence[Action]) -> Sequence[Action]:
    """`actions`, but of results of rows that are computed from each other, the last is stored first.

    Triton 3.6 converts what is stored to another layout at its store, and computes a result from converted
    operands where it can. It then reads them before their stores, and its compiler stops ("does not dominate
    this use"). Operands that are stored later are not converted yet.
    """
    rows = [
        action
        for action in actions
        if isinstance(action.what, Store) and action.what.mode == "store" and not action.reduced
    ]
    stored = {action.what.value for action in rows if isinstance(action.what, Store)}
    buffers = {action.what.buffer for action in rows if isinstance(action.what, Store)}
    if len(buffers) < len(rows) or not any(_is_made_of(value, stored) for value in stored):
        return actions
    behind, moved = iter(rows[::-1]), set(map(id, rows))
    return [next(behind) if id(action) in moved else action for action in actions]


def _is_made_of(value: Scalar, others: Set[Scalar]) -> bool:
    """Tell if `value` is computed from another one of `others`, without a reduction in between."""
    pending, seen = [*value.operands], set[Scalar]()
    while pending:
        node = pending.pop()
        if node in others:
            return True
        if node not in seen and not isinstance(node, Reduce):
            seen.add(node)
            pending.extend(node.operands)
    return False


def must_have_barrier(kernel: Kernel, shape: Shape, levels: Levels, stores: Iterable[Store]) -> bool:
    """Tell if one of `stores` may overwrite what another thread of its program has yet to load."""
    found: dict[str, list[Load]] = {}
    for node in list_loads(root for what in list_actions(kernel) for root in list_action_roots(what)):
        found.setdefault(node.buffer, []).append(node)
    return any(
        not _owns_elements(store, found.get(source, ()), shape, levels)
        for store in stores
        for source in find_overwritten_arguments(kernel, store)
    )


def _owns_elements(store: Store, source_loads: Sequence[Load], shape: Shape, levels: Levels) -> bool:
    """Tell if each element of `source_loads`, of one argument, is loaded by the thread that stores it."""
    if not source_loads:
        return True
    whole = frozenset(tile.letter for tile in shape.tiles if tile.axis is not None)
    if not all(whole <= shape.tile_of(levels.varies[node]) for node in source_loads):
        return False
    source = source_loads[0].buffer
    return any(
        node.buffer == source and node.index[0] is store.index for node in _loads_of_elements(store.value)
    )


def _loads_of_elements(value: Scalar) -> Iterator[Load]:
    """Yield the loads that `value` depends on element by element: none below a reduction or a sort, which
    combine many.

    A scan combines many as well, but each of its results depends on the element at its own place.
    """
    seen: set[Scalar] = set()
    pending = [value]
    while pending:
        node = pending.pop()
        if node in seen or isinstance(node, Reduce | Sort):
            continue
        seen.add(node)
        if isinstance(node, Load):
            yield node
        pending.extend(node.operands)
