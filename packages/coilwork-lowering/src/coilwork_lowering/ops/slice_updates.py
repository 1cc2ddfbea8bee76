"""Updates of parts of a tensor: `slice_scatter` and its relatives, `copy_` and `copy`.

A part is a view of the tensor it belongs to. The first functions here tell which part an operator replaces,
and whether parts are the same, lie in each other, or may overlap. An update goes into the tensor's own memory
where `reinplacing.py` decided that it may, else the rule computes a new tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.dtypes import DType
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    find_coefficients,
    maximum,
    minimum,
    provably_le,
    provably_lt,
)
from coilwork_ir.loops import Scatter
from coilwork_ir.scalar import Scalar, const, op
from coilwork_lowering.building import values
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.size_assertions import lower_assertion
from coilwork_lowering.building.values import (
    Relation,
    Shape,
    TensorValue,
    Value,
    find_layout,
    is_whole,
    make_coordinate_symbols,
    make_dims,
    make_whole_value,
)
from coilwork_lowering.ops.elementwise import bring_to_device, overloads, scalar_operand
from coilwork_lowering.ops.storage_aliasing import find_box, is_box_update, is_in_input_storage
from coilwork_lowering.ops.views import find_selected_position, slice_bounds, wrap_start
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule, require_int, require_size, wrap_dim
from coilwork_lowering.scalar_math import ge, index, logical_and, lt, select, to_dtype

# ---- Parts of tensors ----


def view_replaced_part(
    operator: str, value: TensorValue, arguments: Mapping[str, Value], shape: Shape
) -> TensorValue:
    """Return what a call of an operator that `replaces_part` replaces of `value` by a tensor of `shape`, as a
    view of `value`.

    Raises:
        NotLowered: where the part is depends on what nobody knows, or it surely has another shape, which
            torch refuses.
    """
    if has_other_shape(shape, part_shape(operator, value, arguments)):
        raise NotLowered("the part has another shape than what replaces it")
    rank = len(value.shape)
    match operator:
        case "aten.slice_scatter.default":
            dim = wrap_dim(require_int(arguments["dim"]), rank)
            start, _ = slice_bounds(arguments["start"], arguments["end"], value.shape[dim])
            return values.narrow(value, dim, start, shape[dim], require_int(arguments["step"]))
        case "aten.select_scatter.default":
            dim = wrap_dim(require_int(arguments["dim"]), rank)
            return values.select(value, dim, wrap_start(require_size(arguments["index"]), value.shape[dim]))
        case "aten.diagonal_scatter.default":
            first, second = (wrap_dim(require_int(arguments[name]), rank) for name in ("dim1", "dim2"))
            return values.take_diagonal(value, first, second, require_int(arguments["offset"]), shape[-1])
    raise NotLowered(f"{operator} replaces no part")


def part_shape(operator: str, value: TensorValue, arguments: Mapping[str, Value]) -> Shape:
    """Return the shape of what a call of an operator that `replaces_part` replaces.

    Raises:
        NotLowered: it depends on what nobody knows.
    """
    sizes, rank = value.shape, len(value.shape)
    match operator:
        case "aten.slice_scatter.default":
            dim = wrap_dim(require_int(arguments["dim"]), rank)
            start, end = slice_bounds(arguments["start"], arguments["end"], sizes[dim])
            extent = ceildiv(maximum(end - start, 0), require_int(arguments["step"]))
            return (*sizes[:dim], extent, *sizes[dim + 1 :])
        case "aten.select_scatter.default":
            dim = wrap_dim(require_int(arguments["dim"]), rank)
            return sizes[:dim] + sizes[dim + 1 :]
        case "aten.diagonal_scatter.default":
            first, second = (wrap_dim(require_int(arguments[name]), rank) for name in ("dim1", "dim2"))
            offset = require_int(arguments["offset"])
            along = minimum(sizes[first] - max(-offset, 0), sizes[second] - max(offset, 0))
            return (*(n for k, n in enumerate(sizes) if k not in (first, second)), maximum(along, 0))
    raise NotLowered(f"{operator} replaces no part")


def has_other_shape(one: Shape, other: Shape) -> bool:
    """Tell if the shapes are surely not the same."""
    return len(one) != len(other) or any(
        provably_lt(a, b) or provably_lt(b, a) for a, b in zip(one, other, strict=True)
    )


def is_same_region(a: TensorValue, b: TensorValue) -> bool:
    """Tell if `a` and `b` are the same elements of the same buffer, in the same order."""
    return a.buffer.name == b.buffer.name and a.shape == b.shape and a.index == b.index


def contains_part(outer: TensorValue, inner: TensorValue) -> bool:
    """Tell if every element of `inner` is surely one of `outer`; both are parts of one buffer."""
    if is_whole(outer) or (outer.shape == inner.shape and outer.index == inner.index):
        return True
    wide, narrow = _box(outer), _box(inner)
    return (
        wide is not None and narrow is not None and all(a.holds(b) for a, b in zip(wide, narrow, strict=True))
    )


def is_injective(value: TensorValue) -> bool:
    """Tell if no two elements of `value` surely are one in memory."""
    buffer = value.buffer
    if can_overlap(buffer.shape, buffer.strides):
        return False
    alone = {run.along for run in _runs(value) if run is not None}
    if all(d in alone for d in make_dims(value.shape) if not d.is_const):
        return True
    layout = find_layout(value)
    if layout is None or any(as_int(n) is None for n in (*value.shape, *layout.strides)):
        return False
    return not can_overlap(value.shape, layout.strides)


def can_overlap(shape: Shape, strides: Sequence[Expr]) -> bool:
    """Tell if elements of a tensor share memory, as far as its strides are known."""
    reach = 0
    pairs = [(as_int(step), as_int(size)) for step, size in zip(strides, shape, strict=True)]
    if any(step == 0 and size != 1 for step, size in pairs):
        return True
    known = sorted(
        (step, size) for step, size in pairs if step is not None and size is not None and size != 1
    )
    for step, size in known:
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Coordinates `start`, `start + step`, … that one dimension of a buffer takes along `along`, or `start`
    alone.
    """

    start: Expr
    count: Expr
    step: int
    along: Expr | None

    def holds(self, other: _Run) -> bool:
        if (self.start, self.count, self.step) == (other.start, other.count, other.step):
            return True
        last = other.start + (other.count - 1) * other.step
        return (
            self.step == 1
            and provably_le(self.start, other.start)
            and provably_le(last + 1, self.start + self.count)
        )


