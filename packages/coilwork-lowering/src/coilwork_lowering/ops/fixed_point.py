"""Sums of single elements in fixed point: integers are added by atomics, in any order, and their sum is always the same.

Each sum has a unit of its own, a power of two that follows from the largest exponent among what is added to it. So there are two
passes over the elements: the first finds the largest exponents, by atomic maxima, the second adds elements as multiples of the
units, by atomic additions of 64-bit integers. An element loses less than its sum's unit, which is 2^-30 of the largest element or
less, 2^-45 for sums of up to 65,536; an addition in `f32` may lose 2^-24 of the sum so far. (The idea is that of Demmel and Nguyen,
Fast Reproducible Floating-Point Summation, ARITH 2013, with a bin of 64 bits, and one per sum.)

Compared with sorting, nothing is moved but what is added, once, if it has to be. What elements are added to should stay in a cache
while they are. So elements of several runs are taken a few neighbouring runs at a time, where they lie; or, where the sums of a few
runs are too many for that, they are laid out run by run first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.ops import StoreMode
from coilwork_ir.scalar import Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.simplify import simplified
from coilwork_lowering.building.values import TensorValue, coordinate_symbols, whole
from coilwork_lowering.ops.elements import Elements, Sums
from coilwork_lowering.scalar_math import add, both, eq, index, lt, maximum, mul, select, sub

# Elements per sum, in the mean, above which many would wait for each other at the same place in memory.
_MOST_PER_SUM: Final = 64
# Sums per element, and sums in any case, above which their 12 bytes each are more than sorting moves and keeps.
_MOST_PER_ELEMENT: Final = 4
_FEW_SUMS: Final = 1 << 18
# Sums of neighbouring runs that are added to at a time, with their exponents 12 bytes each: half an H200's second-level cache. And
# neighbours that are worth while: a sector of memory, of 32 bytes.
_NEAR_SUMS: Final = 1 << 21
_FEW_RUNS: Final = 8
# Elements whose sums are sure to have 30 bits: see `_unit_bits`.
_MOST: Final = 1 << 31
# Of `f32` and `f64`: bits behind the exponent, and what is added to it.
_MANTISSA, _BIAS = 23, 127
_WIDE_MANTISSA, _WIDE_BIAS = 52, 1023
# The exponent of infinities and NaN. How many there are of either sign, a NaN for both, is counted in halves of the sum.
_NO_NUMBER: Final = 255
_HALF: Final = 32


def fits_fixed_point(elements: Elements) -> bool:
    """Whether the elements are such that this is better than sorting; where sizes are unknown it may not be."""
    count, sums = as_int(elements.count), as_int(elements.sums)
    if count is None or sums is None or elements.ordered or elements.dtype is not DType.F32:
        return False
    single = all(as_int(extent) == 1 for extent in elements.inner)
    shared = sums * _MOST_PER_SUM >= count
    return single and 0 < count < _MOST and shared and sums <= count * _MOST_PER_ELEMENT + _FEW_SUMS


def sums_in_fixed_point(builder: Builder, device: str, elements: Elements) -> Sums:
    """Append what sums each row's elements."""
    points = _Points(builder, device, elements)
    exponents = points.combined(
        DType.I32, "max", lambda number, key: _exponent(number), name="exponents", checked=True
    )
    bits = _unit_bits(elements)

    def multiple(number: Scalar, key: Scalar) -> Scalar:
        exponent = points.read(exponents, key)
        unit = _power_of_two(sub(const(_BIAS + bits, DType.I32), exponent))
        whole_units = cast(mul(cast(number, DType.F64), unit), DType.I64)
        return select(eq(exponent, const(_NO_NUMBER, DType.I32)), _kind(number), whole_units)

    multiples = points.combined(DType.I64, "add", multiple, name="multiples")

    def value(point: tuple[Expr, ...]) -> Scalar:
        total, exponent = points.at(multiples, point[0]), points.at(exponents, point[0])
        unit = _power_of_two(sub(exponent, const(_BIAS + bits, DType.I32)))
        number = cast(mul(cast(total, DType.F64), unit), DType.F32)
        return select(eq(exponent, const(_NO_NUMBER, DType.I32)), _without_number(total), number)

    shape = (elements.sums, *elements.inner)
    values = builder.pointwise(shape, DType.F32, device, value, name=f"{builder.hint}_sums")
    counts: list[TensorValue] = []

    def count_of(row: Expr) -> Scalar:
        if not counts:
            one = const(1, DType.I64)
            counts.append(points.combined(DType.I64, "add", lambda number, key: one, name="counts"))
        return points.at(counts[0], row)

    return Sums(values=values, count_of=count_of)


