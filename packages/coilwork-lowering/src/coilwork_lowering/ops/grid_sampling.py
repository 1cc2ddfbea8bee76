"""`grid_sampler`: images sampled at the points of a grid, and the gradients by image and by grid.

A grid holds coordinates from -1 to 1. Along each dimension a coordinate becomes a position between elements,
which padding brings into the image or leaves outside. An interpolation then names one, two or four elements
around the position, its taps. The gradients differentiate the same formulas: weights by the position, and the
position by the coordinate.

Sizes and positions are floats here, so that a position that is far outside or NaN is compared before it
becomes an integer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue, Value, find_layout
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.scattering.deterministic_scatter import needs_fixed_order
from coilwork_lowering.ops.scattering.elements import Elements, flatten, unflatten
from coilwork_lowering.ops.scattering.scatters import scatter_into
from coilwork_lowering.ops.scattering.segment_sums import sum_rows
from coilwork_lowering.ops.windows import fits_32_bits
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    div,
    eq,
    ge,
    gt,
    index,
    le,
    like,
    logical_and,
    logical_or,
    lt,
    mul,
    neg,
    select,
    sub,
    to_dtype,
)

# ---- Taps ----


# Of the cubic convolution (Keys 1981), as ATen.
_CUBIC: Final = -0.75


class Interpolation(Enum):
    """Interpolations, numbered as in ATen."""

    LINEAR = 0
    NEAREST = 1
    CUBIC = 2

    @property
    def taps(self) -> int:
        """Elements per dimension."""
        return {Interpolation.LINEAR: 2, Interpolation.NEAREST: 1, Interpolation.CUBIC: 4}[self]


class Padding(Enum):
    """Paddings, numbered as in ATen."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


class Kernel(Enum):
    """ATen's kernels, which round differently and treat coordinates that are NaN differently."""

    # scales by half the size; without padding, NaN makes NaN
    VECTORISED = "two dimensions on a CPU"
    # doubles the size; without padding, nothing is read at NaN, with padding the last element
    SCALAR = "three dimensions on a CPU"
    # as the latter, but with padding the first element
    DEVICE = "accelerators"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The way in which a grid samples an image.

    Attributes:
        corners: -1 and 1 are the centres of the outermost elements, not their edges.
        kernel: which of ATen's kernels to follow where positions lie exactly between elements, or are no
            numbers.
    """

    interpolation: Interpolation
    padding: Padding
    corners: bool
    kernel: Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """An element along one dimension.

    Attributes:
        at: its coordinate, in `i64`; 0 where it is not inside.
        inside: whether it lies in the image.
        weight: how much it counts.
        slope: the derivative of `weight` by the coordinate in the grid.
    """

    at: Scalar
    inside: Scalar
    weight: Scalar
    slope: Scalar


def find_taps(coordinate: Scalar, size: Expr, sampling: Sampling) -> tuple[Tap, ...]:
    """Return the taps of a coordinate in the grid, along a dimension of `size` elements."""
    extent = cast(index(size), coordinate.dtype)
    raw = _position(coordinate, extent, sampling)
    one = like(1, raw)
    scale = div(sub(extent, one) if sampling.corners else extent, like(2, raw))
    if sampling.interpolation is Interpolation.CUBIC:
        return _cubic(raw, scale, extent, sampling)
    position, slope = _pad_position(raw, extent, sampling)
    if sampling.interpolation is Interpolation.NEAREST:
        return (_tap(op("round", position), extent, one, like(0, raw)),)
    low = op("floor", position)
    above = sub(position, low)
    scale = mul(scale, slope)
    return (_tap(low, extent, sub(one, above), neg(scale)), _tap(add(low, one), extent, above, scale))


def choose_tap(taps: Sequence[Tap], number: Scalar) -> Tap:
    """Return tap `number`, an `i64` that is known at run time only."""
    result = taps[-1]
    for k in reversed(range(len(taps) - 1)):
        mine, tap = eq(number, const(k, DType.I64)), taps[k]
        result = Tap(
            at=select(mine, tap.at, result.at),
            inside=select(mine, tap.inside, result.inside),
            weight=select(mine, tap.weight, result.weight),
            slope=select(mine, tap.slope, result.slope),
        )
    return result


def _position(coordinate: Scalar, extent: Scalar, sampling: Sampling) -> Scalar:
    """Return the position of a coordinate between elements; 0 is the first element's centre."""
    one, two, half = (like(x, coordinate) for x in (1, 2, 0.5))
    shifted = add(coordinate, one)
    if sampling.corners:
        last = sub(extent, one)
        return (
            mul(shifted, div(last, two))
            if sampling.kernel is Kernel.VECTORISED
            else mul(div(shifted, two), last)
        )
    if sampling.kernel is Kernel.VECTORISED:
        return sub(mul(shifted, div(extent, two)), half)
    return div(sub(mul(shifted, extent), one), two)


