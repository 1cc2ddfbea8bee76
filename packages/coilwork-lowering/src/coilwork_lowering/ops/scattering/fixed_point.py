"""Sums of single elements in fixed point: integers are added by atomics, in any order, and their sum is
always the same.

Integers are multiples of a unit, a power of two. Which one, data say; there are two ways, both in the
program, and what data say chooses:

- Usual: exponents of all elements that are not zero are close together. Then two units serve all sums. A sum
  has two words, and each element is added to that of which it is a multiple: nothing of it is lost, and the
  sum is exact until it is rounded, to `f64` and then to `f32`. The units follow from the largest exponent of
  all: for runs of 65,536 elements they are 2^-45 and 2^-68 of it, and the smallest exponent may be 45 below
  it.
- Any: each sum has a unit of its own, which follows from the largest exponent among what is added to it.
  Those are found first, by a pass of atomic maxima. An element loses less than its sum's unit, which is 2^-30
  of the sum's largest element or less, 2^-45 for sums of up to 65,536; an addition in `f32` may lose 2^-24 of
  the sum so far. Infinities and NaN are counted.

(The idea is that of Demmel and Nguyen, Fast Reproducible Floating-Point Summation, ARITH 2013, with bins of
64 bits: one per sum that is at the sum's height, or two that are where they are for all sums.) The kernels of
the way that is not taken read two numbers. Few elements go the second way, whatever they are: it takes fewer
launches. Elements of which the graph says that all are one number are counted.

Compared with sorting, nothing is moved but what is added, once, if it has to be (`scattered_points.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int
from coilwork_ir.machine import MachineModel
from coilwork_ir.scalar import Scalar, cast, const, op
from coilwork_lowering.building.builder import Builder
from coilwork_lowering.building.values import TensorValue
from coilwork_lowering.ops.scattering.elements import Elements, Sums
from coilwork_lowering.ops.scattering.fixed_units import (
    BIAS,
    MANTISSA,
    NO_NUMBER,
    exponent_of,
    kind,
    last_if_zero,
    magnitude,
    scale_units,
    sum_not_numbers,
    whole_units,
)
from coilwork_lowering.ops.scattering.scattered_points import Points, Words, number_everywhere
from coilwork_lowering.scalar_math import add, both, either, eq, gt, invert, le, lt, mul, select, sub

# Elements whose sums are sure to have 30 bits: see `_unit_bits`.
_MOST: Final = 1 << 31
# Bytes of a sum: an integer and an exponent, or two integers.
_OWN_BYTES: Final = 12
_COMMON_BYTES: Final = 16


def fits_fixed_point(elements: Elements, machine: MachineModel) -> bool:
    """True if the elements are such that this is better than sorting; where sizes are unknown it
    may not be.
    """
    figures = machine.scatters
    count, sums = as_int(elements.count), as_int(elements.sums)
    if count is None or sums is None or elements.ordered or elements.dtype is not DType.F32:
        return False
    single = all(as_int(extent) == 1 for extent in elements.inner)
    shared = sums * figures.most_per_sum >= count
    fits = sums <= count * figures.most_sums_per_element + figures.few_sums
    return single and 0 < count < _MOST and shared and fits


def sums_in_fixed_point(builder: Builder, device: str, elements: Elements) -> Sums:
    """Append what sums each row's elements."""
    count, alike = as_int(elements.count), number_everywhere(builder, elements)
    many = alike is None and count is not None and count >= builder.machine_of(device).scatters.many_elements
    points = Points(builder, device, elements, row_bytes=_COMMON_BYTES if many else _OWN_BYTES)
    counts: list[TensorValue] = []

    def count_of(row: Expr) -> Scalar:
        if not counts:
            one = const(1, DType.I32)
            checked = alike is not None
            made = points.combined(DType.I32, "add", lambda number, key: one, name="counts", checked=checked)
            counts.append(made)
        return cast(points.at(counts[0], row), DType.I64)

    if alike is not None:
        value = _times(count_of, alike)
    else:
        common = _common_units(points, _unit_bits(elements)) if many else None
        value = _value_of(points, _unit_bits(elements), common)
    shape = (elements.sums, *elements.inner)
    values = builder.pointwise(
        shape, DType.F32, device, lambda point: value(point[0]), name=f"{builder.hint}_sums"
    )
    return Sums(values=values, count_of=count_of)


