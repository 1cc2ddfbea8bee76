"""Sums at positions from tensors, the same from run to run: which element belongs to which row, and where the
sums go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.scalar import Scalar, cast, const
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue, Value, is_whole, make_dims
from coilwork_lowering.facts.static_tensors import is_nondecreasing
from coilwork_lowering.ops.elementwise import scalar_operand
from coilwork_lowering.ops.gathers import AdvancedIndex, check_in_range, read_position
from coilwork_lowering.ops.scattering.elements import Elements, flatten, unflatten
from coilwork_lowering.ops.scattering.segment_sums import sum_rows
from coilwork_lowering.rules import Call, NotLowered
from coilwork_lowering.scalar_math import add, div, index, lt, maximum, mul, select, to_dtype

RowOf: TypeAlias = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]


def needs_fixed_order(builder: Builder, device: str, dtype: DType) -> bool:
    """Tell whether sums of `dtype` at positions from tensors are made by sorting, or in fixed point. Integer
    sums are exact in any order.
    """
    chosen = builder.options.accumulation
    if not dtype.is_float or chosen == "atomic":
        return False
    return chosen != "auto" or not has_trait(device, PROCESSOR)


def is_in_place(call: Call) -> bool:
    """Tell if the operator writes into its first argument."""
    return call.target.split(".")[1].endswith("_")


def index_put_in_fixed_order(
    builder: Builder, call: Call, plan: AdvancedIndex, value: TensorValue, source: TensorValue, depth: Shape
) -> Value:
    """`aten.index_put` that accumulates; `depth` is the shape that the index tensors broadcast to."""
    indexed = tuple(value.shape[k] for k in plan.places)
    inner = tuple(s for k, s in enumerate(value.shape) if k not in plan.places)
    wide = value.dtype.compute

    def value_point(flat: Expr) -> tuple[Expr, ...]:
        # a point of the values, of which the other dimensions do not matter to the index
        rest = [as_expr(0)] * len(inner)
        return (*rest[: plan.front], *unflatten(flat, depth), *rest[plan.front :])

    def key(flat: Expr) -> Scalar:
        result: Scalar = const(0, DType.I64)
        for extent, position in zip(indexed, plan.positions(builder, value_point(flat), call), strict=True):
            result = add(mul(result, index(extent)), position)
        return result

    def element(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        spot = (*point[: plan.front], *unflatten(position, depth), *point[plan.front :])
        own = spot[len(spot) - len(source.shape) :]
        return to_dtype(builder.read(source, own, indirect=(place,), mask=mask), wide)

    elements = Elements(
        count=multiply_all(depth),
        rows=multiply_all(indexed),
        runs=as_expr(1),
        all_rows=True,
        inner=inner,
        key=key,
        value=element,
        dtype=wide,
        checks=lambda flat: plan.checks(builder, value_point(flat), call),
        ordered=_is_one_sorted_index(call.node.args[1]),
    )

    def rows(point: tuple[Expr, ...]) -> tuple[Expr, ...]:
        rest = [p for k, p in enumerate(point) if k not in plan.places]
        return (flatten([point[k] for k in plan.places], indexed), *rest)

    return _add_elements(builder, call, value, elements, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """The elements that a scatter along `dim` adds, as rows of elements that go to one place each.

    Attributes:
        shape: of the tensor that is added to.
        positions: the index.
        whole_rows: the index is the same for all other dimensions; a row of the source is added as one.
        columns: rows of one element, numbered column by column: of equal positions along the first dimension,
            those of one column then stand together.
    """

    shape: Shape
    positions: TensorValue
    dim: int
    whole_rows: bool
    columns: bool

    @property
    def rest(self) -> Shape:
        """The other dimensions of the index."""
        return tuple(size for k, size in enumerate(self.positions.shape) if k != self.dim)

    def spot(self, flat: Expr, point: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return where element `point` of row number `flat` is in the index and the source."""
        if self.whole_rows:
            return (*point[: self.dim], flat, *point[self.dim :])
        if not self.columns:
            return unflatten(flat, self.positions.shape)
        *at, along = unflatten(flat, (*self.rest, self.positions.shape[self.dim]))
        return (*at[: self.dim], along, *at[self.dim :])

    def target(self, point: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the row that is added to element `point` of the result, then the element's place in it."""
        if self.whole_rows:
            return (point[self.dim], *point[: self.dim], *point[self.dim + 1 :])
        # with columns too: nothing stands before the dimension
        return (flatten(point, self.shape),)


def _find_entries(value: TensorValue, positions: TensorValue, dim: int) -> _Entries:
    others = [k for k in range(len(value.shape)) if k != dim]
    along = make_dims(positions.shape)[dim]
    free = frozenset[Expr]().union(*(e.free_symbols for e in positions.index))
    matching = all(positions.shape[k] == value.shape[k] for k in others)
    whole_rows = free <= {along} and matching
    columns = not whole_rows and matching and all(as_int(value.shape[k]) == 1 for k in range(dim))
    return _Entries(shape=value.shape, positions=positions, dim=dim, whole_rows=whole_rows, columns=columns)


def scatter_in_fixed_order(
    builder: Builder,
    call: Call,
    value: TensorValue,
    positions: TensorValue,
    source: Value,
    dim: int,
    *,
    mean: bool = False,
    with_old: bool = True,
) -> Value:
    """Rows along `dim` where the index is the same for all other dimensions, else rows of one element.

    Along the first dimension these are sorted by their position in it alone, by columns: few bytes, hence few
    passes.
    """
    size, wide = value.shape[dim], value.dtype.compute
    entries = _find_entries(value, positions, dim)
    by_position = entries.whole_rows or entries.columns
    below = multiply_all(value.shape[dim + 1 :])

    def find_row(flat: Expr) -> Scalar:
        at = entries.spot(flat, (as_expr(0),) * len(entries.rest))
        return read_position(builder, positions, at, size, wraps=False)

    def key(flat: Expr) -> Scalar:
        if by_position:
            return find_row(flat)
        at = list(entries.spot(flat, ()))
        at[dim] = as_expr(0)
        return add(mul(find_row(flat), index(below)), index(flatten(at, value.shape)))

    def element(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        if not isinstance(source, TensorValue):
            return select(mask, scalar_operand(builder, source, (), wide), const(0, wide))
        read = builder.read(source, entries.spot(position, point), indirect=(place,), mask=mask)
        return to_dtype(read, wide)

    elements = Elements(
        count=positions.shape[dim] if entries.whole_rows else multiply_all(positions.shape),
        rows=size if by_position else multiply_all(value.shape),
        runs=multiply_all(entries.rest) if entries.columns else as_expr(1),
        all_rows=True,
        inner=entries.rest if entries.whole_rows else (),
        key=key,
        value=element,
        dtype=wide,
        checks=lambda flat: (check_in_range(find_row(flat), size, call),),
    )
    return _add_elements(builder, call, value, elements, entries.target, mean=mean, with_old=with_old)


def index_add_in_fixed_order(
    builder: Builder, call: Call, value: TensorValue, positions: TensorValue, source: TensorValue, dim: int
) -> Value:
    """`aten.index_add`."""
    wide = value.dtype.compute

    def key(flat: Expr) -> Scalar:
        return read_position(builder, positions, (flat,), value.shape[dim], wraps=False)

    def element(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        spot = (*point[:dim], position, *point[dim:])
        result = to_dtype(builder.read(source, spot, indirect=(place,), mask=mask), wide)
        return mul(scalar_operand(builder, call["alpha"], (), wide), result)

    elements = Elements(
        count=source.shape[dim],
        rows=value.shape[dim],
        runs=as_expr(1),
        all_rows=True,
        inner=(*value.shape[:dim], *value.shape[dim + 1 :]),
        key=key,
        value=element,
        dtype=wide,
        checks=lambda flat: (check_in_range(key(flat), value.shape[dim], call),),
        ordered=is_nondecreasing(call.node.args[2]),
    )
    return _add_elements(
        builder, call, value, elements, lambda point: (point[dim], *point[:dim], *point[dim + 1 :])
    )


def _is_one_sorted_index(indices: Any) -> bool:
    """Tell if there is one index tensor among `indices`, FX values or None, and it never decreases."""
    results = [given for given in indices if given is not None]
    return len(results) == 1 and is_nondecreasing(results[0])


def _add_elements(
    builder: Builder,
    call: Call,
    value: TensorValue,
    elements: Elements,
    rows: RowOf,
    *,
    mean: bool = False,
    with_old: bool = True,
) -> TensorValue:
    """`value`, or for the in-place operators its memory, with the elements added; `rows` places a point in
    the sums.

    With `mean` the sum is divided by the number of what was added. Without `with_old` the old element counts
    only where nothing was added.
    """
    old = builder.current(value)
    into = None
    if is_in_place(call):
        if not is_whole(old):
            raise NotLowered("a scatter into part of a buffer")
        into = old.buffer
    filled = builder.number_everywhere(value)
    sums = sum_rows(builder, call.device, elements)

    def body(point: tuple[Expr, ...]) -> Scalar:
        place = rows(point)
        result = builder.read(sums.values, place)
        count = sums.count_of(place[0]) if mean or not with_old else const(0, DType.I64)
        before = to_dtype(builder.read(value, point), elements.dtype)
        if with_old and (filled is None or filled.value != 0):
            result = add(before, result)
        if mean:
            parts = add(count, const(1, DType.I64)) if with_old else maximum(count, const(1, DType.I64))
            result = div(result, cast(parts, elements.dtype))
        if not with_old:
            result = select(lt(const(0, DType.I64), count), result, before)
        return to_dtype(result, value.dtype)

    return builder.pointwise(
        value.shape,
        value.dtype,
        call.device,
        body,
        strides=None if into is not None else call.strides(builder),
        into=into,
        name=call.node.name,
    )