def _pad_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """Return a position brought into the image, and the derivative of that."""
    one = like(1, position)
    if sampling.padding is Padding.ZEROS:
        return position, one
    if sampling.padding is Padding.BORDER:
        return _clip_position(position, extent, sampling)
    reflected, sign = _reflect_position(position, extent, sampling)
    inside, slope = _clip_position(reflected, extent, sampling)
    return inside, mul(sign, slope)


def _clip_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """Return a position clipped to the outermost elements, and its slope. NaN becomes one of them."""
    zero, one = like(0, position), like(1, position)
    last = sub(extent, one)
    if sampling.kernel is Kernel.SCALAR:
        inside = select(le(position, zero), zero, select(lt(position, last), position, last))
    else:
        inside = select(gt(position, zero), select(lt(position, last), position, last), zero)
    slope = select(logical_or(le(position, zero), ge(position, last)), zero, one)
    return inside, slope


def _reflect_position(position: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Scalar, Scalar]:
    """Return a position reflected by the outermost elements' centres or edges, as often as it takes, and its
    slope.
    """
    zero, one, two = (like(x, position) for x in (0, 1, 2))
    low = zero if sampling.corners else like(-0.5, position)
    span = sub(extent, one) if sampling.corners else extent
    from_low = sub(position, low)
    distance = op("abs", from_low)
    rest = op("fmod", distance, span)
    flips = op("floor", div(distance, span))
    is_even = eq(op("fmod", flips, two), zero)
    result = add(select(is_even, rest, sub(span, rest)), low)
    turned = select(is_even, one, neg(one))
    sign = select(lt(from_low, zero), neg(turned), turned)
    nothing = eq(span, zero)
    return select(nothing, zero, result), select(nothing, zero, sign)


def _tap(position: Scalar, extent: Scalar, weight: Scalar, slope: Scalar) -> Tap:
    zero = like(0, position)
    inside = logical_and(ge(position, zero), lt(position, extent))
    return Tap(at=cast(select(inside, position, zero), DType.I64), inside=inside, weight=weight, slope=slope)


def _cubic(raw: Scalar, scale: Scalar, extent: Scalar, sampling: Sampling) -> tuple[Tap, ...]:
    """Four taps, each padded by itself."""
    one, two = like(1, raw), like(2, raw)
    low = op("floor", raw)
    above = sub(raw, low)
    below = sub(one, above)
    weights = (
        (_weigh_outer(add(above, one)), _differentiate_outer(add(above, one))),
        (_weigh_inner(above), _differentiate_inner(above)),
        (_weigh_inner(below), neg(_differentiate_inner(below))),
        (_weigh_outer(sub(two, above)), neg(_differentiate_outer(sub(two, above)))),
    )
    results = []
    for k, (weight, slope) in enumerate(weights):
        position, _ = _pad_position(add(low, like(k - 1, raw)), extent, sampling)
        # reflected by edges, whole numbers stay whole but for rounding
        results.append(_tap(op("trunc", position), extent, weight, mul(slope, scale)))
    return tuple(results)


