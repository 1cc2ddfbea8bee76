"""Sorts, `topk`, elements by rank, and one or two extreme elements of rows.

A row that fits on chip is sorted there, together with its producers and with elementwise consumers. CPUs sort
all rows in memory. On accelerators the first elements of a longer row come from sorted pieces that fit. Other
sorts of longer rows, rows of unknown length, and elements of 64 bits, whose keys leave no room for positions,
stay calls of ATen there.

One or two largest or smallest elements are reductions, each over what the earlier ones leave. All of them
read one row, so they share a kernel that keeps it on chip, as for the softmax of a router.

Of equal elements the first comes first. Eager may take others, by algorithms of its own. On CPUs, `topk` of
short rows, as in routers of experts, takes eager's. With `numerics` other than `fast`, ATen is called
wherever eager's choice may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.buffers import Buffer
from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod
from coilwork_ir.loops import Reduce, Sort
from coilwork_ir.scalar import Scalar, cast, const, load, op, placeholder
from coilwork_lowering.building import values as view_maps
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import (
    Shape,
    TensorValue,
    Value,
    format_device,
    make_coordinate_symbols,
    make_whole_value,
)
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.reductions import map_elements
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule, wrap_dim
from coilwork_lowering.scalar_math import add, eq, gt, index, logical_or, lt, mul, select, sub

# ---- One or two extreme elements ----


# Elements chosen. A pass over a row takes some 13 instructions per element; a network that sorts the first
# two of elements of 32 bits takes 34 to 60 in all, and of narrower ones, whose keys are half as wide, 21 to
# 26.
FEW: Final = 2
_SIGN: Final = 1 << 31


def can_choose(dtype: DType, count: int, *, in_memory: bool) -> bool:
    """Tell if passes over the row are cheaper than to sort the first `count` elements.

    `in_memory`: kernels sort rows in memory. What is narrower takes them no less time then.
    """
    narrow = dtype.itemsize <= 4 and not dtype.is_bool
    return count <= FEW and (narrow if in_memory else dtype in (DType.F32, DType.I32))


def make_order_key(value: Scalar) -> Scalar:
    """Return a number in the order of `value`, NaN above all, and neither the least nor the greatest of its
    type.

    Floats give an `i32`: their bits, those of negative ones turned around (both zeros give 0). Integers of up
    to 32 bits give an `i64`.
    """
    if not value.dtype.is_float:
        return cast(value, DType.I64)
    wide = cast(value, DType.F32)
    bits = op("bitcast", wide, dtype=DType.I32)
    turned = op("sub", const(-_SIGN, DType.I32), bits)
    ordered = select(lt(bits, const(0, DType.I32)), turned, bits)
    return select(op("isnan", wide), const(_SIGN - 2, DType.I32), ordered)


def choose_extremes(
    builder: Builder, call: Call, value: TensorValue, dim: int, count: int, *, largest: bool
) -> Value:
    """Return the first `count` elements along `dim` in order, and their positions, as `aten.topk` gives
    them.
    """
    values, positions = call.result
    device = value.device
    chosen = _choose_positions(builder, value, dim, count, largest=largest)
    shape = builder.sizes.exprs(positions.shape)

    def position(point: tuple[Expr, ...]) -> Scalar:
        row = (*point[:dim], *point[dim + 1 :])
        result = builder.read(make_whole_value(chosen[-1]), row)
        for number in reversed(range(count - 1)):
            mine = eq(index(point[dim]), const(number, DType.I64))
            result = select(mine, builder.read(make_whole_value(chosen[number]), row), result)
        return result

    places = builder.pointwise(
        shape,
        DType.I64,
        device,
        position,
        strides=builder.result_strides(positions),
        name=f"{call.node.name}_indices",
    )

    def element(point: tuple[Expr, ...]) -> Scalar:
        at = (*point[:dim], placeholder(0), *point[dim + 1 :])
        return builder.read(value, at, indirect=(builder.read(places, point),))

    result = builder.pointwise(
        shape,
        value.dtype,
        device,
        element,
        strides=builder.result_strides(values),
        name=f"{call.node.name}_values",
    )
    return (result, places)


def _choose_positions(
    builder: Builder, value: TensorValue, dim: int, count: int, *, largest: bool
) -> list[Buffer]:
    """Return positions of the first `count` elements in order, one buffer of rows each. Of equal elements the
    first comes first.
    """
    rows = (*value.shape[:dim], *value.shape[dim + 1 :])
    point = make_coordinate_symbols("i", rows)
    (axis,) = make_node_ranges("r", (value.shape[dim],))
    key = make_order_key(builder.read(value, (*point[:dim], axis, *point[dim:])))
    if not largest:
        key = op("bitwise_not", key)
    lowest = const(-_SIGN if key.dtype is DType.I32 else -(1 << 63), key.dtype)
    chosen: list[Buffer] = []
    for number in range(count):
        left = key
        if chosen:
            taken = [eq(index(axis), load(b.name, point, DType.I64)) for b in chosen]
            gone = taken[0]
            for other in taken[1:]:
                gone = logical_or(gone, other)
            left = select(gone, lowest, key)
        output = builder.declare(rows, DType.I64, value.device, name=f"{builder.hint}_{number}")
        builder.add(
            Reduce(
                outputs=(output,),
                kind="argmax",
                ranges=make_node_ranges("i", rows),
                axes=(axis,),
                body=simplify(left),
                origins=builder.origins,
            )
        )
        chosen.append(output)
    return chosen


# ---- Sorted rows ----


_WIDE: Final = (DType.F64, DType.I64, DType.U64)
# A kernel in C++ has room for so long a row beside what it sorts (`topk_records`).
_LONGEST_TOPK: Final = 512
_KEYLESS: Final = (DType.F8E4M3, DType.F8E5M2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows to sort: `element` of each point of `shape`, along dimension `dim`."""

    shape: Shape
    device: str
    dim: int
    element: Callable[[tuple[Expr, ...]], Scalar]


