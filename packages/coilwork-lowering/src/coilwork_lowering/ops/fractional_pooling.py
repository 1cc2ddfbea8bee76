"""Maxima over windows of one size that begin where random numbers say (Graham, "Fractional max-pooling",
2014).
"""

from __future__ import annotations

import itertools
from typing import Final

from coilwork_ir.device_traits import ATEN_CPU, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue, Value
from coilwork_lowering.ops.elementwise import overloads
from coilwork_lowering.ops.pooling import UNROLLED
from coilwork_lowering.rules import Call, NotLowered, Rule
from coilwork_lowering.scalar_math import add, either, eq, gt, index, like, mul, round_to, select, sub


def _start(sample: Scalar, place: Expr, size: int, places: int, window: int, step_type: DType) -> Scalar:
    """Return where window `place` begins, in `i64`; the last ends with the image. Every step is rounded to
    `step_type`.
    """
    last = const(size - window, DType.I64)
    if places == 1:
        return last
    step = round_to(like((size - window) / (places - 1), sample), step_type)
    at = round_to(add(cast(index(place), sample.dtype), sample), step_type)
    ends = (cast(round_to(mul(one, step), step_type), DType.I64) for one in (at, sample))
    found = sub(*ends)
    return select(eq(index(place), index(as_expr(places - 1))), last, found)


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

    def found(point: tuple[Expr, ...]) -> tuple[Scalar, Scalar]:
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
            better = either(gt(one, best), op("isnan", one))
            best, where = select(better, one, best), select(better, flat, where)
        return best, where

    shape = builder.sizes.exprs(values.shape)

    def part(number: int, dtype: DType, strides: tuple[Expr, ...]) -> TensorValue:
        return builder.pointwise(
            shape, dtype, value.device, lambda point: cast(found(point)[number], dtype), strides=strides
        )

    return (
        part(0, value.dtype, builder.result_strides(values)),
        part(1, DType.I64, builder.result_strides(positions)),
    )


RULES: Final[tuple[Rule, ...]] = (Rule(overloads("fractional_max_pool2d fractional_max_pool3d"), _pool),)