def _weigh_inner(x: Scalar) -> Scalar:
    """Return the cubic weight of a tap at distance `x` up to 1."""
    slanted = sub(mul(like(_CUBIC + 2, x), x), like(_CUBIC + 3, x))
    return add(mul(mul(slanted, x), x), like(1, x))


def _differentiate_inner(x: Scalar) -> Scalar:
    return mul(sub(mul(like(3 * (_CUBIC + 2), x), x), like(2 * (_CUBIC + 3), x)), x)


def _weigh_outer(x: Scalar) -> Scalar:
    """Return the cubic weight of a tap at distance `x` from 1 to 2."""
    inner = add(mul(sub(mul(like(_CUBIC, x), x), like(5 * _CUBIC, x)), x), like(8 * _CUBIC, x))
    return sub(mul(inner, x), like(4 * _CUBIC, x))


def _differentiate_outer(x: Scalar) -> Scalar:
    return add(mul(sub(mul(like(3 * _CUBIC, x), x), like(10 * _CUBIC, x)), x), like(8 * _CUBIC, x))


def split_combination(number: Scalar, each: int, dims: int) -> tuple[Scalar, ...]:
    """Return the numbers of the taps of each dimension, of which there are `each`, from the number of a
    combination of them.
    """
    results = []
    for _ in range(dims):
        results.append(op("mod", number, const(each, DType.I64)))
        number = op("floordiv", number, const(each, DType.I64))
    return tuple(reversed(results))


def count_combinations(interpolation: Interpolation, dims: int) -> Expr:
    """Return how many elements of the image one result reads."""
    return as_expr(interpolation.taps**dims)


# ---- Sampling and gradients ----


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampled:
    """An image `(N, C, *sizes)` and a grid `(N, *points, dims)`, whose last dimension has the last image
    dimension first.
    """

    image: TensorValue
    grid: TensorValue
    sampling: Sampling

    @property
    def sizes(self) -> Shape:
        return self.image.shape[2:]

    @property
    def points(self) -> Shape:
        return self.grid.shape[1:-1]

    @property
    def wide(self) -> DType:
        """The type to compute in."""
        return self.image.dtype.compute

    def taps(
        self,
        builder: Builder,
        point: Sequence[Expr],
        indirect: tuple[Scalar, ...] = (),
        mask: Scalar | None = None,
    ) -> list[tuple[Tap, ...]]:
        """Return the taps along each image dimension of the grid's `point`, `(n, *point)`."""
        results = []
        for k, size in enumerate(self.sizes):
            at = (*point, as_expr(len(self.sizes) - 1 - k))
            read = builder.read(self.grid, at, indirect=indirect, mask=mask)
            results.append(find_taps(cast(read, self.wide), size, self.sampling))
        return results

    def element(self, builder: Builder, n: Expr, channel: Expr, taps: Sequence[Tap]) -> Scalar:
        """Return the element at `taps`, one for each dimension; 0 outside the image."""
        places = tuple(placeholder(k) for k in range(len(taps)))
        # taps outside are at 0, where there is an element: reading it is cheaper than not to
        read = cast(
            builder.read(self.image, (n, channel, *places), indirect=[tap.at for tap in taps]), self.wide
        )
        return select(_are_all_inside(taps), read, like(0, read))


def _are_all_inside(taps: Sequence[Tap]) -> Scalar:
    return reduce(logical_and, [tap.inside for tap in taps])


def _product(factors: Sequence[Scalar]) -> Scalar:
    return reduce(mul, factors)


def _prepare_sampling(call: Call) -> _Sampled:
    image, grid = call.tensor("input"), call.tensor("grid")
    if not image.dtype.is_float or image.dtype.is_opaque or grid.dtype is not image.dtype:
        raise NotLowered("an image of integers, or a grid of another type")
    if any(as_int(size) == 0 for size in image.shape):
        raise NotLowered("an image without elements")
    on_cpu = has_trait(image.device, ATEN_CPU)
    sampling = Sampling(
        interpolation=Interpolation(call.integer("interpolation_mode")),
        padding=Padding(call.integer("padding_mode")),
        corners=bool(call["align_corners"]),
        kernel=Kernel.DEVICE if not on_cpu else Kernel.VECTORISED if len(image.shape) == 4 else Kernel.SCALAR,
    )
    return _Sampled(image=image, grid=grid, sampling=sampling)


