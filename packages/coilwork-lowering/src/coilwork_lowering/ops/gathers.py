"""Reads at positions that come from tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.loops import Check
from coilwork_ir.loops.nodes import CheckError
from coilwork_ir.operators import find_target_info
from coilwork_ir.scalar import Scalar, cast, const, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.static_tensors import (
    PositionMap,
    find_axis,
    find_static_values,
    fit_position_map,
)
from coilwork_lowering.ops.elementwise import bring_to_device, overloads
from coilwork_lowering.rules import Call, NotLowered, Rule, wrap_dim
from coilwork_lowering.scalar_math import add, ge, index, logical_and, lt, select

# Which dimension of an index tensor its positions depend on, and how.
AxisMap: TypeAlias = tuple[int, PositionMap]


def read_position(
    builder: Builder, positions: TensorValue, coordinates: Sequence[Expr], size: Expr, *, wraps: bool
) -> Scalar:
    """Return the position read from `positions`, in `i64`; negative ones count from the end if `wraps`."""
    raw = cast(builder.read(positions, coordinates), DType.I64)
    if not wraps or not positions.dtype.is_signed_integer:
        return raw
    return select(lt(raw, const(0, DType.I64)), add(raw, index(size)), raw)


def check_in_range(position: Scalar, size: Expr, call: Call) -> Check:
    """Return the check `0 <= position < size` for what the program called, which raises what eager raises."""
    return check_bounds(position, size, call.captured_operator, _name_error_type(call))


def check_bounds(position: Scalar, size: Expr, what: str, error: CheckError) -> Check:
    """Return the check `0 <= position < size` for `what`."""
    return Check(
        condition=logical_and(ge(position, const(0, DType.I64)), lt(position, index(size))),
        message=f"index out of range in {what}",
        error=error,
    )


def _name_error_type(call: Call) -> CheckError:
    """Return what eager's kernel raises. Those for one dimension, or along rows, are not the others'."""
    if call.captured_operator == "aten.index_select.default":
        given = call.fakes["self"]
        along_rows = given.dim() > 1 and wrap_dim(call.integer("dim"), given.dim()) == 1
        return "RuntimeError" if along_rows and given.is_contiguous() else "IndexError"
    if call.captured_operator.startswith("aten.index_add") and call.fakes["self"].dim() <= 1:
        return "IndexError"
    return find_target_info(call.captured_operator).index_error


def _lower_embedding(builder: Builder, call: Call) -> Value:
    return _take(builder, call, call.tensor("weight"), 0, call.tensor("indices"), wraps=False)


def _index_select(builder: Builder, call: Call) -> Value:
    value, positions = ensure_dimension(call.tensor("self")), ensure_dimension(call.tensor("index"))
    return _take(
        builder, call, value, wrap_dim(call.integer("dim"), len(value.shape)), positions, wraps=False
    )


def ensure_dimension(value: TensorValue) -> TensorValue:
    """`value`, as a tensor of one element along one dimension if it has no dimensions."""
    return value if value.shape else replace(value, shape=(as_expr(1),))


def _take(
    builder: Builder, call: Call, value: TensorValue, dim: int, positions: TensorValue, *, wraps: bool
) -> TensorValue:
    """`value` with dimension `dim` replaced by the dimensions of `positions`."""
    rank = len(positions.shape)
    size = value.shape[dim]

    def split(point: tuple[Expr, ...]) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...]]:
        point = point or (as_expr(0),)
        return point[:dim], point[dim : dim + rank], point[dim + rank :]

    def position(point: tuple[Expr, ...]) -> Scalar:
        return read_position(builder, positions, split(point)[1], size, wraps=wraps)

    def body(point: tuple[Expr, ...]) -> Scalar:
        before, _, after = split(point)
        return builder.read(value, (*before, placeholder(0), *after), indirect=(position(point),))

    return builder.pointwise(
        call.shape(builder),
        call.dtype,
        call.device,
        body,
        strides=call.strides(builder),
        checks=lambda point: (check_in_range(position(point), size, call),),
    )


def _gather(builder: Builder, call: Call) -> Value:
    value, positions = ensure_dimension(call.tensor("self")), ensure_dimension(call.tensor("index"))
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    size = value.shape[dim]

    def position(point: tuple[Expr, ...]) -> Scalar:
        return read_position(builder, positions, point or (as_expr(0),), size, wraps=False)

    def body(point: tuple[Expr, ...]) -> Scalar:
        point = point or (as_expr(0),)
        at = (*point[:dim], placeholder(0), *point[dim + 1 :])
        return builder.read(value, at, indirect=(position(point),))

    return builder.pointwise(
        call.shape(builder),
        call.dtype,
        call.device,
        body,
        strides=call.strides(builder),
        checks=lambda point: (check_in_range(position(point), size, call),),
    )


class AdvancedIndex:
    """The dimensions that a list of index tensors replaces, and where the result puts the indices'
    dimensions.

    Adjacent index tensors put their broadcast dimensions where they stand; separated ones put them first.
    """

    def __init__(self, rank: int, listed: Sequence[Value], shape: tuple[Expr, ...]) -> None:
        self.places = [k for k, v in enumerate(listed) if isinstance(v, TensorValue)]
        self.tensors = [v for v in listed if isinstance(v, TensorValue)]
        if not self.tensors or any(t.dtype in (DType.BOOL, DType.U8) for t in self.tensors):
            raise NotLowered("indexing by masks")
        self.rank = rank
        self.depth = max(len(t.shape) for t in self.tensors)
        adjacent = self.places == list(range(self.places[0], self.places[-1] + 1))
        self.front = self.places[0] if adjacent else 0
        self.shape = shape

    def split(self, point: Sequence[Expr]) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Return the coordinates of the index tensors, and of the dimensions that stay."""
        inner = tuple(point[self.front : self.front + self.depth])
        rest = (*point[: self.front], *point[self.front + self.depth :])
        return inner, rest

    def coordinates(self, point: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return coordinates into the indexed tensor, with `placeholder(k)` for the k-th index tensor."""
        _, rest = self.split(point)
        remaining = iter(rest)
        numbers = {place: k for k, place in enumerate(self.places)}
        return tuple(placeholder(numbers[k]) if k in numbers else next(remaining) for k in range(self.rank))

    def map_coordinates(self, maps: Sequence[AxisMap], point: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return coordinates into the indexed tensor where positions are functions of coordinates."""
        inner, rest = self.split(point)
        remaining = iter(rest)
        results: dict[int, Expr] = {}
        for place, tensor, (axis, position) in zip(self.places, self.tensors, maps, strict=True):
            own = inner[len(inner) - len(tensor.shape) :]
            results[place] = position(own[axis] if own else as_expr(0))
        return tuple(results[k] if k in results else next(remaining) for k in range(self.rank))

    def positions(self, builder: Builder, point: Sequence[Expr], call: Call) -> tuple[Scalar, ...]:
        """Return the positions at `point`, counted from the front."""
        inner, _ = self.split(point)
        # torch decomposes such operators into writes by index
        wraps = not find_target_info(call.captured_operator).counts_from_start
        results = []
        for place, tensor in zip(self.places, self.tensors, strict=True):
            own = inner[len(inner) - len(tensor.shape) :]
            results.append(read_position(builder, tensor, own, self.shape[place], wraps=wraps))
        return tuple(results)

    def checks(self, builder: Builder, point: Sequence[Expr], call: Call) -> tuple[Check, ...]:
        """Every position lies in its dimension."""
        pairs = zip(self.positions(builder, point, call), self.places, strict=True)
        return tuple(check_in_range(position, self.shape[place], call) for position, place in pairs)


def _index(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    listed = bring_to_device(builder, call["indices"], call.device)
    if any(as_int(size) == 0 for size in value.shape):
        raise NotLowered("indexing into an empty tensor")
    plan = AdvancedIndex(len(value.shape), listed, value.shape)
    nodes: Any = call.node.args[1] if len(call.node.args) > 1 else call.node.kwargs["indices"]
    known = _find_axis_maps(plan, [node for node in nodes if node is not None])

    def body(point: tuple[Expr, ...]) -> Scalar:
        if known is not None:
            return builder.read(value, plan.map_coordinates(known, point))
        return builder.read(value, plan.coordinates(point), indirect=plan.positions(builder, point, call))

    return builder.pointwise(
        call.shape(builder),
        call.dtype,
        call.device,
        body,
        strides=call.strides(builder),
        checks=lambda point: () if known is not None else plan.checks(builder, point, call),
    )


def _find_axis_maps(plan: AdvancedIndex, nodes: Sequence[Any]) -> tuple[AxisMap, ...] | None:
    """Return where each index tensor points as a function of one of its coordinates, if all are known when
    compiling.
    """
    results = []
    for place, node in zip(plan.places, nodes, strict=True):
        size, values = as_int(plan.shape[place]), find_static_values(node)
        axis = None if values is None else find_axis(values.shape)
        if size is None or values is None or axis is None:
            return None
        position = fit_position_map(values, size)
        if position is None:
            return None
        results.append((axis, position))
    return tuple(results)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("embedding"), _lower_embedding),
    Rule(overloads("index_select"), _index_select),
    Rule(overloads("gather"), _gather),
    Rule(overloads("index.Tensor _unsafe_index.Tensor"), _index),
)