def _make_rows(builder: Builder, value: TensorValue, dim: int) -> Rows:
    def element(point: tuple[Expr, ...]) -> Scalar:
        return builder.read(value, point)

    return Rows(shape=value.shape, device=value.device, dim=dim, element=element)


def _row(
    builder: Builder, call: Call, *, cut: bool = False, sorts: bool = True
) -> tuple[TensorValue, int, int | None]:
    """Return the operand, the dimension that its rows lie along, and their length if it is known.

    On accelerators it is, and the row stays on chip, or as many pieces as such a row has points if it may be
    `cut`. `sorts`: passes over the row will not do.

    Raises:
        NotLowered: they are not sorted in a kernel.
    """
    value, chosen = call.tensor("self"), builder.options.sorting
    in_memory = _is_sorted_in_memory(builder, value)
    if chosen == "calls" or (chosen == "auto" and not in_memory and has_trait(value.device, PROCESSOR)):
        raise NotLowered("elements that ATen finds as well")
    if not value.shape or format_device(call.result[0].device) != value.device:
        raise NotLowered("a sort of a number")
    dim = wrap_dim(call.integer("dim"), len(value.shape))
    length = as_int(value.shape[dim])
    if any(as_int(extent) == 0 for extent in value.shape):
        raise NotLowered("a sort of nothing")
    if value.dtype in _KEYLESS or value.dtype.is_opaque:
        raise NotLowered("elements in no order")
    if in_memory:
        return value, dim, length
    figures = builder.machine_of(value.device).sorts
    if length is None or length > (figures.on_chip**2 if cut else figures.on_chip):
        raise NotLowered("rows that do not stay on chip")
    if value.dtype in _WIDE:
        raise NotLowered("elements in no order of 32 bits")
    if chosen == "auto" and sorts and length > figures.short_across and not _is_contiguous_along(call, dim):
        raise NotLowered("long rows that lie across memory")
    return value, dim, length


def _row_to_choose_from(
    builder: Builder, call: Call, *, cut: bool = False, sorts: bool = True
) -> tuple[TensorValue, int, int]:
    """Return what `_row` does, for operators that choose some elements of each row.

    The length must be known, and elements on a CPU have 32 bits at most by default.

    ATen finds wider ones in 0.2 to 0.8 of the time, all others in 1.2 to 10 times as much (rows of 16 to
    65536, 1 to 64 of 128 to 50000 elements, AVX-512).
    """
    value, dim, length = _row(builder, call, cut=cut, sorts=sorts)
    if length is None:
        raise NotLowered("rows of unknown length")
    if value.dtype in _WIDE and builder.options.sorting == "auto":
        raise NotLowered("elements of 64 bits, which ATen finds faster")
    return value, dim, length


def _is_sorted_in_memory(builder: Builder, value: TensorValue) -> bool:
    """Tell if kernels sort rows of `value` in memory, whatever their length."""
    return builder.options.sorts_in_memory and has_trait(value.device, PROCESSOR)


def _leave_ties(builder: Builder) -> None:
    """Leave the choice among equal elements to ATen, unless `numerics` is `fast`.

    Raises:
        NotLowered: it is not.
    """
    if builder.options.numerics != "fast":
        raise NotLowered("equal elements, among which eager chooses in its own way")


def _is_contiguous_along(call: Call, dim: int) -> bool:
    """Tell if elements of a row are neighbours in the captured operand."""
    source = call.node.args[0]
    fake = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    return isinstance(fake, torch.Tensor) and fake.dim() > 0 and fake.stride()[dim] == 1


