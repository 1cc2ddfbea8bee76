"""A sort of some ten thousand keys on an accelerator: pieces of them are sorted on chip, and ranks say where
each key goes.

A key's rank is its place in its own piece and, for each other piece, how many of that come before it, by
binary search: of pieces in front those that are not greater, of pieces behind those that are less. So the
sort is stable. (Batcher's network and merge by ranks, as in Satish, Harris and Garland, Designing efficient
sorting algorithms for manycore GPUs, IPDPS 2009, with all pieces merged at once.)

That is two kernels, where a radix sort of one byte per pass takes three or four for each pass, each of which
waits for the last. What is searched grows with the square of the number of keys, hence there is a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.loops import Scatter, Sort
from coilwork_ir.machine.model import Sorts
from coilwork_ir.scalar import Scalar, cast, const, placeholder
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.values import Shape, TensorValue, coordinate_symbols, whole
from coilwork_lowering.ops.binary_search import lower_bound, search_type
from coilwork_lowering.scalar_math import add, eq, index, le, lt, select, sub

_SORTED_TYPES: Final = (DType.I8, DType.I16, DType.I32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """Keys in order, and where each was, in `i64`."""

    keys: TensorValue
    places: TensorValue


def fits_pieces(builder: Builder, device: str, count: Expr, dtype: DType) -> bool:
    """Tell if `count` keys of `dtype` are better sorted by `sort_in_pieces`."""
    number, options = as_int(count), builder.options
    if number is None or dtype not in _SORTED_TYPES or options.sorting == "calls":
        return False
    if options.sorts_in_memory and has_trait(device, PROCESSOR):
        return False
    figures = builder.machine_of(device).sorts
    length, pieces = _pieces(number, figures)
    # one piece is a row that is sorted on chip as it is
    return pieces > 1 and pieces * pieces * length <= figures.most_searches


def sort_in_pieces(builder: Builder, device: str, keys: TensorValue) -> Ordered:
    """Append a stable sort of `keys`, of one dimension, which `fits_pieces`."""
    count = as_int(keys.shape[0])
    assert count is not None
    length, pieces = _pieces(count, builder.machine_of(device).sorts)
    found = _sorted_pieces(builder, device, keys, length, pieces)
    ranks = _ranks(builder, device, found.keys, length, pieces)
    shape = (as_expr(pieces), as_expr(length))
    point = coordinate_symbols("i", shape)
    key = builder.read(found.keys, point)
    place = add(builder.read(found.places, point), index(point[0] * length))
    rank = builder.read(ranks, point)
    merged = Ordered(
        keys=_scatter_by_rank(builder, device, shape, key, rank, name="sorted"),
        places=_scatter_by_rank(builder, device, shape, place, rank, name="places"),
    )
    return Ordered(keys=_first(builder, merged.keys, count), places=_first(builder, merged.places, count))


def _pieces(count: int, figures: Sorts) -> tuple[int, int]:
    """How long pieces are, and how many there are."""
    length = figures.piece if count >= figures.many_keys else figures.short_piece
    return length, -(-count // length)


def _sorted_pieces(builder: Builder, device: str, keys: TensorValue, length: int, pieces: int) -> Ordered:
    """Each piece in order, and where in the piece its keys were. Behind the last one's end are greatest
    numbers.
    """
    shape = (as_expr(pieces), as_expr(length))
    ranges = node_ranges("i", shape)
    values, places = (
        builder.declare(shape, dtype, device, name=f"{builder.hint}_{what}")
        for dtype, what in ((keys.dtype, "piece"), (DType.I64, "place"))
    )
    flat = coordinate_symbols("i", shape)[0] * length + ranges[1]
    greatest = (1 << (8 * keys.dtype.itemsize - 1)) - 1
    inside = None if as_int(keys.shape[0]) == pieces * length else lt(index(flat), index(keys.shape[0]))
    body = builder.read(keys, (flat,), mask=inside, other=0 if inside is None else greatest)
    builder.add(
        Sort(outputs=(values, places), ranges=ranges, axis=ranges[1], body=body, origins=builder.origins)
    )
    return Ordered(keys=whole(values), places=whole(places))


def _ranks(builder: Builder, device: str, values: TensorValue, length: int, pieces: int) -> TensorValue:
    """How many keys come before each."""
    flat = builder.view(values.buffer, (as_expr(pieces * length),), (as_expr(1),), as_expr(0))
    width = search_type(as_expr(pieces * length))

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
            ranges=node_ranges("i", shape),
            index=(placeholder(0),),
            indirect=(rank,),
            value=value,
            mode="store",
            covers=True,
            origins=builder.origins,
        )
    )
    return whole(output)


def _first(builder: Builder, value: TensorValue, count: int) -> TensorValue:
    return builder.view(value.buffer, (as_expr(count),), (as_expr(1),), as_expr(0))
