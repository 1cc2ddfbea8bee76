"""Binary searches: `searchsorted`, `bucketize`, and searches that other rules use.

A search is one load per step, with as many steps as the largest number of boundaries takes. `lower_bound`
searches for other rules and returns scalars of the loop IR.

For many values the boundaries are first laid out as a search tree, level by level (Eytzinger's order). The
boundaries that a plain binary search reads in step k are `count / 2^k` elements apart. On a GPU, elements
that are a power of two apart lie in one bank of the cache and wait for each other, up to eight times. In the
tree, the boundaries of a level are neighbours: node k has the children 2k and 2k + 1, and its number among
the 2^steps leaves is the result. Every thread holds the first levels in registers. Source: Khuong and Morin,
Array Layouts for Comparison-Based Searching, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, find_bounds, multiply_all, provably_eq, provably_le
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Literal_, Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    ge,
    gt,
    index,
    invert,
    logical_and,
    lt,
    minimum,
    select,
    sub,
    to_dtype,
)

# ---- Search trees ----


# Levels of which every thread holds all boundaries: beyond, a read is cheaper than the selections.
_REGISTER_LEVELS: Final = 3

Before = Callable[[Scalar], Scalar]


def build_search_tree(builder: Builder, ordered: TensorValue, count: int) -> TensorValue:
    """Return the `count` boundaries in a new tensor of 2^steps elements, node k at k; missing ones are the
    largest number there is.

    Element 0 is unused.
    """
    steps = count.bit_length()

    def body(point: tuple[Expr, ...]) -> Scalar:
        node = cast(index(point[0]), DType.I32)
        place: Scalar = _int(0)
        for level in range(steps):
            # the nodes of a level are every `apart`-th boundary
            apart = 1 << (steps - level)
            own = sub(op("mul", sub(node, _int(1 << level)), _int(apart)), _int(1 - apart // 2))
            place = select(ge(node, _int(1 << level)), own, place)
        exists = lt(place, _int(count))
        other = _get_largest(ordered.dtype)
        return builder.read(ordered, (placeholder(0),), indirect=(place,), mask=exists, other=other)

    return builder.pointwise((as_expr(1 << steps),), ordered.dtype, ordered.device, body)


def descend_tree(builder: Builder, tree: TensorValue, count: int, before: Before) -> Scalar:
    """Count the boundaries, of `count` laid out as `tree`, that satisfy `before`; those come first.

    All of them do for NaN, which compares with nothing.
    """
    steps = count.bit_length()
    held = min(_REGISTER_LEVELS, steps)
    node: Scalar = _int(1)
    ways: list[Scalar] = []
    for level in range(steps):
        if level < held:
            first = 1 << level
            boundaries = [builder.read(tree, (as_expr(first + k),)) for k in range(first)]
            boundary = _choose_boundary(boundaries, ways)
        else:
            boundary = builder.read(tree, (placeholder(0),), indirect=(node,))
        way = before(boundary)
        ways.append(way)
        node = add(add(node, node), cast(way, DType.I32))
    result = sub(node, _int(1 << steps))
    return result if count == (1 << steps) - 1 else minimum(result, _int(count))


def _choose_boundary(boundaries: list[Scalar], ways: list[Scalar]) -> Scalar:
    """Return the boundary that `ways` lead to, of `boundaries`, one per combination of `ways`. The last way
    chooses first.
    """
    for way in reversed(ways):
        boundaries = [
            select(way, right, left) for left, right in zip(boundaries[::2], boundaries[1::2], strict=True)
        ]
    return boundaries[0]


def _int(value: int) -> Scalar:
    return const(value, DType.I32)


def _get_largest(dtype: DType) -> Literal_:
    if dtype.is_float:
        return math.inf
    return (1 << (8 * dtype.itemsize - (1 if dtype.is_signed_integer else 0))) - 1


# ---- searchsorted and bucketize ----


# Steps of a search through boundaries of unknown number.
_MOST_STEPS: Final = 32
_INT32_MAX: Final = 2**31 - 1
_SORTER_MESSAGE: Final = "torch.searchsorted(): sorter index out of range"


def _search_row(
    builder: Builder,
    ordered: TensorValue,
    row: tuple[Expr, ...],
    value: Scalar,
    *,
    right: bool,
    order: TensorValue | None,
) -> Scalar:
    """Return the first place in the last dimension of `ordered`, at `row`, whose element is at least `value`,
    or more if `right`.

    The steps are eager's, so that NaN among the boundaries, or boundaries out of order, give the same places.
    """
    count = ordered.shape[-1]
    longest = find_bounds(count).hi
    steps = _MOST_STEPS if longest is None else longest.bit_length()
    one = const(1, DType.I32)
    start: Scalar = const(0, DType.I32)
    end = cast(index(count), DType.I32)
    for _ in range(steps):
        middle = add(start, op("rshift", sub(end, start), one))
        searching = lt(start, end)
        at, place = (*row, placeholder(0)), middle
        if order is not None:
            place = builder.read(order, at, indirect=(middle,), mask=searching)
        element = builder.read(ordered, at, indirect=(place,), mask=searching)
        element = to_dtype(element, value.dtype)
        before = _precedes(element, value, right=right)
        start, end = (
            select(op("bitwise_and", searching, before), add(middle, one), start),
            select(op("bitwise_and", searching, invert(before)), middle, end),
        )
    return start


def _precedes(boundary: Scalar, value: Scalar, *, right: bool) -> Scalar:
    """Tell if the place of `value` is behind `boundary`. Written so that NaN is behind all."""
    return invert(gt(boundary, value) if right else ge(boundary, value))


def _check_order(builder: Builder, order: TensorValue, count: Expr) -> TensorValue:
    """`order`, all of whose elements are places among `count` boundaries; eager looks at those that no search
    reads, too.
    """

    def checks(point: tuple[Expr, ...]) -> tuple[Check, ...]:
        place = cast(builder.read(order, point), DType.I64)
        within = logical_and(ge(place, const(0, DType.I64)), lt(place, index(count)))
        return (Check(condition=within, message=_SORTER_MESSAGE, error="RuntimeError"),)

    return builder.pointwise(
        order.shape, order.dtype, order.device, lambda point: builder.read(order, point), checks=checks
    )


def _lower_search(
    builder: Builder, call: Call, ordered: TensorValue, values: TensorValue, order: TensorValue | None
) -> Value:
    right = bool(call["right"]) or call.arguments.get("side") == "right"
    longest = find_bounds(ordered.shape[-1]).hi if ordered.shape else None
    if not ordered.shape or not provably_le(ordered.shape[-1], _INT32_MAX) or longest == 0:
        raise NotLowered("a search through boundaries of no known number")
    if ordered.dtype is not values.dtype or ordered.dtype.is_bool or ordered.device != values.device:
        raise NotLowered("boundaries of another type than the values")
    if any(as_int(extent) == 0 for extent in values.shape):
        raise NotLowered("a search for nothing")
    compute = values.dtype.compute
    count = as_int(ordered.shape[0]) if len(ordered.shape) == 1 and order is None else None
    figures, searched = builder.machine_of(ordered.device).sorts, multiply_all(values.shape)
    if (
        count is not None
        and count <= figures.most_in_tree
        and provably_le(figures.values_for_a_tree, searched)
    ):
        tree = build_search_tree(builder, ordered, count)

        def search_tree(point: tuple[Expr, ...]) -> Scalar:
            value = to_dtype(builder.read(values, point), compute)
            result = descend_tree(
                builder, tree, count, lambda b: _precedes(to_dtype(b, compute), value, right=right)
            )
            return to_dtype(result, call.dtype)

        return builder.pointwise(
            call.shape(builder), call.dtype, call.device, search_tree, strides=call.strides(builder)
        )

    places = None if order is None else _check_order(builder, order, ordered.shape[-1])

    def body(point: tuple[Expr, ...]) -> Scalar:
        value = to_dtype(builder.read(values, point), compute)
        row = point[:-1] if len(ordered.shape) > 1 else ()
        result = _search_row(builder, ordered, row, value, right=right, order=places)
        return to_dtype(result, call.dtype)

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
    )


def _are_equal(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
    return len(left) == len(right) and all(map(provably_eq, left, right))


def _bucketize(builder: Builder, call: Call) -> Value:
    if len(call.tensor("boundaries").shape) != 1:
        raise NotLowered("boundaries of other than one dimension, which ATen refuses")
    return _lower_search(builder, call, call.tensor("boundaries"), call.tensor("self"), None)


def _lower_searchsorted(builder: Builder, call: Call) -> Value:
    ordered, values = call.tensor("sorted_sequence"), call.tensor("self")
    order = None if call["sorter"] is None else call.tensor("sorter")
    if len(ordered.shape) > 1 and len(ordered.shape) != len(values.shape):
        raise NotLowered("rows of boundaries for values without rows")
    if len(ordered.shape) > 1 and not _are_equal(ordered.shape[:-1], values.shape[:-1]):
        raise NotLowered("boundaries of other rows than the values', which ATen refuses")
    if order is not None and (order.dtype is not DType.I64 or not _are_equal(order.shape, ordered.shape)):
        raise NotLowered("a sorter that is not of the boundaries, which ATen refuses")
    if call.arguments.get("side") not in (None, "left", "right"):
        raise NotLowered("an unknown side, which ATen refuses")
    if call["right"] and call.arguments.get("side") == "left":
        raise NotLowered("sides that contradict each other, which ATen refuses")
    return _lower_search(builder, call, ordered, values, order)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("bucketize.Tensor"), _bucketize),
    Rule(overloads("searchsorted.Tensor"), _lower_searchsorted),
)


# ---- lower_bound ----


def lower_bound(
    builder: Builder,
    ordered: TensorValue,
    before: Callable[[Scalar], Scalar],
    between: tuple[Scalar, Scalar] | None = None,
    most: int | None = None,
) -> Scalar:
    """Count the elements of `ordered` that are `before`: a prefix, whose end is searched for.

    If `between` is given, only elements between these positions are looked at: all in front are `before`.

    Searches all of `ordered` by quarters, whose three loads are on their way together: half as many waits as
    by halves. What lies `between` two positions is near and short, hence in a cache: by halves, with fewer
    loads. Steps are as many as the largest size takes, or `most` elements. The result, and what is `between`,
    are `i32` if that holds what the search adds up, else `i64`: see `choose_position_type`.
    """
    (count,) = ordered.shape
    width, bits = choose_position_type(count), _bits(count if most is None else as_expr(most))
    result, end = (const(0, width), cast(index(count), width)) if between is None else between
    at_once = 1 if between is not None else 2
    for low in reversed(range(0, bits, at_once)):
        first = result
        for part in range(1, 1 << min(at_once, bits - low)):
            further = add(first, const(part << low, width))
            inside = op("le", further, end)
            last = sub(further, const(1, width))
            element = builder.read(ordered, (placeholder(0),), indirect=(last,), mask=inside)
            result = select(logical_and(inside, before(element)), further, result)
    return result


def choose_position_type(count: Expr) -> DType:
    """Return what positions among `count` are counted in."""
    return DType.I32 if _bits(count) < 30 else DType.I64


def _bits(count: Expr) -> int:
    longest = find_bounds(count).hi
    return 48 if longest is None else max(longest.bit_length(), 1)