def _sort_rows(
    builder: Builder,
    rows: Rows,
    *,
    descending: bool,
    stable: bool = False,
    count: int | None = None,
    as_topk: bool = False,
    strides: Sequence[Sequence[Expr] | None] = (None, None),
) -> tuple[TensorValue, TensorValue]:
    """Return the elements of rows in order, or the first `count` of them, and their positions; see `Sort`."""
    ranges = make_node_ranges("i", rows.shape)
    # along the sort the coordinate is the range, also if there is one point
    point = list(make_coordinate_symbols("i", rows.shape))
    point[rows.dim] = ranges[rows.dim]
    shape = list(rows.shape)
    if count is not None:
        shape[rows.dim] = as_expr(count)
    body = simplify(rows.element(tuple(point)))
    values, places = (
        builder.declare(tuple(shape), dtype, rows.device, strides=layout, name=f"{builder.hint}_{what}")
        for dtype, layout, what in zip((body.dtype, DType.I64), strides, ("values", "indices"), strict=True)
    )
    builder.add(
        Sort(
            outputs=(values, places),
            ranges=ranges,
            axis=ranges[rows.dim],
            body=body,
            count=None if count is None else as_expr(count),
            descending=descending,
            stable=stable,
            as_topk=as_topk,
            origins=builder.origins,
        )
    )
    return make_whole_value(values), make_whole_value(places)


def _sort(builder: Builder, call: Call) -> Value:
    values, positions = call.result
    value, dim, _ = _row(builder, call)
    strides = (builder.result_strides(values), builder.result_strides(positions))
    stable = bool(call.arguments.get("stable"))
    if not stable:
        _leave_ties(builder)
    descending = bool(call["descending"])
    rows = _make_rows(builder, value, dim)
    return _sort_rows(builder, rows, descending=descending, stable=stable, strides=strides)


def _topk(builder: Builder, call: Call) -> Value:
    values, positions = call.result
    count = call.integer("k")
    operand = call.tensor("self")
    in_memory = _is_sorted_in_memory(builder, operand)
    passes = can_choose(operand.dtype, count, in_memory=in_memory)
    value, dim, length = _row_to_choose_from(builder, call, cut=True, sorts=not passes)
    if not 1 <= count <= length:
        raise NotLowered("no elements of a row")
    largest = bool(call["largest"])
    as_topk = in_memory and length <= _LONGEST_TOPK
    if not as_topk or not call["sorted"]:
        _leave_ties(builder)
    strides = (builder.result_strides(values), builder.result_strides(positions))
    if not _is_sorted_in_memory(builder, value) and length > builder.machine_of(value.device).sorts.on_chip:
        return _select_first_of_pieces(builder, value, dim, length, count, largest=largest, strides=strides)
    if count < length and passes and not as_topk:
        return choose_extremes(builder, call, value, dim, count, largest=largest)
    rows = _make_rows(builder, value, dim)
    return _sort_rows(
        builder,
        rows,
        descending=largest,
        count=count,
        as_topk=as_topk,
        strides=strides,
    )


