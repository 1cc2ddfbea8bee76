"""Windows of images side by side, `im2col` (`torch.nn.functional.unfold`), and `col2im` (`fold`), which adds
them up where they came from.

Each is the other's derivative. What a window reads outside of the image is masked, so that no padded image is
stored. A sum gathers: every element of the image looks for the windows that it is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from coilwork_ir.device_traits import PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, mod, multiply_all, provably_lt
from coilwork_ir.scalar import Const, Scalar, cast, const, op
from coilwork_lowering.building import values
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import Shape, TensorValue, Value
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.pooling import UNROLLED
from coilwork_lowering.ops.windows import (
    Taps,
    WindowShape,
    find_tap,
    is_small,
    is_within,
    iterate_taps,
    make_strided_windows,
)
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, index, logical_and

Point: TypeAlias = tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One dimension of an image of `size` elements, and its `count` windows."""

    size: Expr
    count: Expr
    shape: WindowShape

    @property
    def window(self) -> Taps:
        """The elements of a window in the image."""
        return make_strided_windows(self.size, self.count, self.shape).window

    @property
    def cover(self) -> Taps:
        """The windows over an element: of dilated ones as many as a window has elements, most of which are of
        no window.
        """
        if self.shape.dilation == 1:
            return make_strided_windows(self.size, self.count, self.shape).cover
        step = as_expr(self.shape.step)

        def valid(i: Expr, tap: Expr) -> Scalar:
            start = i + self.shape.padding - tap * self.shape.dilation
            starts: Scalar = const(True, DType.BOOL)
            if self.shape.step != 1:
                starts = op("eq", index(mod(start, step)), index(as_expr(0)))
            return simplify(logical_and(starts, is_within(start // step, self.count)))

        return Taps(
            count=as_expr(self.shape.kernel),
            position=lambda i, tap: (i + self.shape.padding - tap * self.shape.dilation) // step,
            valid=valid,
        )

    def element(self, i: Expr, o: Expr, tap: Expr) -> Expr:
        """Return which element of window `o`, the one over `i` by the number of `tap`, lies there."""
        return tap if self.shape.dilation > 1 else i + self.shape.padding - o * self.shape.step


def _sides(call: Call, sizes: Shape) -> tuple[_Side, ...]:
    """Return the two dimensions of the images of these `sizes`."""
    results = []
    named = (call.integers(name) for name in ("kernel_size", "dilation", "padding", "stride"))
    for size, kernel, dilation, padding, step in zip(sizes, *named, strict=True):
        if min(kernel, dilation, step) < 1 or padding < 0:
            raise NotLowered("windows that eager refuses")
        count = (size + 2 * padding - dilation * (kernel - 1) - 1) // step + 1
        if not provably_lt(0, count):
            raise NotLowered("images that may be smaller than a window")
        shape = WindowShape(
            kernel=kernel,
            step=step,
            padding=padding,
            dilation=dilation,
            ceil_mode=False,
            count_include_pad=True,
        )
        results.append(_Side(size=size, count=count, shape=shape))
    return tuple(results)


def _lower_unfold(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    if not value.dtype.is_float:
        raise NotLowered("windows of other types than floats")
    outer, sizes = value.shape[:-2], value.shape[-2:]
    sides = _sides(call, sizes)
    rank, taps = len(outer), [side.window for side in sides]
    shape = (*outer, *(side.window.count for side in sides), *(side.count for side in sides))

    def body(point: Point) -> Scalar:
        at, mask = find_tap(taps, point[rank + 2 :], point[rank : rank + 2])
        return builder.read(value, (*point[:rank], *at), mask=mask)

    result = builder.pointwise(shape, call.dtype, call.device, body)
    return values.reshape(result, _flat(shape, rank))


def _flat(shape: Shape, rank: int) -> Shape:
    """`shape` with the window's dimensions joined to the last of the `rank` outer ones, and the windows' in
    one.
    """
    return (*shape[: rank - 1], multiply_all(shape[rank - 1 : rank + 2]), multiply_all(shape[rank + 2 :]))


def _lower_fold(builder: Builder, call: Call) -> Value:
    value, shape = call.tensor("self"), call.shape(builder)
    if not value.dtype.is_float:
        raise NotLowered("sums of windows of other types than floats")
    sides = _sides(call, shape[-2:])
    rank, taps, wide = len(shape) - 2, [side.cover for side in sides], value.dtype.compute
    unfolded = (*shape[:-2], *(side.window.count for side in sides), *(side.count for side in sides))
    if value.shape != _flat(unfolded, rank):
        raise NotLowered("as many windows as no image has, for all that is known")
    windows = values.reshape(value, unfolded)
    if as_int(multiply_all(t.count for t in taps)) == 1:
        # side by side: each element is of one window, which is read in any type
        wide = value.dtype
    small = is_small(taps, UNROLLED)
    if not small and has_trait(call.device, PROCESSOR):
        raise NotLowered(f"more than {UNROLLED} windows over an element, on a CPU")

    def term(point: Point, numbers: Point, at: Point, mask: Scalar) -> Scalar:
        inner = [s.element(i, o, k) for s, i, o, k in zip(sides, point[rank:], at, numbers, strict=True)]
        return cast(builder.read(windows, (*point[:rank], *inner, *at), mask=mask), wide)

    def sum_taps(point: Point) -> Scalar:
        total: Scalar | None = None
        for numbers, at, mask in iterate_taps(taps, point[rank:]):
            if isinstance(mask, Const) and mask.value is False:
                continue
            element = term(point, numbers, at, mask)
            total = element if total is None else add(total, element)
        return cast(const(0, wide) if total is None else total, call.dtype)

    if small:
        return builder.pointwise(shape, call.dtype, call.device, sum_taps, strides=call.strides(builder))
    return _sum_taps(builder, call, taps, term, wide)


def _sum_taps(
    builder: Builder,
    call: Call,
    taps: list[Taps],
    term: Callable[[Point, Point, Point, Scalar], Scalar],
    wide: DType,
) -> TensorValue:
    """Return the sum of `term` over many taps, as a reduction."""
    shape, rank = call.shape(builder), len(call.fake.shape) - 2
    strides = call.strides(builder)

    def body(point: Point, numbers: Point) -> Scalar:
        at, mask = find_tap(taps, point[rank:], numbers)
        return term(point, numbers, at, mask)

    axes = tuple(t.count for t in taps)
    (total,) = builder.reduce("sum", shape, axes, call.device, body, [wide], strides=strides)
    assert total is not None
    if call.dtype is wide:
        return total
    result = total
    return builder.pointwise(
        shape,
        call.dtype,
        call.device,
        lambda point: cast(builder.read(result, point), call.dtype),
        strides=strides,
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("im2col"), _lower_unfold),
    Rule(overloads("col2im"), _lower_fold),
)