def _grid_sampler(builder: Builder, call: Call) -> Value:
    sampled = _prepare_sampling(call)
    spreads = sampled.sampling.kernel is Kernel.VECTORISED
    kept = _materialize_taps(builder, sampled) if _materializes_taps(builder, sampled) else None

    def terms(n: Expr, channel: Expr, at: tuple[Expr, ...]) -> Iterator[tuple[Scalar, Scalar, Scalar]]:
        """Yield element, weight and whether it is inside, for each tap."""
        if kept is not None:
            for place, weight in kept:
                position = builder.read(place, (n, *at))
                inside = op("ge", position, like(0, position))
                safe = op("maximum", position, like(0, position))
                spot = (n, channel, *unflatten(placeholder(0), sampled.sizes))
                element = cast(builder.read(sampled.image, spot, indirect=(safe,)), sampled.wide)
                yield select(inside, element, like(0, element)), builder.read(weight, (n, *at)), inside
            return
        for taps in itertools.product(*sampled.taps(builder, (n, *at))):
            yield (
                sampled.element(builder, n, channel, taps),
                _product([t.weight for t in taps]),
                _are_all_inside(taps),
            )

    def body(point: tuple[Expr, ...]) -> Scalar:
        n, channel, *at = point
        total: Scalar = const(0, sampled.wide)
        for element, weight, inside in terms(n, channel, tuple(at)):
            weighted = mul(element, weight)
            if not spreads:
                # where a coordinate is no number, weights are none either
                weighted = select(inside, weighted, like(0, weighted))
            total = add(total, weighted)
        return to_dtype(total, call.dtype)

    return builder.pointwise(
        call.shape(builder), call.dtype, call.device, body, strides=call.strides(builder)
    )


def _materializes_taps(builder: Builder, sampled: _Sampled) -> bool:
    """Tell if taps are better computed once than for each of many channels."""
    image = sampled.image
    channels, layout = as_int(image.shape[1]), find_layout(image)
    if not has_trait(image.device, PROCESSOR) or channels is None:
        return False
    if channels < builder.machine_of(image.device).loops.many_channels:
        return False
    if not fits_32_bits(multiply_all(sampled.sizes)):
        return False
    # along channels that lie side by side a loop over them computes taps once by itself
    return layout is None or as_int(layout.strides[1]) != 1


def _materialize_taps(builder: Builder, sampled: _Sampled) -> list[tuple[TensorValue, TensorValue]]:
    """Return, for each combination of taps, the element's place in its channel (-1 outside) and its weight,
    in memory.
    """
    shape, dims = (sampled.grid.shape[0], *sampled.points), len(sampled.sizes)

    def pick_taps(point: tuple[Expr, ...], numbers: Sequence[int]) -> list[Tap]:
        return [candidates[k] for candidates, k in zip(sampled.taps(builder, point), numbers, strict=True)]

    def place(taps: Sequence[Tap]) -> Scalar:
        flat: Scalar = const(0, DType.I64)
        for tap, size in zip(taps, sampled.sizes, strict=True):
            flat = add(mul(flat, index(size)), tap.at)
        return cast(select(_are_all_inside(taps), flat, const(-1, DType.I64)), DType.I32)

    def store(dtype: DType, body: Callable[[Sequence[Tap]], Scalar], numbers: Sequence[int]) -> TensorValue:
        return builder.pointwise(
            shape, dtype, sampled.grid.device, lambda point: body(pick_taps(point, numbers))
        )

    return [
        (
            store(DType.I32, place, numbers),
            store(sampled.wide, lambda taps: _product([tap.weight for tap in taps]), numbers),
        )
        for numbers in itertools.product(range(sampled.sampling.interpolation.taps), repeat=dims)
    ]


