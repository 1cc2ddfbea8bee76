"""Write loads: addresses, runs of neighbours, concatenated tensors, and the checks that come first.

Addresses that several loads share are written once. What a coarse point loads from neighbouring places is one
access (`emit_load_run`). A concatenation reads each of its tensors under a mask, and selects; where the
boundaries and the rows of all tensors are whole vectors of 16 bytes, one pointer is selected per vector
instead of one value per element (`find_concat_loads`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Add,
    Expr,
    add_all,
    as_expr,
    as_int,
    find_bounds,
    find_stride,
    provably_divisible,
    substitute,
)
from coilwork_ir.index import get_node as index_node
from coilwork_ir.kernels import Kernel
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Const, IndexValue, Load, Op, Scalar, iterate_postorder
from coilwork_ir.syntax.python import Binary, Call, Expression, Name, Number
from coilwork_triton.facts.kernel_analysis import Levels, Users
from coilwork_triton.facts.vectorization import Access, Run, is_wide_along_rows, split_constant
from coilwork_triton.iteration.row_straddling_blocks import BEYOND
from coilwork_triton.iteration.shape import Shape
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.statements.scope import Scope, ValueWriter
from coilwork_triton.text.language import coerce_constant, conjunction, insert_axes, tl

# Addresses


# Loads that a common address is worth a line of text for.
_WINDOW: Final = 3


def find_windows(order: Iterable[Scalar]) -> frozenset[Load]:
    """Return the loads among `order` that are constant distances apart, three or more from one buffer.

    From a common address, the distance is part of the load's instruction.
    """
    loads = [value for value in order if isinstance(value, Load) and not value.indirect]
    count = Counter((load.buffer, split_constant(load.index[0])[0]) for load in loads)
    return frozenset(
        load for load in loads if count[load.buffer, split_constant(load.index[0])[0]] >= _WINDOW
    )


def find_irregular_buffers(order: Iterable[Scalar], inner: Expr) -> frozenset[str]:
    """Return the buffers that a load among `order` reads without a constant stride along `inner`, for example
    at clamped positions.

    Other loads of the row may start from the address of the row that this load has.
    """
    return frozenset(
        value.buffer
        for value in order
        if isinstance(value, Load) and not value.indirect and find_stride(value.index[0], inner) is None
    )


def split_row_and_column(
    shape: Shape, space: Space, expr: Expr, *, affine: bool = False
) -> tuple[Expr, Expr] | None:
    """Return the offset `expr` from a buffer as that of a row and that from there, along the innermost range.

    None where the sum is no more work: within one range, or, without `affine`, of elements at a fixed
    distance, whose addresses the compiler computes from each other.
    """
    axes = [tile for tile in shape.tiles if tile.axis is not None]
    if not axes:
        return None
    inner = frozenset({axes[-1].inner})
    parallel = frozenset(part for tile in axes for part in (tile.index, *(part for part, _ in tile.parts)))
    match index_node(expr):
        case Add(operands):
            columns = [o for o in operands if o.free_symbols & parallel == inner]
            rows = [o for o in operands if o.free_symbols.isdisjoint(inner)]
            if len(columns) + len(rows) < len(operands) or not columns:
                return None
            if all(row.free_symbols.isdisjoint(parallel) for row in rows):
                return None
            if not affine and any(find_stride(expr, symbol) is not None for symbol in inner):
                return None
            return add_all(rows), add_all(columns)
        case _:
            return None


def make_row_address(
    shape: Shape, space: Space, load: Load, index: Expr, own_order: Container[str]
) -> Expression | None:
    """Return the address of `index` in the buffer of `load`: that of a row, plus a column in one
    instruction.
    """
    if load.indirect:
        return None
    apart = split_row_and_column(shape, space, index, affine=load.buffer in own_order)
    if apart is None:
        return None
    rows, columns = (space.index(part) for part in apart)
    return Binary("+", Binary("+", Name(load.buffer), rows), columns)


def make_column_address(shape: Shape, space: Space, load: Load) -> Expression | None:
    """Return the addresses of elements of columns as those of the first row of a block, and to them the
    distance of its rows.

    Where a loop goes down columns element by element, what its rows are apart within a block is then part of
    the instructions, as far as the loop's own part is added first: 20 instructions per element of a sum
    without, 13 with. None where it does not, or rows are not apart.
    """
    tile = shape.reduced
    if load.indirect or tile is None or tile.parts or shape.walk != "looped" or not shape.scalar_access:
        return None
    if (
        shape.has_thread_runs
        or shape.index_dtype is not DType.I32
        or shape.rank < 2
        or shape.vectors is not None
    ):
        return None
    step = find_stride(space.simplify(load.index[0]), tile.index)
    distance = None if step is None else as_int(step)
    if distance is None or distance in (0, 1):
        return None
    first = space.index(substitute(load.index[0], {tile.index: as_expr(0)}))
    start = Binary("+", first, Binary("*", LOOP_OFFSET, Number(distance)))
    rows = Binary("*", space.lane(tile), Number(distance))
    return Binary("+", Binary("+", Name(load.buffer), start), rows)


# Runs


def emit_load_run(values: ValueWriter, scope: Scope, run: Run) -> None:
    """Load the elements of `run` at once, and name them one by one."""
    first = run[0]
    pointer = values.address(scope, first, values.block(first))
    conditions = []
    inside = values.space.mask(values.space.letters(values.levels.varies[first]))
    if inside is not None:
        conditions.append(broadcast_over_run(inside))
    options: dict[str, Expression] = {}
    if first.mask is not None:
        mask = values.expression(scope, first.mask)
        conditions.append(broadcast_over_run(mask) if values.block(first.mask) else mask)
        options["other"] = coerce_constant(first.other, first.dtype)
    mask_of_all = conjunction(tuple(conditions))
    loaded = tl(
        "load",
        Binary("+", broadcast_over_run(pointer), run_lanes(len(run))),
        *(() if mask_of_all is None else (mask_of_all,)),
        **options,
    )
    stems = tuple(f"{load.buffer}_" for load in run)
    names = scope.writer.bind_all(stems, Call(scope.writer.device(f"parted_{len(run)}"), (loaded,)))
    scope.bound.update(zip(run, names, strict=True))


def broadcast_over_run(value: Expression) -> Expression:
    """`value`, one per point, for all elements of the point's run."""
    return insert_axes(value, (True, False))


