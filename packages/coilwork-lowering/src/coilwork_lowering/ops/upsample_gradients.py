"""Derivatives of resizing, linear and cubic, in one to three dimensions: every element of the image looks for
the results that it counts for.

Those are a window along each dimension, and their weights are products of one weight per dimension: the sum
over the window is one of sums. Where the whole window has many elements, the dimensions are summed up one
after the other.

A result that an element counts for with a weight of 0 is not read: where it is infinite, eager has a NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import torch

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv
from coilwork_ir.scalar import Const, Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.facts.resize_weights import CUBIC, ResizeWindow, Resizing, find_resize_window
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.pooling import UNROLLED
from coilwork_lowering.ops.windows import is_within
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    eq,
    ge,
    index,
    like,
    logical_and,
    logical_or,
    lt,
    maximum,
    minimum,
    mul,
    neg,
    select,
    sub,
)

Point: TypeAlias = tuple[Expr, ...]

# On accelerators: a cubic enlargement to twice the size, and a linear one in three dimensions, have as many.
_UNROLLED_TAPS: Final = 64
_FALSE: Final = const(False, DType.BOOL)
_TRUE: Final = const(True, DType.BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One dimension, with weights in the type `wide`."""

    side: Resizing
    window: ResizeWindow
    wide: DType

    def result(self, i: Expr, k: Expr) -> Expr:
        """Return the number in the result of element `k` of the window of `i`."""
        return self._start(i) + k

    def _start(self, i: Expr) -> Expr:
        window = self.window
        return floordiv(i * window.factor + window.offset, as_expr(window.divisor))

    def tap(self, i: Expr, k: Expr) -> tuple[Scalar, Scalar]:
        """Return the weight of element `k` of the window of `i`, and whether it is read."""
        exists = is_within(self.result(i, k), as_expr(self.side.count))
        number = as_int(k)
        weight, counts = (
            self._compute_taps(i, k)
            if number is None or self.window.weights is None
            else self._read_known_taps(i, number)
        )
        return weight, simplify(logical_and(exists, counts))

    def _read_known_taps(self, i: Expr, k: int) -> tuple[Scalar, Scalar]:
        weights = self.window.weights
        assert weights is not None
        inner = weights.inner[k]
        weight: Scalar = const(inner, self.wide)
        counts: Scalar = const(inner != 0, DType.BOOL)
        for other, at in ((weights.last[k], self.side.size - 1), (weights.first[k], 0)):
            if other != inner:
                here = eq(index(i), index(as_expr(at)))
                weight = select(here, const(other, self.wide), weight)
                counts = select(here, const(other != 0, DType.BOOL), counts)
        return simplify(weight), simplify(counts)

    def _compute_taps(self, i: Expr, k: Expr) -> tuple[Scalar, Scalar]:
        number = as_int(k)
        if number is None:
            result = cast(index(self.result(i, k)), self.wide)
        else:
            # one conversion for all of a window
            start = cast(index(self._start(i)), self.wide)
            result = add(start, like(number, start)) if number else start
        place = self._place(result)
        distance = sub(place, cast(index(i), self.wide))
        size = op("abs", distance)
        if self.side.cubic:
            return self._cubic(i, distance), lt(size, like(2, size))
        return sub(like(1, size), size), lt(size, like(1, size))

    def _place(self, result: Scalar) -> Scalar:
        side, half = self.side, like(0.5, result)
        scale = like(side.scale, result)
        place = mul(result, scale) if side.corners else sub(mul(add(result, half), scale), half)
        low, high = side.bounds
        if self.window.bounded[0]:
            place = maximum(place, like(low, place))
        return minimum(place, like(high, place)) if self.window.bounded[1] else place

    def _cubic(self, i: Expr, distance: Scalar) -> Scalar:
        """Return the element at a border counts for all that would be beyond it: for what the others do not
        count for, as weights sum up to 1.
        """
        last = self.side.size - 1
        if last == 0:
            return like(1, distance)
        first = eq(index(i), index(as_expr(0)))
        inwards = select(first, distance, neg(distance))
        others = add(
            _polynomial(sub(inwards, like(1, distance))), _polynomial(sub(inwards, like(2, distance)))
        )
        at_border = logical_and(
            logical_or(first, eq(index(i), index(as_expr(last)))), lt(inwards, like(1, distance))
        )
        return select(at_border, sub(like(1, others), others), _polynomial(distance))


def _polynomial(distance: Scalar) -> Scalar:
    """Return the weight at a distance, 0 from 2 on."""
    x = op("abs", distance)
    number = partial(like, other=x)
    near = add(mul(mul(sub(mul(number(CUBIC + 2), x), number(CUBIC + 3)), x), x), number(1))
    far = add(mul(sub(mul(number(CUBIC), x), number(5 * CUBIC)), x), number(8 * CUBIC))
    far = sub(mul(far, x), number(4 * CUBIC))
    return select(lt(x, number(1)), near, select(ge(x, number(2)), number(0), far))


