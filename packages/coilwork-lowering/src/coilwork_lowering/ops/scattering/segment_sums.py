"""Sums of elements that share a target, added in one order on every run, without atomics.

Each of `count` elements names the row it is added to, its key. A stable sort of the keys puts a row's
elements side by side, in their order in memory. A binary search finds a row's elements, and its sum is a
reduction over them. So each addend is read once, each row is written once, empty rows included, and equal
inputs give equal bits.

A row with very many elements would keep one program busy for long. So sorted positions are also cut into
pieces of `PIECE`, and pieces within one row are summed first, by programs of their own. A row is then its
elements before its first whole piece, the sums of its pieces, and the elements behind them.

A table of few rows, as a histogram of a few bins, sorts nothing: each row looks at every element and adds its
own, with rows cut in pieces as in other reductions. Single elements may go to `fixed_point_sums.py`.

Some ten thousand keys are sorted in two kernels: pieces on chip, then by ranks. A key's rank is its place in
its own piece plus the number of keys in other pieces that come before it, found by binary search. Keys in
earlier pieces count if they are not greater, keys in later ones if they are less, so the sort is stable.
(Batcher's network and a merge by ranks, as in Satish, Harris and Garland, Designing efficient sorting
algorithms for manycore GPUs, IPDPS 2009, with all pieces merged at once.) A radix sort takes three or four
kernels for each byte of the keys. The searches grow with the square of the number of keys, hence a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, multiply_all, provably_le, symbol
from coilwork_ir.loops import Reduce, Scatter, Sort
from coilwork_ir.machine import MachineModel
from coilwork_ir.machine.model import Sorts
from coilwork_ir.scalar import Scalar, cast, const, load, op, placeholder
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import Shape, TensorValue, make_coordinate_symbols, make_whole_value
from coilwork_lowering.ops.binary_search import choose_position_type, lower_bound
from coilwork_lowering.ops.scattering.elements import PIECE, Elements, Sums
from coilwork_lowering.ops.scattering.fixed_point_sums import can_sum_in_fixed_point, sum_in_fixed_point
from coilwork_lowering.scalar_math import add, eq, ge, index, le, logical_and, lt, select, sub

# ---- Tables of few rows ----


def has_few_rows(elements: Elements, machine: MachineModel) -> bool:
    """Tell if looking at every element for each row takes less time than sorting them. Of unknown sizes it
    may not.
    """
    count, rows, inner = (as_int(e) for e in (elements.count, elements.rows, multiply_all(elements.inner)))
    if count is None or rows is None or inner is None or not elements.has_one_run or elements.ordered:
        return False
    compared_us = rows * count * inner * elements.dtype.itemsize / machine.scatters.compared_bytes_per_us
    # a step of the loop over a row's sorted elements for each piece
    sorted_us = machine.scatters.sort_us + count / max(rows, 1) / PIECE * machine.scatters.step_us
    return compared_us < sorted_us


def sum_by_comparison(
    builder: Builder, device: str, elements: Elements, keys: TensorValue, offset: int
) -> Sums:
    """Append what sums each row's elements; their keys, less `offset`, are in `keys`."""
    shape, axes = (elements.rows, *elements.inner), (elements.count,)
    zero = const(0, elements.dtype)

    def is_in_row(row: Expr, position: Expr) -> Scalar:
        key = cast(builder.read(keys, (position,)), DType.I32)
        return eq(key, cast(index(row - offset), DType.I32))

    def value(point: tuple[Expr, ...], at: tuple[Expr, ...]) -> Scalar:
        inside = is_in_row(point[0], at[0])
        return select(inside, elements.value(at[0], index(at[0]), point[1:], inside), zero)

    (values,) = builder.reduce("sum", shape, axes, device, value, (elements.dtype,))
    assert values is not None

    def count_of(row: Expr) -> Scalar:
        (counts,) = builder.reduce(
            "sum",
            (elements.rows,),
            axes,
            device,
            lambda point, at: cast(is_in_row(point[0], at[0]), DType.I64),
            (DType.I64,),
        )
        assert counts is not None
        return builder.read(counts, (row,))

    return Sums(values=values, count_of=count_of)