def _unit_bits(elements: Elements) -> int:
    """The exponent of the largest element over that of its sum's unit, such that all elements together are below 2^62."""
    most = as_int(elements.run_length)
    assert most is not None
    return 61 - max(most - 1, 1).bit_length()


def _bits(number: Scalar) -> Scalar:
    return op("bitcast", number, dtype=DType.I32)


def _exponent(number: Scalar) -> Scalar:
    """The biased exponent of an `f32`, an `i32`: 1 for the numbers around zero, whose bits are multiples of the same unit."""
    shifted = op("rshift", _bits(number), const(_MANTISSA, DType.I32))
    return maximum(op("bitwise_and", shifted, const(_NO_NUMBER, DType.I32)), const(1, DType.I32))


def _power_of_two(exponent: Scalar) -> Scalar:
    """2 to the `exponent`, an `f64`."""
    biased = cast(add(exponent, const(_WIDE_BIAS, DType.I32)), DType.I64)
    return op("bitcast", op("lshift", biased, const(_WIDE_MANTISSA, DType.I64)), dtype=DType.F64)


def _kind(number: Scalar) -> Scalar:
    """What infinity, its negative, NaN and a number add to a sum that is none."""
    positive, negative = const(1, DType.I64), const(1 << _HALF, DType.I64)
    zero = const(0, DType.I64)
    finite = lt(_exponent(number), const(_NO_NUMBER, DType.I32))
    infinite = select(lt(number, const(0.0, DType.F32)), negative, positive)
    found = select(op("isnan", number), add(positive, negative), infinite)
    return select(finite, zero, found)


def _without_number(total: Scalar) -> Scalar:
    """The sum of what is no number, and of numbers, by how many of either sign were added."""
    infinity = float("inf")
    negative = op("rshift", total, const(_HALF, DType.I64))
    positive = sub(total, op("lshift", negative, const(_HALF, DType.I64)))
    some, others = (lt(const(0, DType.I64), count) for count in (positive, negative))
    one_sign = select(some, const(infinity, DType.F32), const(-infinity, DType.F32))
    return select(both(some, others), const(float("nan"), DType.F32), one_sign)


def _neighbours(elements: Elements) -> int:
    """How many neighbouring runs are taken at a time where the elements lie: as many as share them evenly; 1 if those are too few."""
    runs, rows = as_int(elements.runs), as_int(elements.rows)
    if runs is None or rows is None:
        return 1
    most = _NEAR_SUMS // max(rows, 1)
    best = next((n for n in range(min(runs, most), 0, -1) if runs % n == 0), 1)
    return best if best >= min(runs, _FEW_RUNS) else 1