def _sides(call: Call, grad: TensorValue, shape: Sequence[Expr], *, exact: bool) -> list[_Side]:
    cubic = "bicubic" in call.target
    rank = len(shape) - 2
    scales = [v for name, v in call.arguments.items() if name.startswith("scales")]
    corners = bool(call["align_corners"])
    wide, result = grad.dtype.compute, []
    for size, count, scale in zip(shape[2:], grad.shape[2:], scales, strict=True):
        n, m = as_int(size), as_int(count)
        if n is None or m is None or not (scale is None or isinstance(scale, float | int)):
            raise NotLowered("resizing between sizes that are not known")
        if n == 0 or m == 0:
            raise NotLowered("resizing of an empty image")
        if corners:
            ratio = (n - 1) / (m - 1) if m > 1 else 0.0
        else:
            ratio = 1 / scale if scale is not None and scale > 0 else n / m
        side = Resizing(size=n, count=m, scale=ratio, corners=corners, cubic=cubic)
        window = find_resize_window(side, getattr(torch, wide.torch_name), exact=exact)
        result.append(_Side(side=side, window=window, wide=wide))
    assert len(result) == rank
    return result


def _backward(builder: Builder, call: Call) -> Value:
    grad, shape = call.tensor("grad_output"), call.shape(builder)
    if not grad.dtype.is_float or len(grad.shape) != len(shape):
        raise NotLowered("what eager refuses")
    sides = _sides(call, grad, shape, exact=builder.options.numerics == "fast")
    strides = call.strides(builder)
    width = math.prod(side.window.width for side in sides)
    on_cpu = has_trait(call.device, PROCESSOR)
    limit = UNROLLED if on_cpu else _UNROLLED_TAPS
    if on_cpu and width <= limit and _is_atens(call, grad, sides):
        raise NotLowered("few results with computed weights, which a CPU has no vectors for")
    if width <= limit:
        return _sum_sides(builder, call, grad, dict(enumerate(sides, 2)), call.dtype, strides)
    value = grad
    # what shrinks most comes first
    order = sorted(range(len(sides)), key=lambda k: sides[k].side.size / sides[k].side.count)
    for k in order:
        final = k == order[-1]
        dtype = call.dtype if final else grad.dtype.compute
        value = _sum_sides(builder, call, value, {2 + k: sides[k]}, dtype, strides if final else None)
    return value


def _is_atens(call: Call, grad: TensorValue, sides: Sequence[_Side]) -> bool:
    """Tell if ATen's kernel for CPUs, which walks over the result and adds up in place, takes less time than
    looking for few results.

    It does in two dimensions, linearly, where weights are computed: by a half, and by two thirds of images in
    channels-last.
    """
    known = all(side.window.weights is not None for side in sides)
    return "bilinear" in call.target and grad.dtype in (DType.F32, DType.F64) and not known


def _sum_sides(
    builder: Builder,
    call: Call,
    value: TensorValue,
    sides: dict[int, _Side],
    dtype: DType,
    strides: Sequence[Expr] | None,
) -> TensorValue:
    """`value` summed up along the dimensions `sides`."""
    shape = tuple(as_expr(sides[k].side.size) if k in sides else n for k, n in enumerate(value.shape))
    dims, wide = list(sides), value.dtype.compute
    widths = [side.window.width for side in sides.values()]

    def read(point: Point, numbers: Sequence[Expr], mask: Scalar) -> Scalar:
        at = list(point)
        for k, number in zip(dims, numbers, strict=True):
            at[k] = sides[k].result(point[k], number)
        return cast(builder.read(value, tuple(at), mask=mask), wide)

    def term(point: Point, numbers: Point) -> Scalar:
        (k,) = dims
        weight, mask = sides[k].tap(point[k], numbers[0])
        return mul(weight, read(point, numbers, mask))

    def sum_taps(point: Point) -> Scalar:
        taps = {
            k: [sides[k].tap(point[k], as_expr(number)) for number in range(sides[k].window.width)]
            for k in dims
        }

        def sum_along(numbers: tuple[int, ...], mask: Scalar) -> Scalar | None:
            if len(numbers) == len(dims):
                return read(point, [as_expr(n) for n in numbers], mask)
            total: Scalar | None = None
            for number, (weight, counts) in enumerate(taps[dims[len(numbers)]]):
                inside = simplify(logical_and(mask, counts))
                if isinstance(inside, Const) and inside.value is False:
                    continue
                inner = sum_along((*numbers, number), inside)
                if inner is not None:
                    weighed = mul(weight, inner)
                    total = weighed if total is None else add(total, weighed)
            return total

        result = sum_along((), _TRUE)
        return cast(const(0, wide) if result is None else result, dtype)

    if all(w <= _UNROLLED_TAPS for w in widths):
        return builder.pointwise(shape, dtype, call.device, sum_taps, strides=strides)
    axes = tuple(as_expr(w) for w in widths)
    (total,) = builder.reduce("sum", shape, axes, call.device, term, [wide], strides=strides)
    assert total is not None
    if dtype is wide:
        return total
    created = total
    return builder.pointwise(
        shape, dtype, call.device, lambda point: cast(builder.read(created, point), dtype), strides=strides
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        overloads(
            "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward"
            " upsample_bicubic2d_backward"
        ),
        _backward,
    ),
)