def _runs(value: TensorValue) -> list[_Run | None]:
    """Return the run of each dimension of the buffer; None where it depends on several coordinates."""
    extents = {d: n for d, n in zip(make_dims(value.shape), value.shape, strict=True) if not d.is_const}
    runs: list[_Run | None] = []
    for coordinate in value.index:
        moving = [d for d in extents if d in coordinate.free_symbols]
        affine = find_coefficients(coordinate, moving) if len(moving) == 1 else None
        step = None if affine is None else as_int(affine[0][0])
        if not moving:
            runs.append(_Run(start=coordinate, count=as_expr(1), step=1, along=None))
        elif affine is None or step is None or step <= 0:
            runs.append(None)
        else:
            runs.append(_Run(start=affine[1], count=extents[moving[0]], step=step, along=moving[0]))
    return runs


def _box(value: TensorValue) -> list[_Run] | None:
    """Return a run for each dimension of the buffer, if the elements of `value` are all points of them."""
    runs = [run for run in _runs(value) if run is not None]
    along = [run.along for run in runs if run.along is not None]
    if len(runs) != len(value.index) or len(set(along)) != len(along):
        return None
    return runs


# ---- Rules ----


def _copy_into(builder: Builder, call: Call) -> Value:
    """Return the new contents go straight into the old memory when they are laid over a whole buffer, where
    updates in place are already.
    """
    old = builder.current(call.tensor("self"))
    if not is_whole(old):
        raise NotLowered("a copy into part of a buffer")
    source = call.tensor("src")
    if is_same_region(source, old):
        return old
    return write_into(builder, old, source)