def run_lanes(length: int) -> Expression:
    """Places in a run."""
    return insert_axes(tl("arange", Number(0), Number(length)), (False, True))


# Concatenated tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatLoad:
    """A chain of selections.

    Attributes:
        choices: a condition and what is loaded where it holds and none before it does.
        last: what is loaded where none holds.
    """

    choices: tuple[tuple[Op, Load], ...]
    last: Load

    @property
    def loads(self) -> tuple[Load, ...]:
        """All loads, in order."""
        return (*(load for _, load in self.choices), self.last)


def find_concat_loads(kernel: Kernel, order: Sequence[Scalar], users: Users) -> Mapping[Scalar, ConcatLoad]:
    """Return the selections among `order`, all scalars of a pointwise `kernel`, that can be one load each."""
    if any(r.kind != "parallel" for r in kernel.ranges):
        return {}
    found: dict[Scalar, ConcatLoad] = {}
    inner: set[Scalar] = set()
    for node in reversed(order):
        if node not in inner:
            joined = _chain(node, users)
            if joined is not None and _can_load_joined(joined, kernel):
                found[node] = joined
                inner.update(_links(node))
    return found


def find_absorbed(
    joined: Mapping[Scalar, ConcatLoad], order: Sequence[Scalar], users: Users
) -> frozenset[Scalar]:
    """Values that are written as part of a concatenation: inner selections, their loads, masks of these
    alone.
    """
    gone: set[Scalar] = set()
    for node, one in joined.items():
        gone.update(_links(node))
        gone.update(one.loads)
    kept = {condition for one in joined.values() for condition, _ in one.choices}
    for node in reversed(order):
        if users[node] and node not in kept and node not in joined and all(u in gone for u in users[node]):
            gone.add(node)
    return frozenset(gone)


def _chain(node: Scalar, users: Users) -> ConcatLoad | None:
    choices: list[tuple[Op, Load]] = []
    rest = node
    while isinstance(rest, Op) and rest.op == "where":
        condition, chosen, otherwise = rest.operands
        if not isinstance(condition, Op) or not isinstance(chosen, Load):
            return None
        if rest is not node and len(users[rest]) != 1:
            return None
        choices.append((condition, chosen))
        rest = otherwise
    if not choices or not isinstance(rest, Load):
        return None
    joined = ConcatLoad(choices=tuple(choices), last=rest)
    return joined if all(len(users[load]) == 1 for load in joined.loads) and _masks_hold(joined) else None


def _links(node: Scalar) -> Iterator[Scalar]:
    """Yield the selections within the selection `node`."""
    rest = node.operands[2]
    while isinstance(rest, Op) and rest.op == "where":
        yield rest
        rest = rest.operands[2]


def _masks_hold(joined: ConcatLoad) -> bool:
    """Every load's mask holds wherever the load is chosen."""
    false: list[Op] = []
    for condition, load in joined.choices:
        if not all(_holds(part, [condition], false) for part in _parts(load.mask)):
            return False
        false.append(condition)
    return all(_holds(part, [], false) for part in _parts(joined.last.mask))


def _parts(mask: Scalar | None) -> Iterable[Scalar]:
    if mask is None:
        return ()
    if isinstance(mask, Op) and mask.op == "bitwise_and":
        return (*_parts(mask.operands[0]), *_parts(mask.operands[1]))
    return (mask,)


