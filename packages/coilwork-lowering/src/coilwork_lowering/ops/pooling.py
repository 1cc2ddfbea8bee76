"""Pooling: maxima and means over windows, the position of a maximum, and their derivatives.

A window of at most `UNROLLED` elements is unrolled in a pointwise node, so that it fuses with its producers
and consumers. A larger one is a reduction over its taps. On GPUs, windows of different sizes may be larger
before they become reductions, because each lane would divide to find the borders of its window. NaN wins as
in ATen: it is the maximum, and the last of several gives the position. Of equal numbers the first one does.

Fractional pooling takes maxima over windows of one size whose starts are random numbers (Graham, "Fractional
max-pooling", 2014).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

import torch

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.scalar import Const, Literal_, Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import Shape, TensorValue, Value, format_device, get_dtype
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.windows import (
    PooledDim,
    Taps,
    WindowShape,
    find_tap,
    fits_32_bits,
    flat_position,
    is_small,
    iterate_taps,
    make_adaptive_windows,
    make_strided_windows,
)
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import (
    add,
    eq,
    gt,
    index,
    like,
    logical_and,
    logical_or,
    maximum,
    mul,
    round_to,
    select,
    sub,
)

# ---- Mean and maximum ----


UNROLLED: Final = 32
_UNROLLED_UNEVEN: Final = 64

Point = tuple[Expr, ...]
Term = Callable[[Point, Point, Scalar], Scalar]  # from the target's point, the source's point and the mask
Combine = Callable[[Scalar, Scalar], Scalar]


def lowest(dtype: DType) -> Literal_:
    """Return the identity of `maximum`, which stands for the elements beyond the border."""
    if not dtype.is_integer:
        return -math.inf
    return -(1 << (8 * dtype.itemsize - 1)) if dtype.is_signed_integer else 0


def _window_shapes(call: Call, rank: int) -> list[WindowShape]:
    kernel = _read_per_dim(call, "kernel_size", rank)
    # a mean has no dilation; without a step windows lie side by side
    return [
        WindowShape(
            kernel=k,
            step=s,
            padding=p,
            dilation=d,
            ceil_mode=bool(call["ceil_mode"]),
            count_include_pad=bool(call.arguments.get("count_include_pad", True)),
        )
        for k, s, p, d in zip(
            kernel,
            _read_per_dim(call, "stride", rank, kernel),
            _read_per_dim(call, "padding", rank),
            _read_per_dim(call, "dilation", rank, (1,) * rank),
            strict=True,
        )
    ]


def _read_per_dim(call: Call, name: str, rank: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
    given = call.integers(name) if name in call.arguments else ()
    given = given or default
    return given * rank if len(given) == 1 else given


def _rank(call: Call) -> int:
    """Return how many dimensions are pooled: the digit in `aten.avg_pool2d.default`."""
    return int(call.target.partition("pool")[2][0])


def _dims(call: Call, source: Shape, result: Shape) -> list[PooledDim]:
    """Return the pooled dimensions of the operator, from the shapes of its input and its output."""
    rank = _rank(call)
    sizes, counts = source[-rank:], result[-rank:]
    if any(as_int(n) == 0 for n in (*sizes, *counts)):
        raise NotLowered("pooling of an empty dimension")
    pairs = list(zip(sizes, counts, strict=True))
    if "adaptive" in call.target:
        return [make_adaptive_windows(size, count) for size, count in pairs]
    return [
        make_strided_windows(size, count, s)
        for (size, count), s in zip(pairs, _window_shapes(call, rank), strict=True)
    ]


def _count_unrolled(dims: Sequence[PooledDim], device: torch.device) -> int:
    """Return how many elements of a window are unrolled."""
    uneven = any(d.is_uneven for d in dims) and not _is_left_to_aten(device)
    return _UNROLLED_UNEVEN if uneven else UNROLLED


def _reduce_windows(
    builder: Builder,
    fake: torch.Tensor,
    taps: Sequence[Taps],
    term: Term,
    wide: DType,
    *,
    limit: int,
    greatest: bool = False,
    finish: Callable[[Point, Scalar], Scalar] | None = None,
) -> TensorValue:
    """Return the sum or maximum of `term` over the taps of each element of `fake`, computed in `wide`, after
    `finish`.
    """
    shape, rank = builder.sizes.exprs(fake.shape), len(taps)
    dtype, device = get_dtype(fake.dtype), format_device(fake.device)
    strides = builder.result_strides(fake)

    def convert_total(point: Point, total: Scalar) -> Scalar:
        return cast(total if finish is None else finish(point, total), dtype)

    def small(point: Point) -> Scalar:
        total: Scalar | None = None
        for _, at, mask in iterate_taps(taps, point[-rank:]):
            element = term(point, (*point[:-rank], *at), mask)
            if not isinstance(mask, Const) or mask.value is True:
                total = element if total is None else _combine(total, element, greatest)
        return convert_total(point, const(lowest(wide) if greatest else 0, wide) if total is None else total)

    if is_small(taps, limit):
        return builder.pointwise(shape, dtype, device, small, strides=strides)

    def large(point: Point, numbers: Point) -> Scalar:
        at, mask = find_tap(taps, point[-rank:], numbers)
        return term(point, (*point[:-rank], *at), mask)

    axes = tuple(t.count for t in taps)
    (total,) = builder.reduce(
        "max" if greatest else "sum", shape, axes, device, large, [wide], strides=strides
    )
    assert total is not None
    if finish is None and dtype is wide:
        return total
    result = total
    return builder.pointwise(
        shape, dtype, device, lambda point: convert_total(point, builder.read(result, point)), strides=strides
    )


def _combine(total: Scalar, element: Scalar, greatest: bool) -> Scalar:
    return maximum(total, element) if greatest else add(total, element)


# means


def _mean(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    if not value.dtype.is_float:
        raise NotLowered("a mean of integers")
    wide = value.dtype.compute
    dims = _dims(call, value.shape, call.shape(builder))

    def term(point: Point, at: Point, mask: Scalar) -> Scalar:
        return cast(builder.read(value, at, mask=mask), wide)

    def finish(point: Point, total: Scalar) -> Scalar:
        return op("div", total, _divisor(call, dims, point[-len(dims) :], wide))

    limit = _count_unrolled(dims, call.fake.device)
    return _reduce_windows(
        builder, call.fake, [d.window for d in dims], term, wide, finish=finish, limit=limit
    )


def _divisor(call: Call, dims: Sequence[PooledDim], point: Sequence[Expr], wide: DType) -> Scalar:
    """Return what the sum over the window of output element `point` is divided by."""
    override = call.arguments.get("divisor_override")
    if override == 0:
        raise NotLowered("a division by zero, which eager refuses")
    if override is not None:
        return const(call.integer("divisor_override"), wide)
    counts = [
        d.window.count if d.elements is None else d.elements(o) for d, o in zip(dims, point, strict=True)
    ]
    known = as_int(multiply_all(counts))
    if known is not None:
        return const(known, wide)
    # a product of numbers, not of expressions: each belongs to one dimension and moves out of the loops of
    # others
    return functools.reduce(lambda a, b: op("mul", a, b), [cast(index(count), wide) for count in counts])


def _is_left_to_aten(device: torch.device) -> bool:
    return has_trait(device.type, PROCESSOR)


def _refuse_dear_gather(call: Call, dims: Sequence[PooledDim]) -> None:
    """Leave a CPU's derivative to ATen where a gather loses to ATen's scatter.

    A gather visits every window that may reach an element. Of many there is little to gain from fusion, and
    where windows are of different sizes each visit divides integers, which processors have no vector
    instruction for. Measured on one core, f32, gather against ATen: 13 x 13 maximum 3x and 5x slower, 7 x 7
    mean 2.3x and 1.5x, uneven adaptive mean 6x and 1.2x (contiguous and channels-last).

    Raises:
        NotLowered: this is such a derivative.
    """
    if not _is_left_to_aten(call.fake.device):
        return
    if not is_small([d.cover for d in dims], UNROLLED):
        raise NotLowered(f"more than {UNROLLED} windows over an element, on a CPU")
    if any(d.is_uneven for d in dims):
        raise NotLowered("windows of different sizes, on a CPU")


def _mean_backward(builder: Builder, call: Call) -> Value:
    grad = call.tensor("grad_output")
    wide = grad.dtype.compute
    dims = _dims(call, call.shape(builder), grad.shape)
    _refuse_dear_gather(call, dims)
    rank = len(dims)

    def term(point: Point, at: Point, mask: Scalar) -> Scalar:
        share = op(
            "div", cast(builder.read(grad, at, mask=mask), wide), _divisor(call, dims, at[-rank:], wide)
        )
        # windows beyond the border may have no elements to divide by
        fixed = call.arguments.get("divisor_override") is not None or all(d.elements is None for d in dims)
        return share if fixed else select(mask, share, like(0, share))

    limit = _count_unrolled(dims, call.fake.device)
    return _reduce_windows(builder, call.fake, [d.cover for d in dims], term, wide, limit=limit)


# maxima


def _max(builder: Builder, call: Call) -> Value:
    value = call.tensor("self")
    values, positions = call.result
    if value.dtype.is_bool:
        raise NotLowered("a maximum of booleans")
    if not value.dtype.is_float and "adaptive" in call.target:
        raise NotLowered("an adaptive maximum of integers, which eager refuses")
    dims = _dims(call, value.shape, builder.sizes.exprs(values.shape))
    wide = value.dtype.compute
    taps, limit = [d.window for d in dims], _count_unrolled(dims, values.device)
    if _is_read(call.node, 1) and not is_small(taps, limit) and _is_left_to_aten(values.device):
        # three walks over the window, for the maximum and the two searches, where ATen makes one: 2x slower
        raise NotLowered(f"positions in windows of more than {UNROLLED} elements, on a CPU")

    def element(point: Point, at: Point, mask: Scalar) -> Scalar:
        return cast(builder.read(value, at, mask=mask, other=lowest(value.dtype)), wide)

    greatest = _reduce_windows(builder, values, taps, element, wide, greatest=True, limit=limit)
    if not _is_read(call.node, 1):
        return (greatest, None)
    if is_small(taps, limit):
        return (greatest, _find_position_by_comparisons(builder, value, dims, element, positions))
    return (greatest, _search_position(builder, value, dims, element, positions, greatest))


def _is_read(node: torch.fx.Node, item: int) -> bool:
    """Tell whether result `item` of the call is used, or may be."""
    items = [user for user in node.users if user.args[1:] == (item,)]
    others = [user for user in node.users if len(user.args) != 2 or not isinstance(user.args[1], int)]
    return bool(others) or any(user.users for user in items)


def _find_position_by_comparisons(
    builder: Builder, value: TensorValue, dims: Sequence[PooledDim], element: Term, fake: torch.Tensor
) -> TensorValue:
    """Return the flat position of the maximum, by the comparisons that find the maximum itself."""
    rank, taps = len(dims), [d.window for d in dims]
    sizes = value.shape[-rank:]

    def body(point: Point) -> Scalar:
        outer, inner = point[:-rank], point[-rank:]
        result = list(iterate_taps(taps, inner))
        origin = flat_position(result[0][1], sizes)
        furthest = flat_position(result[-1][1], sizes) - origin
        # distances from the window's corner are small: half as many bits to carry along
        narrow = DType.I32 if fits_32_bits(furthest) else DType.I64
        start = tuple(d.first(o) for d, o in zip(dims, inner, strict=True))
        best = element(point, (*outer, *result[0][1]), result[0][2])
        distance = cast(index(flat_position(start, sizes) - origin), narrow)
        for _, at, mask in result[1:]:
            new = element(point, (*outer, *at), mask)
            taken = _wins(new, best)
            distance = select(taken, cast(index(flat_position(at, sizes) - origin), narrow), distance)
            best = maximum(best, new)
        return add(index(origin), cast(distance, DType.I64))

    return builder.pointwise(
        builder.sizes.exprs(fake.shape),
        DType.I64,
        format_device(fake.device),
        body,
        strides=builder.result_strides(fake),
    )


def _wins(new: Scalar, best: Scalar) -> Scalar:
    larger = gt(new, best)
    return logical_or(larger, op("isnan", new)) if new.dtype.is_float else larger


def _search_position(
    builder: Builder,
    value: TensorValue,
    dims: Sequence[PooledDim],
    element: Term,
    fake: torch.Tensor,
    greatest: TensorValue,
) -> TensorValue:
    """Return the flat position of the maximum, by a search for it: the smallest that has it, or the largest
    that is NaN.
    """
    rank, taps = len(dims), [d.window for d in dims]
    sizes = value.shape[-rank:]
    shape, device = builder.sizes.exprs(fake.shape), format_device(fake.device)
    strides, axes = builder.result_strides(fake), tuple(t.count for t in taps)

    def search(hit: Callable[[Scalar, Scalar], Scalar], *, last: bool) -> TensorValue:
        def body(point: Point, numbers: Point) -> Scalar:
            at, mask = find_tap(taps, point[-rank:], numbers)
            new = element(point, (*point[:-rank], *at), mask)
            best = cast(builder.read(greatest, point), new.dtype)
            miss = const(-1 if last else 2**62, DType.I64)
            return select(logical_and(mask, hit(new, best)), index(flat_position(at, sizes)), miss)

        (result,) = builder.reduce(
            "max" if last else "min", shape, axes, device, body, [DType.I64], strides=strides
        )
        assert result is not None
        return result

    equal = search(lambda new, best: op("eq", new, best), last=False)
    if not value.dtype.is_float:
        return equal
    unordered = search(lambda new, best: op("isnan", new), last=True)

    def choose_position(point: Point) -> Scalar:
        nan = builder.read(unordered, point)
        return select(op("lt", nan, like(0, nan)), builder.read(equal, point), nan)

    return builder.pointwise(shape, DType.I64, device, choose_position, strides=strides)


def _max_backward(builder: Builder, call: Call) -> Value:
    grad, positions = call.tensor("grad_output"), call.tensor("indices")
    value = call.tensor("self")
    dims = _dims(call, value.shape, grad.shape)
    _refuse_dear_gather(call, dims)
    rank, wide = len(dims), grad.dtype.compute
    sizes = value.shape[-rank:]

    def term(point: Point, at: Point, mask: Scalar) -> Scalar:
        chosen = builder.read(positions, at, mask=mask, other=-1)
        share = cast(builder.read(grad, at, mask=mask), wide)
        return select(op("eq", chosen, index(flat_position(point[-rank:], sizes))), share, like(0, share))

    limit = _count_unrolled(dims, call.fake.device)
    return _reduce_windows(builder, call.fake, [d.cover for d in dims], term, wide, limit=limit)


# ---- Fractional pooling ----


def _start(sample: Scalar, place: Expr, size: int, places: int, window: int, step_type: DType) -> Scalar:
    """Return where window `place` begins, in `i64`; the last ends with the image. Every step is rounded to
    `step_type`.
    """
    last = const(size - window, DType.I64)
    if places == 1:
        return last
    step = round_to(like((size - window) / (places - 1), sample), step_type)
    at = round_to(add(cast(index(place), sample.dtype), sample), step_type)
    ends = (cast(round_to(mul(item, step), step_type), DType.I64) for item in (at, sample))
    result = sub(*ends)
    return select(eq(index(place), index(as_expr(places - 1))), last, result)


def _pool(builder: Builder, call: Call) -> Value:
    value, samples = call.tensor("self"), call.tensor("random_samples")
    values, positions = call.result
    windows = call.integers("kernel_size")
    rank = len(windows)
    sizes, places = (
        [as_int(size) for size in shape[-rank:]] for shape in (value.shape, builder.sizes.exprs(values.shape))
    )
    taps = list(itertools.product(*(range(k) for k in windows)))
    if len(taps) > UNROLLED or not value.dtype.is_float or value.dtype.is_opaque:
        raise NotLowered("a large window, or elements that are no floats")
    if any(not n for n in (*sizes, *places)) or any(as_int(n) == 0 for n in value.shape):
        raise NotLowered("an image of a size that is not known, or empty")
    wide = value.dtype.compute
    # the type in which eager says where windows begin: accelerators do so in what they compute in
    step_type = value.dtype if has_trait(value.device, ATEN_CPU) else wide
    # of two dimensions, the first number is of the last
    numbers = [rank - 1 - k if rank == 2 else k for k in range(rank)]

    def find_largest(point: tuple[Expr, ...]) -> tuple[Scalar, Scalar]:
        outer, inner = point[:-rank], point[-rank:]
        batch = outer if len(outer) == 2 else (as_expr(0), *outer)
        starts = []
        for k, (size, many, window) in enumerate(zip(sizes, places, windows, strict=True)):
            sample = cast(builder.read(samples, (*batch, as_expr(numbers[k]))), wide)
            starts.append(_start(sample, inner[k], size or 0, many or 0, window, step_type))
        best: Scalar = const(0, wide)
        where: Scalar = const(0, DType.I64)
        for tap in taps:
            at = tuple(placeholder(k) + offset for k, offset in enumerate(tap))
            one = cast(builder.read(value, (*outer, *at), indirect=starts), wide)
            flat: Scalar = const(0, DType.I64)
            for start, offset, size in zip(starts, tap, sizes, strict=True):
                flat = add(mul(flat, like(size or 0, flat)), add(start, like(offset, flat)))
            if tap == taps[0]:
                best, where = one, flat
                continue
            # of several that are no numbers, the last
            better = logical_or(gt(one, best), op("isnan", one))
            best, where = select(better, one, best), select(better, flat, where)
        return best, where

    shape = builder.sizes.exprs(values.shape)

    def part(number: int, dtype: DType, strides: tuple[Expr, ...]) -> TensorValue:
        return builder.pointwise(
            shape,
            dtype,
            value.device,
            lambda point: cast(find_largest(point)[number], dtype),
            strides=strides,
        )

    return (
        part(0, value.dtype, builder.result_strides(values)),
        part(1, DType.I64, builder.result_strides(positions)),
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(overloads("max_pool2d_with_indices max_pool3d_with_indices"), _max),
    Rule(overloads("adaptive_max_pool2d adaptive_max_pool3d"), _max),
    Rule(overloads("max_pool2d_with_indices_backward max_pool3d_with_indices_backward"), _max_backward),
    Rule(overloads("adaptive_max_pool2d_backward adaptive_max_pool3d_backward"), _max_backward),
    Rule(overloads("avg_pool1d avg_pool2d avg_pool3d"), _mean),
    Rule(overloads("_adaptive_avg_pool2d _adaptive_avg_pool3d"), _mean),
    Rule(overloads("avg_pool2d_backward avg_pool3d_backward"), _mean_backward),
    Rule(overloads("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward"), _mean_backward),
    Rule(overloads("fractional_max_pool2d fractional_max_pool3d"), _pool),
)