def write_into(builder: Builder, old: TensorValue, source: TensorValue) -> TensorValue:
    """Overwrite the buffer of `old` with `source`, converted and broadcast."""
    moved = bring_to_device(builder, [source], old.device)[0]
    assert isinstance(moved, TensorValue)

    def body(point: tuple[Expr, ...]) -> Scalar:
        return to_dtype(builder.read_broadcast(moved, point), old.dtype)

    if can_overlap(old.shape, old.buffer.strides):
        raise NotLowered("a copy into overlapping memory")
    return builder.pointwise(old.shape, old.dtype, old.device, body, into=old.buffer)


def _copy(builder: Builder, call: Call) -> Value:
    (source,) = bring_to_device(builder, [call["src"]], call.device)
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        return scalar_operand(builder, source, point, dtype)

    return builder.pointwise(call.shape(builder), dtype, call.device, body, strides=call.strides(builder))


def _make_part_replacement(computed: Lower) -> Lower:
    """A part of a tensor is replaced: where it lies, if that is decided, else as `computed` says."""

    def lower(builder: Builder, call: Call) -> Value:
        value, source = call.tensor("self"), call.tensor("src")
        part = view_replaced_part(call.target, value, call.arguments, source.shape)
        _check_shape(builder, call, value, source)
        _check_position(builder, call, value)
        if is_same_region(source, part) and call.updates.is_taken(value):
            # it was written there before
            return value
        empty = any(as_int(extent) == 0 for extent in part.shape)
        elsewhere = source.device != value.device
        if empty or elsewhere or not call.updates.can_replace_part(call.node, value, part):
            return computed(builder, call)
        store_part(builder, part, source)
        return builder.current(value)

    return lower


def _check_position(builder: Builder, call: Call, value: TensorValue) -> None:
    """The row that `select_scatter` replaces has to be there: torch's meta function does not look.

    Raises:
        NotLowered: it is not, as ATen will say.
    """
    if call.target != "aten.select_scatter.default":
        return
    size = value.shape[wrap_dim(call.integer("dim"), len(value.shape))]
    chosen = wrap_start(require_size(call["index"]), size)
    message = f"index out of range: the position of a row among {size}"
    if provably_lt(chosen, as_expr(0)) or provably_le(size, chosen):
        raise NotLowered("a row that is not there")
    # not one more than it, which the largest integer has not
    for condition in (
        Relation(lhs=as_expr(0), relation="le", rhs=chosen),
        Relation(lhs=chosen, relation="lt", rhs=size),
    ):
        lower_assertion(builder, condition, message, call.node)


def _check_shape(builder: Builder, call: Call, value: TensorValue, source: TensorValue) -> None:
    """Assert that the source of an update has the part's shape, as torch demands."""
    for given, extent in zip(source.shape, part_shape(call.target, value, call.arguments), strict=True):
        lower_assertion(
            builder,
            Relation(lhs=given, relation="eq", rhs=extent),
            f"expected src to have a size equal to the slice of self: {given} is not {extent}",
            call.node,
        )