class _Points:
    """The elements as points of a space, and memory for what their rows get, in groups of neighbouring runs.

    Points are of `groups x run_length x width` and memory is of `groups x rows x width`: group by group, and within one as the elements
    lie. `width` is 1 where they have been laid out run by run.
    """

    def __init__(self, builder: Builder, device: str, elements: Elements) -> None:
        self._builder, self._device, self._elements = builder, device, elements
        self._width = as_expr(_neighbours(elements))
        self._groups = floordiv(elements.runs, self._width)
        self._shape = (self._groups, elements.run_length, self._width)
        laid_out = not elements.one_run and as_int(self._width) == 1
        self._stored = (self._keys(), self._numbers()) if laid_out else None

    def combined(
        self,
        dtype: DType,
        mode: StoreMode,
        value: Callable[[Scalar, Scalar], Scalar],
        *,
        name: str,
        checked: bool = False,
    ) -> TensorValue:
        """Zeros, with which `value` of every element and of its key is combined where its row is.

        With `checked`, keys are checked on the way, unless they were when they were stored.
        """
        elements, builder = self._elements, self._builder
        shape = (self._groups, elements.rows, self._width)
        name = f"{builder.hint}_{name}"
        zeros = builder.pointwise(
            shape, dtype, self._device, lambda point: const(0, dtype), name=f"{name}_zero"
        )
        point = coordinate_symbols("i", self._shape)
        key = simplified(self._key(point))
        output = builder.declare(shape, dtype, self._device, name=name)
        builder.add(
            Scatter(
                output=output,
                into=zeros.buffer.name,
                ranges=node_ranges("i", self._shape),
                index=(point[0], placeholder(0), point[2]),
                indirect=(key,),
                value=simplified(value(self._number(point), key)),
                mode=mode,
                mask=self._belongs(key),
                checks=self._checks(point) if checked and self._stored is None else (),
                origins=builder.origins,
            )
        )
        builder.buffers.overwrite(zeros.buffer.name, output)
        return whole(output)

    def read(self, made: TensorValue, key: Scalar) -> Scalar:
        """What `combined` made for the row of the element whose key is `key`; 0 for one that is left out."""
        group, _, neighbour = coordinate_symbols("i", self._shape)
        at = (group, placeholder(0), neighbour)
        return self._builder.read(made, at, indirect=(key,), mask=self._belongs(key))

    def at(self, made: TensorValue, row: Expr) -> Scalar:
        """What `combined` made for `row`."""
        runs = self._elements.runs
        run = mod(row, runs)
        at = (floordiv(run, self._width), floordiv(row, runs), mod(run, self._width))
        return self._builder.read(made, at)

    def _belongs(self, key: Scalar) -> Scalar | None:
        """Whether the element is added to a row; None if all are."""
        return None if self._elements.all_rows else lt(key, index(self._elements.rows))

    def _flat(self, point: tuple[Expr, ...]) -> Expr:
        group, position, neighbour = point
        return (group * self._width + neighbour) * self._elements.run_length + position

    def _checks(self, point: tuple[Expr, ...]) -> tuple[Check, ...]:
        return tuple(self._elements.checks(self._flat(point))) if self._builder.options.checks else ()

    def _key(self, point: tuple[Expr, ...]) -> Scalar:
        if self._stored is None:
            return self._elements.key(self._flat(point))
        narrow = self._builder.read(self._stored[0], (self._flat(point),))
        return add(cast(narrow, DType.I64), const(self._elements.key_type[1], DType.I64))

    def _number(self, point: tuple[Expr, ...]) -> Scalar:
        flat = self._flat(point)
        if self._stored is not None:
            return self._builder.read(self._stored[1], (flat,))
        return self._value(flat)

    def _value(self, flat: Expr) -> Scalar:
        point = (as_expr(0),) * len(self._elements.inner)
        return self._elements.value(flat, index(flat), point, const(True, DType.BOOL))

    def _keys(self) -> TensorValue:
        width, offset = self._elements.key_type
        return self._laid_out(
            width,
            lambda flat: cast(sub(self._elements.key(flat), const(offset, DType.I64)), width),
            checks=self._elements.checks,
            name=f"{self._builder.hint}_keys",
        )

    def _numbers(self) -> TensorValue:
        return self._laid_out(DType.F32, self._value, name=f"{self._builder.hint}_numbers")

    def _laid_out(
        self,
        dtype: DType,
        value: Callable[[Expr], Scalar],
        *,
        checks: Callable[[Expr], Sequence[Check]] | None = None,
        name: str,
    ) -> TensorValue:
        """`value` of every element in memory, read as the runs may lie side by side, written one behind the other."""
        elements, builder = self._elements, self._builder
        length = elements.run_length

        def flat(point: tuple[Expr, ...]) -> Expr:
            return point[1] * length + point[0]

        made = builder.pointwise(
            (length, elements.runs),
            dtype,
            self._device,
            lambda point: value(flat(point)),
            checks=None if checks is None else lambda point: checks(flat(point)),
            strides=(as_expr(1), length),
            name=name,
        )
        # a view: what reads it finds memory, and no expression to compute once more
        return builder.view(made.buffer, (elements.count,), (as_expr(1),), as_expr(0))
