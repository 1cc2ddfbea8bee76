"""Norms, `logsumexp` and distances, with their gradients: a reduction with arithmetic around it.

`cdist` takes distances between all rows of two matrices, `pdist` between the rows of one. Each is one
reduction over columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.ops import ReduceKind
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value, get_dtype
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.powers import float_power
from coilwork_lowering.ops.reductions import (
    finish_reduction,
    list_reduced_dims,
    map_elements,
    reduce_over,
    require_elements,
    take_only_result,
)
from coilwork_lowering.rules import Call, Lower, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    div,
    eq,
    gt,
    index,
    like,
    lt,
    mul,
    select,
    sub,
    to_dtype,
    truth,
)

# ---- Norms ----


def _vector_norm(builder: Builder, call: Call) -> Value:
    """`(sum |x| ** ord) ** (1 / ord)`, with the limits for 0 and infinities; of single elements what is then
    exact, `|x|`.
    """
    value = call.tensor("self")
    order = call["ord"]
    if not value.dtype.is_float or not isinstance(order, int | float):
        raise NotLowered("a norm of integers, or of an order known at run time only")
    positions = list_reduced_dims(call, len(value.shape))
    asked = call["dtype"]
    wide = (value.dtype if asked is None else get_dtype(asked)).compute
    power = float(order)
    in_kernel = _round_order(power) if wide is DType.F32 else power
    kind: ReduceKind = "sum"
    if math.isinf(power):
        require_elements(builder, call, value, positions, "RuntimeError")
        kind = "max" if power > 0 else "min"
    if power != 0 and all(as_int(value.shape[k]) == 1 for k in positions):
        power = in_kernel = 1.0
    before, after = _powers(in_kernel) if _is_beyond(power, in_kernel) else _norm_functions(power)
    total = take_only_result(
        reduce_over(builder, call, value, positions, kind, lambda x: before(cast(x, wide)), [wide])
    )
    norm = map_elements(builder, total, lambda x: cast(after(x), call.dtype), call.dtype)
    return finish_reduction(builder, call, norm, call.fake, positions)


def _round_order(order: float) -> float:
    """`order` as eager's kernel takes it, which keeps it in the type that it computes in."""
    return torch.tensor(order, dtype=torch.float64).float().item()


def _is_beyond(order: float, in_kernel: float) -> bool:
    """Tell if the kernel's type does not hold `order`. The kernel was chosen by the order itself, and raises
    to a power still.
    """
    return math.isinf(in_kernel) and not math.isinf(order)