def _times(count_of: Callable[[Expr], Scalar], number: float) -> Callable[[Expr], Scalar]:
    """The sum of a row whose elements are `number`."""

    def value(row: Expr) -> Scalar:
        count = count_of(row)
        found = mul(cast(count, DType.F64), const(number, DType.F64))
        # of no infinities, zero
        some = lt(const(0, DType.I64), count)
        return cast(select(some, found, const(0.0, DType.F64)), DType.F32)

    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    """Units for all sums.

    Attributes:
        top: the largest biased exponent of an element.
        step: how far the second unit is below the first one, as an exponent: elements whose exponent is less
            than that below the `top` are multiples of the first, others of the second.
        serve: whether they do, for all elements. Then there are no infinities and NaN.
        second: whether there are multiples of the second one.
    """

    top: Scalar
    step: int
    serve: Scalar
    second: Scalar

    def is_first(self, exponent: Scalar) -> Scalar:
        """Tell if an element with this biased exponent is a multiple of the first unit."""
        return lt(sub(self.top, exponent), const(self.step, DType.I32))


def _common_units(points: Points, bits: int) -> _Common:
    top = exponent_of(points.extreme("max", magnitude))
    least = exponent_of(points.extreme("min", lambda number: last_if_zero(magnitude(number))))
    step = bits - MANTISSA + 1
    spread = sub(top, least)
    return _Common(
        top=top,
        step=step,
        serve=both(lt(top, const(NO_NUMBER, DType.I32)), lt(spread, const(2 * step, DType.I32))),
        second=le(const(step, DType.I32), spread),
    )


def _value_of(points: Points, bits: int, common: _Common | None) -> Callable[[Expr], Scalar]:
    """Append what adds elements up, with units of their sums' own unless the `common` ones serve; the sum of
    a row.
    """
    own = None if common is None else invert(common.serve)
    exponents = points.combined(
        DType.I32,
        "max",
        lambda number, key: exponent_of(magnitude(number)),
        name="exponents",
        adds=_adds,
        only=own,
        checked=True,
    )

    def multiple(number: Scalar, key: Scalar) -> Scalar:
        highest = points.read(exponents, key, only=own)
        special = eq(highest, const(NO_NUMBER, DType.I32))
        scale = sub(const(BIAS + bits, DType.I32), highest)
        if common is not None:
            first = sub(const(BIAS + bits, DType.I32), common.top)
            second = sub(const(BIAS + bits + common.step, DType.I32), common.top)
            shared = select(common.is_first(exponent_of(magnitude(number))), first, second)
            scale = select(common.serve, shared, scale)
        return select(special, kind(number), whole_units(number, scale))

    multiples = points.combined(
        DType.I64,
        "add",
        multiple,
        name="multiples",
        words=None if common is None else _two_words(common),
        adds=_adds,
        checked=common is not None,
    )

    def value(row: Expr) -> Scalar:
        total, exponent = points.at(multiples, row), points.at(exponents, row, only=own)
        height = sub(exponent, const(BIAS + bits, DType.I32))
        if common is None:
            found = scale_units(total, height)
        else:
            height = select(common.serve, sub(common.top, const(BIAS + bits, DType.I32)), height)
            used = both(common.serve, common.second)
            found = _join_units(total, points.at(multiples, row, word=1, only=used), height, common.step)
        special = eq(exponent, const(NO_NUMBER, DType.I32))
        return select(special, sum_not_numbers(total), cast(found, DType.F32))

    return value


def _two_words(common: _Common) -> Words:
    """Multiples of the first unit, or of a sum's own, then those of the second one."""
    zero, one = const(0, DType.I64), const(1, DType.I64)

    def of(number: Scalar) -> Scalar:
        first = either(invert(common.serve), common.is_first(exponent_of(magnitude(number))))
        return select(first, zero, one)

    def used(word: Scalar) -> Scalar:
        return either(eq(word, zero), both(common.serve, common.second))

    return Words(count=2, of=of, used=used)


def _join_units(first: Scalar, second: Scalar, height: Scalar, step: int) -> Scalar:
    """The sum of multiples of two units, an `f64`: as if it had been made of integers as long as it takes,
    and rounded.
    """
    shift = const(step, DType.I64)
    # what is a multiple of the first unit goes there: what is left of the second cannot cancel what was
    # rounded
    carried = op("rshift", second, shift)
    left = sub(second, op("lshift", carried, shift))
    below = sub(height, const(step, DType.I32))
    return add(scale_units(add(first, carried), height), scale_units(left, below))


def _adds(number: Scalar) -> Scalar:
    """Tell if adding the number may make a difference: zeros need no place in memory."""
    return gt(magnitude(number), const(0, DType.I32))


def _unit_bits(elements: Elements) -> int:
    """The exponent of the largest element over that of its sum's unit, such that all elements together are
    below 2^62.

    There would be room for one bit more. But elements may be computed again for each pass, and then be
    rounded another way in one of them: past the largest that another has seen.
    """
    most = as_int(elements.run_length)
    assert most is not None
    return 61 - max(most - 1, 1).bit_length()