def _slice_scatter(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    source = call.tensor("src")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    size = value.shape[dim]
    start, end = slice_bounds(call["start"], call["end"], size)
    step = require_int(call["step"])
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        at = point[dim]
        mask: Scalar = const(True, DType.BOOL)
        if not provably_le(start, 0):
            mask = logical_and(mask, ge(index(at), index(start)))
        if not provably_le(size, end):
            mask = logical_and(mask, lt(index(at), index(end)))
        if step != 1:
            mask = logical_and(mask, op("eq", index((at - start) % step), index(as_expr(0))))
        place = [(c - start) // step if k == dim else c for k, c in enumerate(point)]
        mask = simplify(mask)
        update = to_dtype(builder.read(source, place, mask=mask), dtype)
        return select(mask, update, builder.read(value, point))

    return builder.pointwise(value.shape, dtype, call.device, body, strides=call.strides(builder))


def _lower_as_strided_scatter(builder: Builder, call: Call) -> Value:
    """Replace a box of a tensor: in the memory that other boxes went to before, else in a copy."""
    value, source = call.tensor("self"), call.tensor("src")
    size, stride, offset = (call.node.args[k] if k < len(call.node.args) else None for k in (2, 3, 4))
    starts = find_box(call.fakes["self"], size, stride, offset)
    if starts is None or source.dtype is not value.dtype or source.device != value.device:
        raise NotLowered("the part is no box")
    if is_in_input_storage(call.node.args[0]):
        raise NotLowered("a place in the storage of an input, which may begin elsewhere in the next call")
    given = call.node.args[0]
    assert isinstance(given, torch.fx.Node)
    in_place = given.target is call.node.target and is_box_update(call.node, given, builder.options)
    if not (in_place and is_whole(value)) and not builder.is_unfilled(value.buffer):
        value = builder.copy(value, strides=call.strides(builder))
    return store_box(builder, value.buffer, starts, source)


def _select_scatter(builder: Builder, call: Call) -> Value:
    value, source = call.tensor("self"), call.tensor("src")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    chosen = find_selected_position(builder, call, value, dim)
    dtype = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        rest = point[:dim] + point[dim + 1 :]
        hit = op("eq", index(point[dim]), index(chosen))
        return select(hit, to_dtype(builder.read(source, rest), dtype), builder.read(value, point))

    return builder.pointwise(value.shape, dtype, call.device, body, strides=call.strides(builder))


def _diagonal_scatter(builder: Builder, call: Call) -> Value:
    value, source = call.tensor("self"), call.tensor("src")
    rank, offset, dtype = len(value.shape), call.integer("offset"), call.dtype
    first, second = (wrap_dim(call.integer(name), rank) for name in ("dim1", "dim2"))

    def body(point: tuple[Expr, ...]) -> Scalar:
        hit = op("eq", index(point[second] - point[first]), index(as_expr(offset)))
        along = point[first] if offset >= 0 else point[second]
        rest = tuple(c for k, c in enumerate(point) if k not in (first, second))
        update = to_dtype(builder.read(source, (*rest, along), mask=hit), dtype)
        return select(hit, update, builder.read(value, point))

    return builder.pointwise(value.shape, dtype, call.device, body, strides=call.strides(builder))


def store_part(builder: Builder, part: TensorValue, source: TensorValue) -> None:
    """Append a store of `source`, converted, into `part` of a buffer, whose memory then has another name."""
    point = make_coordinate_symbols("i", source.shape)
    old = part.buffer
    output = builder.declare(old.shape, old.dtype, old.device, strides=old.strides)
    builder.add(
        Scatter(
            output=output,
            into=old.name,
            ranges=make_node_ranges("i", source.shape),
            index=part.get_coordinates(point),
            indirect=(),
            value=simplify(to_dtype(builder.read(source, point), old.dtype)),
            mode="store",
            origins=builder.origins,
        )
    )
    builder.buffers.overwrite(old.name, output)


def store_box(builder: Builder, target: Buffer, starts: Sequence[int], source: TensorValue) -> TensorValue:
    """Append a store of `source` into the box of `target` that begins at `starts`; it takes over
    that memory.
    """
    point = make_coordinate_symbols("i", source.shape)
    value = simplify(builder.read(source, point))
    begun = not builder.is_unfilled(target)
    output = target
    if begun:
        output = builder.declare(target.shape, target.dtype, target.device, strides=target.strides)
    builder.add(
        Scatter(
            output=output,
            into=target.name if begun else None,
            ranges=make_node_ranges("i", source.shape),
            index=tuple(start + c for start, c in zip(starts, point, strict=True)),
            indirect=(),
            value=value,
            mode="store",
            origins=builder.origins,
        )
    )
    if begun:
        builder.buffers.overwrite(target.name, output)
    return make_whole_value(output)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("copy_"), _copy_into),
    Rule(overloads("copy"), _copy),
    Rule(overloads("slice_scatter"), _make_part_replacement(_slice_scatter)),
    Rule(overloads("select_scatter"), _make_part_replacement(_select_scatter)),
    Rule(overloads("diagonal_scatter"), _make_part_replacement(_diagonal_scatter)),
    Rule(overloads("as_strided_scatter"), _lower_as_strided_scatter),
)
