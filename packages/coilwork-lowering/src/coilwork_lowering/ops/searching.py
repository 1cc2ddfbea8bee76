"""Places of values in ordered boundaries, by binary search: one load per step, as many steps as the longest
search has.

For many values the boundaries are first laid out as a tree; see `search_trees`.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, bounds, product, provably_eq, provably_le
from coilwork_ir.loops import Check
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.search_trees import descend, tree_of
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, both, ge, gt, index, invert, lt, select, sub, to_dtype

# Steps of a search through boundaries of unknown number.
_MOST_STEPS: Final = 32
_INT32_MAX: Final = 2**31 - 1
_NOT_A_PLACE: Final = "torch.searchsorted(): sorter index out of range"


def _search(
    builder: Builder,
    ordered: TensorValue,
    row: tuple[Expr, ...],
    value: Scalar,
    *,
    right: bool,
    order: TensorValue | None,
) -> Scalar:
    """The first place in the last dimension of `ordered`, at `row`, whose element is at least `value`, or
    more if `right`.

    The steps are eager's, so that NaN among the boundaries, or boundaries out of order, give the same places.
    """
    count = ordered.shape[-1]
    longest = bounds(count).hi
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
        before = _before(element, value, right=right)
        start, end = (
            select(op("bitwise_and", searching, before), add(middle, one), start),
            select(op("bitwise_and", searching, invert(before)), middle, end),
        )
    return start


def _before(boundary: Scalar, value: Scalar, *, right: bool) -> Scalar:
    """The place of `value` is behind `boundary`. Written so that NaN is behind all."""
    return invert(gt(boundary, value) if right else ge(boundary, value))


def _places(builder: Builder, order: TensorValue, count: Expr) -> TensorValue:
    """`order`, all of whose elements are places among `count` boundaries; eager looks at those that no search
    reads, too.
    """

    def checks(point: tuple[Expr, ...]) -> tuple[Check, ...]:
        place = cast(builder.read(order, point), DType.I64)
        within = both(ge(place, const(0, DType.I64)), lt(place, index(count)))
        return (Check(condition=within, message=_NOT_A_PLACE, error="RuntimeError"),)

    return builder.pointwise(
        order.shape, order.dtype, order.device, lambda point: builder.read(order, point), checks=checks
    )


def _searched(
    builder: Builder, call: Call, ordered: TensorValue, values: TensorValue, order: TensorValue | None
) -> Value:
    right = bool(call["right"]) or call.arguments.get("side") == "right"
    longest = bounds(ordered.shape[-1]).hi if ordered.shape else None
    if not ordered.shape or not provably_le(ordered.shape[-1], _INT32_MAX) or longest == 0:
        raise NotLowered("a search through boundaries of no known number")
    if ordered.dtype is not values.dtype or ordered.dtype.is_bool or ordered.device != values.device:
        raise NotLowered("boundaries of another type than the values")
    if any(as_int(extent) == 0 for extent in values.shape):
        raise NotLowered("a search for nothing")
    compute = values.dtype.compute
    count = as_int(ordered.shape[0]) if len(ordered.shape) == 1 and order is None else None
    figures, searched = builder.machine_of(ordered.device).sorts, product(values.shape)
    if (
        count is not None
        and count <= figures.most_in_tree
        and provably_le(figures.values_for_a_tree, searched)
    ):
        tree = tree_of(builder, ordered, count)

        def search_tree(point: tuple[Expr, ...]) -> Scalar:
            value = to_dtype(builder.read(values, point), compute)
            found = descend(builder, tree, count, lambda b: _before(to_dtype(b, compute), value, right=right))
            return to_dtype(found, call.dtype)

        return builder.pointwise(
            call.shape(builder), call.dtype, call.device, search_tree, strides=call.strides(builder)
        )

    places = None if order is None else _places(builder, order, ordered.shape[-1])

    def body(point: tuple[Expr, ...]) -> Scalar:
        value = to_dtype(builder.read(values, point), compute)
        row = point[:-1] if len(ordered.shape) > 1 else ()
        found = _search(builder, ordered, row, value, right=right, order=places)
        return to_dtype(found, call.dtype)

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
    )


def _are_equal(left: tuple[Expr, ...], right: tuple[Expr, ...]) -> bool:
    return len(left) == len(right) and all(map(provably_eq, left, right))


def _bucketize(builder: Builder, call: Call) -> Value:
    if len(call.tensor("boundaries").shape) != 1:
        raise NotLowered("boundaries of other than one dimension, which ATen refuses")
    return _searched(builder, call, call.tensor("boundaries"), call.tensor("self"), None)


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
    return _searched(builder, call, ordered, values, order)


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("bucketize.Tensor"), _bucketize),
    Rule(overloads("searchsorted.Tensor"), _lower_searchsorted),
)
