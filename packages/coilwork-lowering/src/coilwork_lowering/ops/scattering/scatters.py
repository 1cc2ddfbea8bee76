"""Writes at positions that come from tensors. Each copies its target first, then scatters into the copy.

A target that nobody has written is not copied: what the positions leave out stays undefined.

Atomic updates of a table that is larger than the cache go by groups of its columns. Rows come in any order,
so an update finds its sector in the cache only if the table's columns of that group fit in it. Otherwise
updates wait for memory, as maxima of 16 million elements in 65,536 rows of 256 do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.machine import MachineModel
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar, placeholder
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.size_assertions import lower_assertion
from coilwork_lowering.building.values import (
    Relation,
    Shape,
    TensorValue,
    Value,
    is_whole,
    make_coordinate_symbols,
)
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.ops.gathers import AdvancedIndex, check_in_range, read_position
from coilwork_lowering.ops.scattering.deterministic_scatter import (
    index_add_in_fixed_order,
    index_put_in_fixed_order,
    is_in_place,
    needs_fixed_order,
    scatter_in_fixed_order,
)
from coilwork_lowering.ops.storage_aliasing import is_store_into_new_memory
from coilwork_lowering.rules import Call, NotLowered, Rule, wrap_dim
from coilwork_lowering.scalar_math import add, eq, index, mul, select

# ---- Column groups ----


def group_width(
    table: TensorValue, shape: Shape, machine: MachineModel, *, resident_bytes: int
) -> int | None:
    """Return how many neighbouring columns of `shape` one update takes, or None for all.

    The last range runs along a row of `table`, and `resident_bytes` is how much of a table stays in a cache.
    """
    if has_trait(table.device, PROCESSOR) or not is_whole(table) or not shape:
        return None
    size, columns = as_int(multiply_all(table.shape)), as_int(table.shape[-1])
    if size is None or not columns or as_int(shape[-1]) != columns or as_int(table.buffer.strides[-1]) != 1:
        return None
    each = table.dtype.itemsize
    if size * each <= resident_bytes:
        return None
    rows = size // columns
    least = machine.memory.fetched_bytes // each
    widths = [w for w in range(least, columns // 2 + 1, least) if columns % w == 0]
    fitting = [w for w in widths if rows * w * each <= resident_bytes // machine.scatters.cache_parts]
    return max(fitting, default=None)


def group_columns(shape: Shape, width: int) -> tuple[Shape, tuple[Expr, ...]]:
    """`shape` with its columns in groups of `width`, groups outermost, and the point of `shape` at the ranges
    of that.
    """
    columns = as_int(shape[-1])
    assert columns is not None
    ranges = (as_expr(columns // width), *shape[:-1], as_expr(width))
    group, *others, column = make_coordinate_symbols("i", ranges)
    return ranges, (*others, group * width + column)


# ---- Rules ----


def scatter_into(
    builder: Builder,
    old: TensorValue,
    shape: Shape,
    index: Callable[[tuple[Expr, ...]], Sequence[Expr]],
    indirect: Callable[[tuple[Expr, ...]], Sequence[Scalar]],
    value: Callable[[tuple[Expr, ...]], Scalar],
    mode: StoreMode,
    checks: Callable[[tuple[Expr, ...]], Sequence[Check]],
) -> TensorValue:
    """Append a scatter over `shape` into `old`, coordinates of which `index` gives; `old` as it is then.

    Memory that holds nothing yet is made by the scatter.
    """
    point = make_coordinate_symbols("i", shape)
    if mode != "store" and index(point)[-1:] == point[-1:]:
        width = group_width(
            old, shape, builder.machine_of(old.device), resident_bytes=builder.options.resident_bytes
        )
        if width is not None:
            shape, point = group_columns(shape, width)
    positions = tuple(simplify(s) for s in indirect(point))
    source = simplify(value(point))
    result = builder.is_unfilled(old.buffer)
    output = old.buffer
    if not result:
        output = builder.declare_successor(old.buffer)
    builder.add(
        Scatter(
            output=output,
            into=None if result else old.buffer.name,
            ranges=make_node_ranges("i", shape),
            index=tuple(index(point)) if is_whole(old) else old.get_coordinates(index(point)),
            indirect=positions,
            value=source,
            mode=mode,
            sparse=result,
            checks=tuple(checks(point)) if builder.options.checks else (),
            origins=builder.origins,
        )
    )
    if result:
        return old
    builder.buffers.overwrite(old.buffer.name, output)
    return replace(old, buffer=output)


def store_mode(call: Call, accumulate: bool) -> StoreMode:
    """`add` or `store`, for types that can be added in memory."""
    mode: StoreMode = "add" if accumulate else "store"
    _require_atomic(call, call.dtype, mode)
    return mode


def _require_atomic(call: Call, dtype: DType, mode: StoreMode) -> None:
    """Refuse what the device cannot do to memory that others change too."""
    if mode == "store":
        return
    if dtype.is_bool or dtype.is_low_precision:
        raise NotLowered("accumulation into a type that is added in another")
    # accelerators add, and compare, words of 32 and 64 bits
    if not has_trait(call.device, PROCESSOR) and (mode == "mul" or dtype.itemsize < 4):
        raise NotLowered(f"no atomic {mode} on {dtype.text} in memory of {call.device}")


def _index_put(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    listed = bring_to_device(builder, call["indices"], call.device)
    plan = AdvancedIndex(len(value.shape), listed, value.shape)
    source = call.tensor("values")
    accumulate = bool(call["accumulate"])
    fakes = [f for f in call.fakes["indices"] if f is not None]
    depth: list[Expr] = []
    for k in range(plan.depth):
        sizes = [
            builder.sizes.expr(f.shape[k - plan.depth + f.dim()]) for f in fakes if f.dim() >= plan.depth - k
        ]
        depth.append(next((s for s in sizes if as_int(s) != 1), sizes[0]))
    for fake in fakes:
        _require_broadcast(builder, call, builder.sizes.exprs(fake.shape), tuple(depth))
    rest = [s for k, s in enumerate(value.shape) if k not in plan.places]
    shape = (*rest[: plan.front], *depth, *rest[plan.front :])
    _require_broadcast(builder, call, source.shape, shape)
    if accumulate and needs_fixed_order(builder, call.device, value.dtype):
        return index_put_in_fixed_order(builder, call, plan, value, source, tuple(depth))
    mode = store_mode(call, accumulate)
    target = _destination(builder, call, value, shape, mode)
    return scatter_into(
        builder,
        target,
        shape,
        plan.coordinates,
        lambda point: plan.positions(builder, point, call),
        lambda point: scalar_operand(builder, source, point, value.dtype),
        mode,
        lambda point: plan.checks(builder, point, call),
    )


def _require_broadcast(builder: Builder, call: Call, shape: Shape, wanted: Shape) -> None:
    """Demand that values or indices of `shape` broadcast to `wanted`: torch's meta function does not look.

    Raises:
        NotLowered: it cannot be, as ATen's kernel will say.
    """
    if len(shape) > len(wanted):
        raise NotLowered("values of more dimensions than what is indexed")
    for size, other in zip(shape, wanted[len(wanted) - len(shape) :], strict=True):
        if size == other or as_int(size) == 1:
            continue
        if size.is_const and other.is_const:
            raise NotLowered("values that cannot be broadcast to what is indexed")
        message = "shape mismatch: value tensor cannot be broadcast to indexing result"
        lower_assertion(builder, Relation(lhs=size, relation="eq", rhs=other), message, call.node)


def _destination(
    builder: Builder, call: Call, value: TensorValue, points: Shape, mode: StoreMode
) -> TensorValue:
    """Return what is scattered into, from `points`: the argument's own memory, always for the in-place
    operators, or a copy.
    """
    if not is_in_place(call):
        stored = mode == "store" and all(as_int(size) != 0 for size in (*points, *value.shape))
        if stored and is_store_into_new_memory(call.node, builder.options):
            return builder.allocate(value.shape, value.dtype, value.device, strides=call.strides(builder))
        if call.updates.can_scatter_into(call.node, value):
            return value
        return builder.copy(value, strides=call.strides(builder))
    current = builder.current(value)
    if not is_whole(current):
        raise NotLowered("a scatter into part of a buffer")
    return current


def _scatter_one_hot(
    builder: Builder,
    call: Call,
    value: TensorValue,
    positions: TensorValue,
    source: Value,
    dim: int,
    mode: StoreMode,
) -> TensorValue | None:
    """Return a scatter of one element per row into a constant, as the gradients of a loss by labels and of
    `gather` begin: pointwise code.

    Its readers then compute it where they need it, while a tensor to scatter into would lie in memory. None
    if the scatter is another one. An index out of range is a check on the index alone, in a copy of it.
    """
    filled = builder.number_everywhere(value)
    rows = [
        as_int(extent) == 1 if k == dim else extent == value.shape[k]
        for k, extent in enumerate(positions.shape)
    ]
    if filled is None or not all(rows):
        return None
    size = value.shape[dim]

    def position(point: tuple[Expr, ...]) -> Scalar:
        return read_position(builder, positions, point, size, wraps=False)

    checked = builder.pointwise(
        positions.shape,
        DType.I64,
        call.device,
        position,
        checks=lambda point: (check_in_range(position(point), size, call),),
        name=f"{call.node.name}_index",
    )

    def body(point: tuple[Expr, ...]) -> Scalar:
        row = (*point[:dim], as_expr(0), *point[dim + 1 :])
        element = scalar_operand(builder, source, row, value.dtype)
        placed = add(filled, element) if mode == "add" else element
        return select(eq(index(point[dim]), builder.read(checked, row)), placed, filled)

    return builder.pointwise(
        value.shape, value.dtype, call.device, body, strides=call.strides(builder), name=call.node.name
    )


def _scatter(mode: StoreMode | None) -> Callable[[Builder, Call], Value]:
    def lower(builder: Builder, call: Call) -> Value:
        value, positions = call.tensor("self"), call.tensor("index")
        if not value.shape or not positions.shape:
            raise NotLowered("scatter with 0-dimensional operands")
        dim = wrap_dim(call.integer("dim"), len(value.shape))
        if any(as_int(size) == 0 for size in positions.shape):
            # nothing is written; such positions may be of any rank
            return value if is_in_place(call) else builder.copy(value, strides=call.strides(builder))
        source = call.arguments["src"] if "src" in call.arguments else call["value"]
        added = mode == "add" or (mode is None and call["reduce"] in ("add", "sum", "mean"))
        # one element along the dimension: no two have the same target, and there is no order to keep
        distinct = mode == "add" and as_int(positions.shape[dim]) == 1 and value.dtype.compute is value.dtype
        if mode is not None and (mode == "store" or distinct):
            hot = (
                None
                if is_in_place(call)
                else _scatter_one_hot(builder, call, value, positions, source, dim, mode)
            )
            if hot is not None:
                return hot
        if added and not distinct and needs_fixed_order(builder, call.device, value.dtype):
            with_old = call.arguments.get("include_self") is not False
            mean = mode is None and call["reduce"] == "mean"
            return scatter_in_fixed_order(
                builder, call, value, positions, source, dim, mean=mean, with_old=with_old
            )
        chosen: StoreMode = _reduce_mode(call) if mode is None else mode
        _require_atomic(call, value.dtype, chosen)
        target = _destination(builder, call, value, positions.shape, chosen)
        size = value.shape[dim]

        def find_position(point: tuple[Expr, ...]) -> Scalar:
            return read_position(builder, positions, point, size, wraps=False)

        def element(point: tuple[Expr, ...]) -> Scalar:
            return scalar_operand(builder, source, point, value.dtype)

        return scatter_into(
            builder,
            target,
            positions.shape,
            lambda point: (*point[:dim], placeholder(0), *point[dim + 1 :]),
            lambda point: (find_position(point),),
            element,
            chosen,
            lambda point: (check_in_range(find_position(point), size, call),),
        )

    return lower


def _reduce_mode(call: Call) -> StoreMode:
    if call.arguments.get("include_self") is False:
        raise NotLowered("scatter_reduce without the old elements")
    modes: dict[str, StoreMode] = {
        "add": "add",
        "multiply": "mul",
        "sum": "add",
        "prod": "mul",
        "amax": "max",
        "amin": "min",
    }
    mode = modes.get(str(call["reduce"]))
    if mode is None:
        raise NotLowered(f"scatter with reduction {call['reduce']}")
    return mode


def _require_rows(
    builder: Builder, call: Call, value: TensorValue, positions: TensorValue, source: TensorValue, dim: int
) -> None:
    """`source` has the shape of `value`, and a row per position: torch's meta function does not look.

    Raises:
        NotLowered: it has not, as ATen's kernel will say.
    """
    if len(source.shape) != len(value.shape) or len(positions.shape) != 1:
        raise NotLowered("index_add of another rank")
    wanted = (*value.shape[:dim], positions.shape[0], *value.shape[dim + 1 :])
    for given, size in zip(source.shape, wanted, strict=True):
        if given == size:
            continue
        if given.is_const and size.is_const:
            raise NotLowered("index_add of another shape")
        message = (
            f"the source of {call.target} must have the shape of what it is added to, but for dimension {dim}"
        )
        lower_assertion(builder, Relation(lhs=given, relation="eq", rhs=size), message, call.node)


def _index_add(builder: Builder, call: Call) -> Value:
    value, positions, source = call.tensor("self"), call.tensor("index"), call.tensor("source")
    if not value.shape or not positions.shape:
        raise NotLowered("index_add with 0-dimensional operands")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    _require_rows(builder, call, value, positions, source, dim)
    if needs_fixed_order(builder, call.device, value.dtype):
        return index_add_in_fixed_order(builder, call, value, positions, source, dim)
    mode = store_mode(call, True)
    target = _destination(builder, call, value, source.shape, mode)

    def position(point: tuple[Expr, ...]) -> Scalar:
        return read_position(builder, positions, (point[dim],), value.shape[dim], wraps=False)

    def element(point: tuple[Expr, ...]) -> Scalar:
        alpha = scalar_operand(builder, call["alpha"], point, value.dtype)
        return mul(alpha, scalar_operand(builder, source, point, value.dtype))

    return scatter_into(
        builder,
        target,
        source.shape,
        lambda point: (*point[:dim], placeholder(0), *point[dim + 1 :]),
        lambda point: (position(point),),
        element,
        mode,
        lambda point: (check_in_range(position(point), value.shape[dim], call),),
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("index_put index_put_ _unsafe_index_put"), _index_put),
    Rule(overloads("scatter.src scatter.value scatter_.src scatter_.value"), _scatter("store")),
    Rule(overloads("scatter_add scatter_add_"), _scatter("add")),
    Rule(overloads("scatter.reduce scatter.value_reduce scatter_reduce.two"), _scatter(None)),
    Rule(overloads("index_add"), _index_add),
)