def _powers(order: float) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Return the functions before and after a reduction for an infinite order: elements become infinity, 0 or
    1, then their power of 0.
    """
    return (lambda x: op("pow", op("abs", x), like(order, x))), (lambda x: op("pow", x, like(1 / order, x)))


def _norm_functions(order: float) -> tuple[Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """Return what is combined, and what becomes of the combination."""

    def size(x: Scalar) -> Scalar:
        return op("abs", x)

    def same(x: Scalar) -> Scalar:
        return x

    if order == 2:
        return (lambda x: mul(x, x)), (lambda x: op("sqrt", x))
    if order == 0:
        return (lambda x: cast(truth(x), x.dtype)), same
    if order == 1 or math.isinf(order):
        return size, same
    return (lambda x: float_power(size(x), order)), (lambda x: op("pow", x, like(1 / order, x)))


def _logsumexp(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    positions = list_reduced_dims(call, len(value.shape))
    if not value.dtype.is_float:
        raise NotLowered("logsumexp of integers")
    if any(as_int(value.shape[k]) == 0 for k in positions):
        raise NotLowered("a sum of no elements")
    wide = value.dtype.compute
    results = reduce_over(
        builder, call, value, positions, "online_softmax", lambda x: cast(x, wide), [wide, wide]
    )
    top, total = results
    assert top is not None and total is not None
    wanted = call.dtype

    def body(point: tuple[Expr, ...]) -> Scalar:
        high = builder.read(top, point)
        infinite = op("isinf", high)
        # exp(inf - inf) is no number; the sum is then known from the extreme alone
        return cast(select(infinite, high, op("add", high, op("log", builder.read(total, point)))), wanted)

    result = builder.pointwise(top.shape, wanted, value.device, body, strides=top.buffer.strides)
    return finish_reduction(builder, call, result, call.fake, positions)


# ---- Distances ----


# Rows from which on eager computes Euclidean distances by a matrix product, unless told not to.
_BY_PRODUCT_FROM: Final = 26
_NEVER_BY_PRODUCT: Final = 2


def _combine_norm(
    builder: Builder, call: Call, order: float, width: Expr, difference: Callable[..., Scalar]
) -> Value:
    """`(sum |difference| ** order) ** (1 / order)` along `width`, with the limits for 0 and infinity."""

    def raise_difference(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        size = op("abs", difference(point, axes[0]))
        if order == 0:
            return cast(truth(size), size.dtype)
        if order == 2:
            return mul(size, size)
        return size if order == 1 or math.isinf(order) else float_power(size, order)

    wide = call.dtype.compute
    kind: ReduceKind = "max" if math.isinf(order) else "sum"
    (total,) = builder.reduce(kind, call.shape(builder), (width,), call.device, raise_difference, (wide,))
    assert total is not None

    def distance(point: tuple[Expr, ...]) -> Scalar:
        value = builder.read(total, point)
        if order == 2:
            value = op("sqrt", value)
        elif order not in (0, 1) and not math.isinf(order):
            value = float_power(value, 1 / order)
        return to_dtype(value, call.dtype)

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, distance, strides=call.strides(builder)
    )


def _slope(difference: Scalar, distance: Scalar, order: float) -> Scalar:
    """Return the derivative of a distance by one of the differences; 0 where rows are equal, as eager has
    it.
    """
    zero, one = like(0, difference), like(1, difference)
    size, sign = op("abs", difference), op("sign", difference)
    if order == 0:
        return zero
    if order == 1:
        return sign
    if math.isinf(order):
        return mul(sign, select(eq(size, distance), one, zero))
    if order == 2:
        result = div(difference, distance)
    else:
        above = div(float_power(size, order - 1), float_power(distance, order - 1))
        result = mul(sign, above)
    result = select(eq(distance, zero), zero, result)
    return select(eq(size, zero), zero, result) if order < 1 else result


def _order(call: Call) -> float:
    order = call["p"]
    if not isinstance(order, int | float) or order < 0 or math.isnan(order):
        raise NotLowered("distances of an order known at run time only")
    return float(order)


def _floats(*values: TensorValue) -> None:
    if any(not value.dtype.is_float for value in values):
        raise NotLowered("distances of integers")


def _zero_of_nothing(lower: Lower) -> Lower:
    """Return a rule that gives 0 where there are no rows, columns or results, and else calls `lower`."""

    def lower_unless_empty(builder: Builder, call: Call) -> Value:
        operands = [value for value in call.arguments.values() if isinstance(value, TensorValue)]
        if all(as_int(size) != 0 for value in operands for size in (*value.shape, *call.shape(builder))):
            return lower(builder, call)
        return builder.pointwise(
            call.shape(builder),
            call.dtype,
            call.device,
            lambda point: const(0, call.dtype),
            strides=call.strides(builder),
        )

    return lower_unless_empty


def _cdist(builder: Builder, call: Call) -> Value:
    left, right = call.tensor("x1"), call.tensor("x2")
    order = _order(call)
    _floats(left, right)
    if len(left.shape) != len(right.shape) or left.shape[:-2] != right.shape[:-2]:
        raise NotLowered("distances of matrices to be broadcast")
    if order == 2 and _uses_product(call, left, right):
        raise NotLowered("distances by a matrix product")

    def difference(point: tuple[Expr, ...], k: Expr) -> Scalar:
        *batch, i, j = point
        wide = call.dtype.compute
        result = sub(
            cast(builder.read(left, (*batch, i, k)), wide), cast(builder.read(right, (*batch, j, k)), wide)
        )
        # eager's largest difference is the largest of the numbers among them
        return select(op("isnan", result), like(0, result), result) if math.isinf(order) else result

    return _combine_norm(builder, call, order, left.shape[-1], difference)


def _uses_product(call: Call, left: TensorValue, right: TensorValue) -> bool:
    """Tell if eager does so, which for many rows is much less work."""
    mode: Value = call["compute_mode"]
    if mode in (1, _NEVER_BY_PRODUCT):
        return bool(mode == 1)
    rows = [as_int(value.shape[-2]) for value in (left, right)]
    return any(n is None or n >= _BY_PRODUCT_FROM for n in rows)


def _cdist_backward(builder: Builder, call: Call) -> Value:
    given, left, right, distances = (call.tensor(name) for name in ("grad", "x1", "x2", "cdist"))
    order = _order(call)
    _floats(left, right)
    if len(left.shape) != len(right.shape) or left.shape[:-2] != right.shape[:-2]:
        raise NotLowered("distances of matrices to be broadcast")
    wide = call.dtype.compute

    def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        *batch, i, k = point
        (j,) = axes
        a, b = builder.read(left, (*batch, i, k)), builder.read(right, (*batch, j, k))
        distance = cast(builder.read(distances, (*batch, i, j)), wide)
        slope = _slope(sub(cast(a, wide), cast(b, wide)), distance, order)
        return mul(cast(builder.read(given, (*batch, i, j)), wide), slope)

    return _sum_differences(builder, call, right.shape[-2], body)


def _sum_differences(builder: Builder, call: Call, rows: Expr, body: Callable[..., Scalar]) -> Value:
    wide = call.dtype.compute
    (total,) = builder.reduce("sum", call.shape(builder), (rows,), call.device, body, (wide,))
    assert total is not None
    return builder.pointwise(
        call.shape(builder),
        call.dtype,
        call.device,
        lambda point: to_dtype(builder.read(total, point), call.dtype),
        strides=call.strides(builder),
    )


def _pdist(builder: Builder, call: Call) -> Value:
    """Lower distances between pairs of rows. Pair `k` is the k-th element above the diagonal, by rows."""
    value = call.tensor("self")
    _floats(value)
    order, (rows, width), wide = _order(call), value.shape, call.dtype.compute

    def difference(point: tuple[Expr, ...], k: Expr) -> Scalar:
        first, second = _pair(index(point[0]), rows)
        a, b = (
            cast(builder.read(value, (placeholder(0), k), indirect=(row,)), wide) for row in (first, second)
        )
        return sub(a, b)

    return _combine_norm(builder, call, order, width, difference)


def _pair(number: Scalar, rows: Expr) -> tuple[Scalar, Scalar]:
    """Return row and column of an element above the diagonal, by the root of a quadratic equation.

    The root is off by its rounding at most, which a step up or down mends.
    """
    one, n = like(1, number), index(rows)
    wide = sub(cast(n, DType.F64), const(0.5, DType.F64))
    inside = sub(mul(wide, wide), mul(const(2, DType.F64), cast(number, DType.F64)))
    row = cast(op("floor", sub(wide, op("sqrt", op("maximum", inside, const(0, DType.F64))))), number.dtype)

    def count_before(row: Scalar) -> Scalar:
        return op("truncdiv", mul(row, sub(sub(add(n, n), row), one)), like(2, number))

    row = select(gt(count_before(row), number), sub(row, one), row)
    row = select(lt(number, count_before(add(row, one))), row, add(row, one))
    return row, add(add(sub(number, count_before(row)), row), one)


def _pdist_backward(builder: Builder, call: Call) -> Value:
    given, value, distances = (call.tensor(name) for name in ("grad", "self", "pdist"))
    _floats(value, distances)
    order, rows, wide = _order(call), value.shape[0], call.dtype.compute

    def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
        (i, k), (j,) = point, axes
        other = op("ne", index(i), index(j))
        place = _place(index(i), index(j), rows)
        distance, gradient = (
            cast(builder.read(x, (placeholder(0),), indirect=(place,), mask=other), wide)
            for x in (distances, given)
        )
        a, b = (cast(builder.read(value, (row, k)), wide) for row in (i, j))
        return select(other, mul(gradient, _slope(sub(a, b), distance, order)), like(0, gradient))

    return _sum_differences(builder, call, rows, body)


def _place(i: Scalar, j: Scalar, rows: Expr) -> Scalar:
    """Return the number of the pair of two different rows; 0 for the same."""
    low, high, one = op("minimum", i, j), op("maximum", i, j), like(1, i)
    before = op("truncdiv", mul(low, sub(sub(mul(like(2, i), index(rows)), low), one)), like(2, i))
    return select(eq(i, j), like(0, i), add(before, sub(sub(high, low), one)))


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("linalg_vector_norm"), _vector_norm),
    Rule(overloads("logsumexp"), _logsumexp),
    Rule(overloads("_cdist_forward"), _zero_of_nothing(_cdist)),
    Rule(overloads("_cdist_backward"), _zero_of_nothing(_cdist_backward)),
    Rule(overloads("_pdist_forward"), _zero_of_nothing(_pdist)),
    Rule(overloads("_pdist_backward"), _zero_of_nothing(_pdist_backward)),
)