def _holds(part: Scalar, true: Sequence[Scalar], false: Sequence[Op]) -> bool:
    if part in true:
        return True
    if not isinstance(part, Op):
        return False
    if part.op == "ge" and any(other.op == "lt" and other.operands == part.operands for other in false):
        return True
    if part.op != "lt":
        return False
    at, end = part.operands
    if not isinstance(at, IndexValue) or at.operands or not isinstance(end, Const):
        return False
    most = find_bounds(at.expr).hi
    return most is not None and most < end.value


def _can_load_joined(joined: ConcatLoad, kernel: Kernel) -> bool:
    """All loads are of one type and as wide as each other, and the joints lie between vectors."""
    first = joined.last
    if (
        any(load.dtype is not first.dtype or load.indirect for load in joined.loads)
        or first.dtype is DType.BOOL
    ):
        return False
    accesses = [Access(index=load.index[0], itemsize=load.dtype.itemsize) for load in joined.loads]
    if not is_wide_along_rows(kernel.ranges, accesses):
        return False
    inner = kernel.ranges[-1].symbol
    lanes = accesses[0].lanes
    for condition, _ in joined.choices:
        at, end = condition.operands[0], condition.operands[-1]
        if (
            condition.op != "lt"
            or not isinstance(at, IndexValue)
            or at.operands
            or not isinstance(end, Const)
        ):
            return False
        if inner in at.expr.free_symbols:
            start = substitute(at.expr, {inner: as_expr(0)})
            even = provably_divisible(start, lanes) and int(end.value) % lanes == 0
            if not even or find_stride(at.expr, inner) is not as_expr(1):
                return False
    return True


# Selected pointers


def emit_concat_load(values: ValueWriter, scope: Scope, node: Op, joined: ConcatLoad) -> None:
    """Bind `node`, a selection between the loads of `joined`."""
    varies = values.levels.varies[node]
    symbols = varies.union(*(values.space.simplify(load.index[0]).free_symbols for load in joined.loads))
    block = values.block(node, symbols=symbols)
    *pointers, pointer = (
        make_element_pointer(load, values.offset(scope, load.index[0], (), block)) for load in joined.loads
    )
    for (condition, _), chosen in reversed(list(zip(joined.choices, pointers, strict=True))):
        pointer = scope.writer.bind("at", tl("where", values.expression(scope, condition), chosen, pointer))
    mask = values.space.mask(values.space.letters(varies))
    loaded = tl("load", pointer, *(() if mask is None else (mask,)))
    scope.bound[node] = scope.writer.bind("joined", loaded)


def load_straddled_value(space: Space, node: Load) -> Expression | None:
    """Return the value of `node`, which is one per straddled row; None if
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
    both = rows.find_in_both_rows(node.index[0])
    if both is None:
        return None
    row, following = (tl("load", make_element_pointer(node, place)) for place in both)
    return row if row == following else tl("where", BEYOND, following, row)


def make_element_pointer(node: Load, offset: Expression) -> Expression:
    """Return the address of the element of the buffer of `node` at `offset`."""
    return Name(node.buffer) if offset == Number(0) else Binary("+", Name(node.buffer), offset)


# Checks before loads


def find_load_guards(
    kernel: Kernel, levels: Levels, order: Iterable[Scalar]
) -> Mapping[Scalar, tuple[Check, ...]]:
    """Return the checks that are asserted before each load among `order`, where there are any.

    A kernel asserts its other checks behind all values, before it stores. A load at an address that a check
    refuses must not happen: far out of bounds the device ends the kernel with an illegal access, and the
    assertion that names the fault is never reached. To assert first costs no more operations. A mask of the
    load would, and took 10 to 15 % longer where many elements are looked up one by one.

    These checks are conditions on nothing but what the address depends on as well. So they are known wherever
    the address is, and hold for a load that happens, as the kernel otherwise fails.
    """
    if not kernel.checks:
        return {}
    sources = {check: _sources((check.condition,)) for check in kernel.checks}
    found: dict[Scalar, tuple[Check, ...]] = {}
    for load in order:
        if isinstance(load, Load) and load.indirect:
            known = _sources(load.indirect)
            guards = tuple(
                check
                for check, needed in sources.items()
                if not needed.isdisjoint(known)
                and all(node in known or _is_position(node) for node in needed)
                and levels.varies[check.condition] <= levels.varies[load]
            )
            if guards:
                found[load] = guards
    return found


def _sources(values: Iterable[Scalar]) -> frozenset[Scalar]:
    """Return the values below `values` that are no arithmetic: loads, positions, results of reductions."""
    return frozenset(
        node
        for node in iterate_postorder(values)
        if not isinstance(node, Const | Op) and not (isinstance(node, IndexValue) and node.operands)
    )


def _is_position(node: Scalar) -> bool:
    return isinstance(node, IndexValue)