def _select_first_of_pieces(
    builder: Builder,
    value: TensorValue,
    dim: int,
    length: int,
    count: int,
    *,
    largest: bool,
    strides: tuple[Sequence[Expr], Sequence[Expr]],
) -> Value:
    """Return the first elements of the first elements of pieces that stay on chip.

    Raises:
        NotLowered: those of all pieces do not.
    """
    longest = builder.machine_of(value.device).sorts.on_chip
    pieces = -(-length // longest)
    if pieces * count > longest:
        raise NotLowered("elements of a row that does not stay on chip")
    # behind the end of the row: after all others that are equal to it, for its position is greater
    last = _get_last(value.dtype, descending=largest)

    def element(point: tuple[Expr, ...]) -> Scalar:
        at = point[dim] * longest + point[dim + 1]
        inside = None if length % longest == 0 else lt(index(at), const(length, DType.I64))
        return builder.read(value, (*point[:dim], at, *point[dim + 2 :]), mask=inside, other=last)

    around, behind = value.shape[:dim], value.shape[dim + 1 :]
    cut = Rows(
        shape=(*around, as_expr(pieces), as_expr(longest), *behind),
        device=value.device,
        dim=dim + 1,
        element=element,
    )
    first, first_places = _sort_rows(builder, cut, descending=largest, stable=True, count=count)

    def candidate(point: tuple[Expr, ...]) -> Scalar:
        piece, rank = floordiv(point[dim], count), mod(point[dim], count)
        return builder.read(first, (*point[:dim], piece, rank, *point[dim + 1 :]))

    candidates = Rows(
        shape=(*around, as_expr(pieces * count), *behind), device=value.device, dim=dim, element=candidate
    )
    result, ranks = _sort_rows(
        builder, candidates, descending=largest, stable=True, count=count, strides=(strides[0], None)
    )

    def position(point: tuple[Expr, ...]) -> Scalar:
        rank, per_piece = builder.read(ranks, point), const(count, DType.I64)
        piece = op("floordiv", rank, per_piece)
        at = (*point[:dim], placeholder(0), placeholder(1), *point[dim + 1 :])
        place = builder.read(first_places, at, indirect=(piece, op("mod", rank, per_piece)))
        return add(mul(piece, const(longest, DType.I64)), place)

    places = builder.pointwise(
        ranks.shape, DType.I64, value.device, position, strides=strides[1], name=f"{builder.hint}_indices"
    )
    return (result, places)


def _select_rank(
    builder: Builder, call: Call, value: TensorValue, dim: int, rank: Scalar | TensorValue
) -> Value:
    """Return, per row, the element that is number `rank` in ascending order, and its position."""
    values, _ = call.result
    ordered, places = _sort_rows(builder, _make_rows(builder, value, dim), descending=False)
    rows = (*value.shape[:dim], *value.shape[dim + 1 :])
    wide = value.dtype.compute
    least = float("-inf") if wide.is_float else False if wide.is_bool else _get_least_value(wide)

    def keep_if_ranked(source: TensorValue, other: Scalar, row: tuple[Expr, ...], axis: Expr) -> Scalar:
        wanted = builder.read(rank, row) if isinstance(rank, TensorValue) else rank
        here = builder.read(source, (*row[:dim], axis, *row[dim:]))
        return select(eq(index(axis), wanted), cast(here, other.dtype), other)

    def pick(source: TensorValue, other: Scalar) -> TensorValue:
        (result,) = builder.reduce(
            "any" if other.dtype.is_bool else "max",
            rows,
            (value.shape[dim],),
            value.device,
            lambda row, axes: keep_if_ranked(source, other, row, axes[0]),
            (other.dtype,),
        )
        assert result is not None
        return result

    result = pick(ordered, const(least, wide))
    if wide is not value.dtype:
        result = map_elements(builder, result, lambda x: cast(x, value.dtype), value.dtype)
    at = pick(places, const(0, DType.I64))
    if len(values.shape) > len(rows):
        result, at = view_maps.insert(result, (dim,)), view_maps.insert(at, (dim,))
    return (result, at)


def _get_last(dtype: DType, *, descending: bool) -> bool | int | float:
    """Return a value after which no element comes in this order."""
    if dtype.is_float:
        return float("-inf") if descending else float("nan")
    if dtype.is_integer:
        return _get_least_value(dtype) if descending else _get_greatest(dtype)
    return not descending


def _get_least_value(dtype: DType) -> int:
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.is_signed_integer else 0


def _get_greatest(dtype: DType) -> int:
    return (1 << (8 * dtype.itemsize - dtype.is_signed_integer)) - 1


def _kthvalue(builder: Builder, call: Call) -> Value:
    value, dim, length = _row_to_choose_from(builder, call)
    _leave_ties(builder)
    rank = call.integer("k") - 1
    if not 0 <= rank < length:
        raise NotLowered("an element that the row does not have")
    return _select_rank(builder, call, value, dim, const(rank, DType.I64))


def _median(*, skips_nan: bool) -> Lower:
    """Return the lower one of two in the middle. A NaN makes it NaN, unless `skips_nan`."""

    def lower(builder: Builder, call: Call) -> Value:
        value, dim, length = _row_to_choose_from(builder, call)
        _leave_ties(builder)
        if not value.dtype.is_float:
            return _select_rank(builder, call, value, dim, const((length - 1) // 2, DType.I64))
        rows = (*value.shape[:dim], *value.shape[dim + 1 :])

        def is_nan(row: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
            element = builder.read(value, (*row[:dim], axes[0], *row[dim:]))
            return cast(op("isnan", cast(element, DType.F32)), DType.I64)

        (nans,) = builder.reduce("sum", rows, (value.shape[dim],), value.device, is_nan, (DType.I64,))
        assert nans is not None
        zero, one = const(0, DType.I64), const(1, DType.I64)

        def rank(count: Scalar) -> Scalar:
            numbers = sub(const(length, DType.I64), count)
            if skips_nan:
                return op("rshift", op("maximum", sub(numbers, one), zero), one)
            # the first NaN comes right after the numbers
            return select(gt(count, zero), numbers, const((length - 1) // 2, DType.I64))

        return _select_rank(builder, call, value, dim, map_elements(builder, nans, rank, DType.I64))

    return lower


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("topk"), _topk),
    Rule(("aten.sort.default", "aten.sort.stable"), _sort),
    Rule(overloads("kthvalue"), _kthvalue),
    Rule(("aten.median.dim",), _median(skips_nan=False)),
    Rule(("aten.nanmedian.dim",), _median(skips_nan=True)),
)