# ---- Sort in pieces ----


_SORTED_TYPES: Final = (DType.I8, DType.I16, DType.I32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Sorted keys, and the position of each before the sort, in `i64`."""

    keys: TensorValue
    places: TensorValue


def can_sort_in_pieces(builder: Builder, device: str, count: Expr, dtype: DType) -> bool:
    """Tell if `count` keys of `dtype` are better sorted by `sort_in_pieces`."""
    number, options = as_int(count), builder.options
    if number is None or dtype not in _SORTED_TYPES or options.sorting == "calls":
        return False
    if options.sorts_in_memory and has_trait(device, PROCESSOR):
        return False
    figures = builder.machine_of(device).sorts
    length, pieces = _choose_pieces(number, figures)
    # one piece is a row that is sorted on chip as it is
    return pieces > 1 and pieces * pieces * length <= figures.most_searches


def sort_in_pieces(builder: Builder, device: str, keys: TensorValue) -> Ordered:
    """Append a stable sort of `keys`, of one dimension, which `can_sort_in_pieces`."""
    count = as_int(keys.shape[0])
    assert count is not None
    length, pieces = _choose_pieces(count, builder.machine_of(device).sorts)
    result = _sort_pieces(builder, device, keys, length, pieces)
    ranks = _count_smaller_keys(builder, device, result.keys, length, pieces)
    shape = (as_expr(pieces), as_expr(length))
    point = make_coordinate_symbols("i", shape)
    key = builder.read(result.keys, point)
    place = add(builder.read(result.places, point), index(point[0] * length))
    rank = builder.read(ranks, point)
    merged = Ordered(
        keys=_scatter_by_rank(builder, device, shape, key, rank, name="sorted"),
        places=_scatter_by_rank(builder, device, shape, place, rank, name="places"),
    )
    return Ordered(
        keys=_view_first(builder, merged.keys, count), places=_view_first(builder, merged.places, count)
    )


def _choose_pieces(count: int, figures: Sorts) -> tuple[int, int]:
    """Choose the length of pieces; return it and their number."""
    length = figures.piece if count >= figures.many_keys else figures.short_piece
    return length, -(-count // length)


def _sort_pieces(builder: Builder, device: str, keys: TensorValue, length: int, pieces: int) -> Ordered:
    """Each piece in order, and where in the piece its keys were. Behind the last one's end are greatest
    numbers.
    """
    shape = (as_expr(pieces), as_expr(length))
    ranges = make_node_ranges("i", shape)
    values, places = (
        builder.declare(shape, dtype, device, name=f"{builder.hint}_{what}")
        for dtype, what in ((keys.dtype, "piece"), (DType.I64, "place"))
    )
    flat = make_coordinate_symbols("i", shape)[0] * length + ranges[1]
    greatest = (1 << (8 * keys.dtype.itemsize - 1)) - 1
    inside = None if as_int(keys.shape[0]) == pieces * length else lt(index(flat), index(keys.shape[0]))
    body = builder.read(keys, (flat,), mask=inside, other=0 if inside is None else greatest)
    builder.add(
        Sort(outputs=(values, places), ranges=ranges, axis=ranges[1], body=body, origins=builder.origins)
    )
    return Ordered(keys=make_whole_value(values), places=make_whole_value(places))


def _count_smaller_keys(
    builder: Builder, device: str, values: TensorValue, length: int, pieces: int
) -> TensorValue:
    """Count, for each key, the keys that come before it."""
    flat = builder.view(values.buffer, (as_expr(pieces * length),), (as_expr(1),), as_expr(0))
    width = choose_position_type(as_expr(pieces * length))

    def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        key, (other,) = builder.read(values, point), axes
        first = cast(index(other * length), width)
        in_front, own = lt(index(other), index(point[0])), eq(index(other), index(point[0]))
        behind = lower_bound(
            builder,
            flat,
            lambda element: select(in_front, le(element, key), lt(element, key)),
            (first, add(first, const(length, width))),
            most=length,
        )
        return select(own, cast(index(point[1]), width), sub(behind, first))

    shape = (as_expr(pieces), as_expr(length))
    (ranks,) = builder.reduce("sum", shape, (as_expr(pieces),), device, body, (width,))
    assert ranks is not None
    return ranks


def _scatter_by_rank(
    builder: Builder, device: str, shape: Shape, value: Scalar, rank: Scalar, *, name: str
) -> TensorValue:
    """`value` of each point of `shape` where its `rank` says. No two are equal, and together they are all
    positions.
    """
    count, name = shape[0] * shape[1], f"{builder.hint}_{name}"
    output = builder.declare((count,), value.dtype, device, name=name)
    builder.add(
        Scatter(
            output=output,
            ranges=make_node_ranges("i", shape),
            index=(placeholder(0),),
            indirect=(rank,),
            value=value,
            mode="store",
            covers=True,
            origins=builder.origins,
        )
    )
    return make_whole_value(output)


def _view_first(builder: Builder, value: TensorValue, count: int) -> TensorValue:
    return builder.view(value.buffer, (as_expr(count),), (as_expr(1),), as_expr(0))


# ---- Sorted sums ----


_LOG_PIECE: Final = PIECE.bit_length() - 1
_INT32_MAX: Final = 2**31 - 1


def sum_rows(builder: Builder, device: str, elements: Elements) -> Sums:
    """Append what sums each row's elements."""
    if any(as_int(extent) == 0 for extent in (elements.count, elements.rows, *elements.inner)):
        shape = (elements.sums, *elements.inner)
        zeros = builder.pointwise(shape, elements.dtype, device, lambda point: const(0, elements.dtype))
        return Sums(values=zeros, count_of=lambda row: const(0, DType.I64))
    machine = builder.machine_of(device)
    compares, sorts = has_few_rows(elements, machine), builder.options.accumulation == "sorted"
    if not compares and not sorts and can_sum_in_fixed_point(elements, machine):
        return sum_in_fixed_point(builder, device, elements)
    width, offset = elements.key_type
    keys = _keys(builder, device, elements, width, offset)
    if compares:
        return sum_by_comparison(builder, device, elements, keys, offset)
    order = _sort_keys(builder, device, elements, keys, offset)
    starts = _starts(builder, device, elements, order)
    if not elements.has_one_run:
        starts = _starts_of_runs(builder, device, elements, order, starts)
    pieces = floordiv(elements.count, PIECE)
    few = as_int(pieces)
    parts = None
    if few is None or few >= machine.scatters.least_pieces:
        parts = _sum_pieces(builder, device, elements, order, pieces)
    values = _rows(builder, device, elements, order, starts, parts)

    def count_of(row: Expr) -> Scalar:
        first, behind = (cast(builder.read(starts, (row + k,)), DType.I64) for k in (0, 1))
        return sub(behind, first)

    return Sums(values=values, count_of=count_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The keys in order, less `offset`, and where each was; `places` is None if that is where it is."""

    keys: TensorValue
    offset: int
    places: TensorValue | None

    def place(self, position: Expr, indirect: tuple[Scalar, ...] = (), mask: Scalar | None = None) -> Scalar:
        """Return where the key at `position` was, in `i64`; `indirect` are what its placeholders
        stand for.
        """
        if self.places is not None:
            return load(self.places.buffer.name, (position,), DType.I64, indirect=indirect, mask=mask)
        return cast(indirect[0], DType.I64) if indirect else index(position)


def _keys(builder: Builder, device: str, elements: Elements, width: DType, offset: int) -> TensorValue:
    # runs side by side, as they may be in the index: what is written one behind the other is read at once
    shape = (elements.count,) if elements.has_one_run else (elements.run_length, elements.runs)
    strides = (as_expr(1),) if elements.has_one_run else (as_expr(1), elements.run_length)

    def position(point: tuple[Expr, ...]) -> Expr:
        return point[0] if elements.has_one_run else point[1] * elements.run_length + point[0]

    keys = builder.pointwise(
        shape,
        width,
        device,
        lambda point: cast(sub(elements.key(position(point)), const(offset, DType.I64)), width),
        checks=lambda point: elements.checks(position(point)),
        strides=strides,
        name=f"{builder.hint}_keys",
    )
    if not elements.has_one_run:
        keys = builder.view(keys.buffer, (elements.count,), (as_expr(1),), as_expr(0))
    return keys


def _sort_keys(builder: Builder, device: str, elements: Elements, keys: TensorValue, offset: int) -> _Order:
    if elements.ordered:
        return _Order(keys=keys, offset=offset, places=None)
    if can_sort_in_pieces(builder, device, elements.count, keys.dtype):
        result = sort_in_pieces(builder, device, keys)
        return _Order(keys=result.keys, offset=offset, places=result.places)
    ranges = make_node_ranges("i", keys.shape)
    ordered = builder.declare(keys.shape, keys.dtype, device, name=f"{builder.hint}_sorted")
    places = builder.declare(keys.shape, DType.I64, device, name=f"{builder.hint}_places")
    body = builder.read(keys, ranges)
    builder.add(
        Sort(outputs=(ordered, places), ranges=ranges, axis=ranges[0], body=body, origins=builder.origins)
    )
    return _Order(keys=make_whole_value(ordered), offset=offset, places=make_whole_value(places))


def _starts(builder: Builder, device: str, elements: Elements, order: _Order) -> TensorValue:
    """Return where each key's elements begin in sorted order; one more entry says where the last
    one's end.
    """
    # the entry behind all keys may have no place in their type
    wide = DType.I32 if provably_le(elements.rows, _INT32_MAX) else DType.I64

    def body(point: tuple[Expr, ...]) -> Scalar:
        row = cast(index(point[0] - order.offset), wide)
        return lower_bound(builder, order.keys, lambda key: lt(cast(key, wide), row))

    dtype = choose_position_type(elements.count)
    return builder.pointwise((elements.rows + 1,), dtype, device, body, name=f"{builder.hint}_starts")


def _starts_of_runs(
    builder: Builder, device: str, elements: Elements, order: _Order, starts: TensorValue
) -> TensorValue:
    """Return where each row's elements begin, given where each key's do: among those, places grow from
    run to run.
    """
    width, places = starts.dtype, order.places
    assert places is not None

    def body(point: tuple[Expr, ...]) -> Scalar:
        key, run = floordiv(point[0], elements.runs), mod(point[0], elements.runs)
        first = cast(index(run * elements.run_length), width)
        # behind all rows nothing is looked at
        inside = lt(index(key), index(elements.rows))
        between = builder.read(starts, (key,)), builder.read(starts, (key + 1,), mask=inside)
        return lower_bound(builder, places, lambda place: lt(cast(place, width), first), between)

    return builder.pointwise((elements.sums + 1,), width, device, body, name=f"{builder.hint}_run_starts")


def _sum_pieces(
    builder: Builder,
    device: str,
    elements: Elements,
    order: _Order,
    pieces: Expr,
) -> TensorValue:
    """Return the sum of each whole piece whose elements are all of one row; 0 for others, which nothing is
    read for.

    Those end before their first element, as rows of the sums do that have none.
    """

    def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        ends = (point[0] * PIECE, point[0] * PIECE + (PIECE - 1))
        one_row = eq(*(builder.read(order.keys, (end,)) for end in ends))
        if not elements.has_one_run:
            width = choose_position_type(elements.count)
            length = cast(index(elements.run_length), width)
            places = [cast(order.place(end), width) for end in ends]
            one_row = logical_and(one_row, eq(*(op("truncdiv", place, length) for place in places)))
        length = select(one_row, const(PIECE, DType.I64), const(0, DType.I64))
        inside = lt(index(axes[0]), length)
        place = order.place(point[0] * PIECE + axes[0], mask=inside)
        value = elements.value(placeholder(0), place, point[1:], inside)
        return select(inside, value, const(0, elements.dtype))

    (result,) = builder.reduce(
        "sum", (pieces, *elements.inner), (as_expr(PIECE),), device, body, (elements.dtype,)
    )
    assert result is not None
    return result


def _rows(
    builder: Builder,
    device: str,
    elements: Elements,
    order: _Order,
    starts: TensorValue,
    parts: TensorValue | None,
) -> TensorValue:
    shape = (elements.sums, *elements.inner)
    # coordinates of dimensions of one element are numbers, as in other nodes
    point = make_coordinate_symbols("i", shape)
    most = elements.count if parts is None else _count_most_steps(elements.count)
    axis = symbol("r0", extent=most)
    start, end = builder.read(starts, (point[0],)), builder.read(starts, (point[0] + 1,))
    step = cast(index(axis), starts.dtype)
    zero = const(0, elements.dtype)

    def element(position: Scalar, inside: Scalar) -> Scalar:
        place = order.place(placeholder(0), (position,), inside)
        return elements.value(placeholder(0), place, point[1:], inside)

    if parts is None:
        inside = lt(step, sub(end, start))
        body = select(inside, element(add(start, step), inside), zero)
    else:
        walk = _walk(start, end)
        inside = lt(step, walk.count)
        in_piece = logical_and(ge(step, walk.head), lt(step, add(walk.head, walk.pieces)))
        behind = ge(step, walk.head)
        single = logical_and(inside, op("bitwise_not", in_piece))
        position = add(select(behind, walk.behind, start), step)
        piece = add(walk.first_piece, step)
        summed = load(
            parts.buffer.name,
            (placeholder(0), *point[1:]),
            elements.dtype,
            indirect=(piece,),
            mask=logical_and(inside, in_piece),
        )
        body = select(inside, select(in_piece, summed, element(position, single)), zero)
    output = builder.declare(shape, elements.dtype, device, name=f"{builder.hint}_sums")
    builder.add(
        Reduce(
            outputs=(output,),
            kind="sum",
            ranges=make_node_ranges("i", shape),
            axes=(axis,),
            body=simplify(body),
            origins=builder.origins,
        )
    )
    return make_whole_value(output)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """The steps of a row: `head` single elements, `pieces`, then single elements again, `count` steps in all.

    Step `s` reads sorted position `start + s` in the head, piece `first_piece + s` among the pieces, and
    sorted position `behind + s` behind them.
    """

    head: Scalar
    pieces: Scalar
    count: Scalar
    first_piece: Scalar
    behind: Scalar


def _walk(start: Scalar, end: Scalar) -> _Walk:
    zero, shift = const(0, start.dtype), const(_LOG_PIECE, start.dtype)
    first = op("rshift", add(start, const(PIECE - 1, start.dtype)), shift)
    last = op("rshift", end, shift)
    pieces = op("maximum", sub(last, first), zero)
    any_piece = lt(first, last)
    head = select(any_piece, sub(op("lshift", first, shift), start), sub(end, start))
    tail = select(any_piece, sub(end, op("lshift", last, shift)), zero)
    count = add(add(head, pieces), tail)
    return _Walk(
        head=head,
        pieces=pieces,
        count=count,
        first_piece=sub(first, head),
        # the last `tail` steps read the positions up to `end`
        behind=sub(end, count),
    )


def _count_most_steps(count: Expr) -> Expr:
    """Return an upper bound of the steps of a row of `count` elements.

    These are whole pieces, and at both ends a piece that lacks at least one element.
    """
    return floordiv(count, PIECE) + 2 * (PIECE - 1)