def _backward(builder: Builder, call: Call) -> Value:
    sampled, gradient = _prepare_sampling(call), call.tensor("grad_output")
    mask = call["output_mask"]
    by_image, by_grid = call.result
    results: list[Value] = [None, None]
    if mask[0]:
        results[0] = _convert_result(builder, _differentiate_image(builder, sampled, gradient), by_image)
    if mask[1]:
        results[1] = _convert_result(builder, _differentiate_grid(builder, sampled, gradient), by_grid)
    return tuple(results)


def _convert_result(
    builder: Builder, found: tuple[TensorValue, Callable[[tuple[Expr, ...]], Scalar]], fake: torch.Tensor
) -> TensorValue:
    """Return a result with the type and strides of `fake`."""
    like_grid, read = found
    return builder.pointwise(
        builder.sizes.exprs(fake.shape),
        like_grid.dtype,
        like_grid.device,
        lambda point: to_dtype(read(point), like_grid.dtype),
        strides=builder.result_strides(fake),
    )


def _differentiate_grid(
    builder: Builder, sampled: _Sampled, gradient: TensorValue
) -> tuple[TensorValue, Callable[[tuple[Expr, ...]], Scalar]]:
    """Return the gradient by the grid: one sum over channels for each dimension."""
    n_channels = sampled.image.shape[1]
    shape = (sampled.grid.shape[0], *sampled.points)

    def sum_along(dim: int) -> TensorValue:
        def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
            n, *at = point
            slope: Scalar = const(0, sampled.wide)
            for taps in itertools.product(*sampled.taps(builder, point)):
                factors = [tap.slope if k == dim else tap.weight for k, tap in enumerate(taps)]
                part = mul(sampled.element(builder, n, axes[0], taps), _product(factors))
                slope = add(slope, select(_are_all_inside(taps), part, like(0, part)))
            return mul(slope, cast(builder.read(gradient, (n, axes[0], *at)), sampled.wide))

        (result,) = builder.reduce("sum", shape, (n_channels,), sampled.grid.device, body, (sampled.wide,))
        assert result is not None
        return result

    sums = [sum_along(dim) for dim in reversed(range(len(sampled.sizes)))]

    def read(point: tuple[Expr, ...]) -> Scalar:
        *at, which = point
        value = builder.read(sums[-1], at)
        for k in reversed(range(len(sums) - 1)):
            value = select(eq(index(which), const(k, DType.I64)), builder.read(sums[k], at), value)
        return value

    return sampled.grid, read


def _differentiate_image(
    builder: Builder, sampled: _Sampled, gradient: TensorValue
) -> tuple[TensorValue, Callable[[tuple[Expr, ...]], Scalar]]:
    """Return what each point read it gives back, by its weight."""
    if needs_fixed_order(builder, sampled.image.device, sampled.image.dtype):
        return sampled.image, _sum_sorted_gradient(builder, sampled, gradient)
    return sampled.image, _scatter_gradient(builder, sampled, gradient)


def _scatter_gradient(
    builder: Builder, sampled: _Sampled, gradient: TensorValue
) -> Callable[[tuple[Expr, ...]], Scalar]:
    dims, wide = len(sampled.sizes), sampled.wide
    zeros = builder.pointwise(sampled.image.shape, wide, sampled.image.device, lambda point: const(0, wide))
    if _materializes_taps(builder, sampled):
        return _scatter_gradient_by_tap(builder, sampled, gradient, zeros)
    each = sampled.sampling.interpolation
    shape = (*gradient.shape, count_combinations(each, dims))

    def taps(point: tuple[Expr, ...]) -> list[Tap]:
        n, _, *at, number = point
        numbers = split_combination(index(number), each.taps, dims)
        return [
            choose_tap(along, k) for along, k in zip(sampled.taps(builder, (n, *at)), numbers, strict=True)
        ]

    def value(point: tuple[Expr, ...]) -> Scalar:
        given = cast(builder.read(gradient, point[:-1]), wide)
        part = mul(given, _product([tap.weight for tap in taps(point)]))
        return select(_are_all_inside(taps(point)), part, like(0, part))

    result = scatter_into(
        builder,
        zeros,
        shape,
        lambda point: (point[0], point[1], *(placeholder(k) for k in range(dims))),
        lambda point: [tap.at for tap in taps(point)],
        value,
        "add",
        lambda point: (),
    )
    return lambda point: builder.read(result, point)


def _scatter_gradient_by_tap(
    builder: Builder, sampled: _Sampled, gradient: TensorValue, zeros: TensorValue
) -> Callable[[tuple[Expr, ...]], Scalar]:
    """Add one tap of all points after the other, so that taps are computed once for all channels."""
    result, wide = zeros, sampled.wide
    for place, weight in _materialize_taps(builder, sampled):
        result = _scatter_tap(builder, sampled, gradient, result, place, weight, wide)
    return lambda point: builder.read(result, point)


def _scatter_tap(
    builder: Builder,
    sampled: _Sampled,
    gradient: TensorValue,
    into: TensorValue,
    place: TensorValue,
    weight: TensorValue,
    wide: DType,
) -> TensorValue:
    def position(point: tuple[Expr, ...]) -> Scalar:
        n, _, *at = point
        return builder.read(place, (n, *at))

    def value(point: tuple[Expr, ...]) -> Scalar:
        n, _, *at = point
        part = mul(cast(builder.read(gradient, point), wide), builder.read(weight, (n, *at)))
        inside = op("ge", position(point), const(0, DType.I32))
        return select(inside, part, like(0, part))

    return scatter_into(
        builder,
        into,
        gradient.shape,
        lambda point: (point[0], point[1], *unflatten(placeholder(0), sampled.sizes)),
        lambda point: (op("maximum", position(point), const(0, DType.I32)),),
        value,
        "add",
        lambda point: (),
    )


def _sum_sorted_gradient(
    builder: Builder, sampled: _Sampled, gradient: TensorValue
) -> Callable[[tuple[Expr, ...]], Scalar]:
    dims, wide = len(sampled.sizes), sampled.wide
    each = sampled.sampling.interpolation
    batch = sampled.image.shape[0]
    origin = (batch, *sampled.points, count_combinations(each, dims))
    targets = (batch, *sampled.sizes)
    rows = multiply_all(targets)

    def pick(along: list[tuple[Tap, ...]], number: Scalar) -> list[Tap]:
        numbers = split_combination(number, each.taps, dims)
        return [choose_tap(taps, k) for taps, k in zip(along, numbers, strict=True)]

    def key(flat: Expr) -> Scalar:
        n, *at, number = unflatten(flat, origin)
        taps = pick(sampled.taps(builder, (n, *at)), index(number))
        row = index(n)
        for tap, size in zip(taps, sampled.sizes, strict=True):
            row = add(mul(row, index(size)), tap.at)
        return select(_are_all_inside(taps), row, index(rows))

    def value(position: Expr, place: Scalar, point: tuple[Expr, ...], mask: Scalar) -> Scalar:
        n, *at, _ = unflatten(position, origin)
        along = sampled.taps(builder, (n, *at), (place,), mask)
        number = op("mod", place, index(origin[-1]))
        given = cast(builder.read(gradient, (n, point[0], *at), indirect=(place,), mask=mask), wide)
        return mul(given, _product([tap.weight for tap in pick(along, number)]))

    sums = sum_rows(
        builder,
        sampled.image.device,
        Elements(
            count=multiply_all(origin),
            rows=rows,
            runs=as_expr(1),
            all_rows=False,
            inner=(sampled.image.shape[1],),
            key=key,
            value=value,
            dtype=wide,
            checks=lambda flat: (),
        ),
    ).values

    def read(point: tuple[Expr, ...]) -> Scalar:
        n, channel, *at = point
        return builder.read(sums, (flatten((n, *at), targets), channel))

    return read


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("grid_sampler_2d grid_sampler_3d"), _grid_sampler),
    Rule(overloads("grid_sampler_2d_backward grid_sampler_3d_backward"), _backward),
)
