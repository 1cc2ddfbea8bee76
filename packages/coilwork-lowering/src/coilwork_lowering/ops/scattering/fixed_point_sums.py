"""Sums of single elements in fixed point, by atomic additions of integers.

Integer additions commute, so the sums are the same in any order. The integers are multiples of a unit, a
power of two that the data determine. The program holds two ways, and the data choose between them:

- Common units: the exponents of all elements but zeros are close together. Two units then serve all sums. A
  sum has two words, and each element is added to the word whose unit divides it. Nothing is lost, so the sum
  is exact until it is rounded to `f64` and then to `f32`. For runs of 65,536 elements the units are 2^-45 and
  2^-68 of the largest exponent, and the smallest exponent may be 45 below it.
- Own units: each sum has a unit of its own, from the largest exponent among its elements. A pass of atomic
  maxima finds those first. An element loses less than its sum's unit: at most 2^-30 of the sum's largest
  element, 2^-45 for sums of up to 65,536. An addition in `f32` may lose 2^-24 of the sum so far. Infinities
  and NaN are counted.

The idea is that of Demmel and Nguyen, Fast Reproducible Floating-Point Summation, ARITH 2013, with bins of 64
bits. The kernels of the way that is not taken read two numbers. Few elements always take own units, which
need fewer launches. Elements that the graph knows to be one number are counted.

Unlike sorting, this moves nothing but the elements, and at most once. The memory that atomics update should
stay in a cache. So a few neighbouring runs of elements are added at a time where they lie, or, where a few
runs need too much memory, elements are first laid out run by run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, symbol
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.machine import MachineModel
from coilwork_ir.ops import ReduceKind, StoreMode
from coilwork_ir.scalar import (
    Const,
    Load,
    Scalar,
    cast,
    const,
    iterate_postorder,
    load,
    op,
    placeholder,
    rewrite,
)
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, make_coordinate_symbols, make_whole_value
from coilwork_lowering.ops.scattering.elements import Elements, Sums
from coilwork_lowering.scalar_math import (
    add,
    eq,
    gt,
    index,
    invert,
    le,
    logical_and,
    logical_or,
    lt,
    maximum,
    mul,
    select,
    sub,
)

# ---- Bits and units ----


# Of `f32` and `f64`: bits behind the exponent, and what is added to it.
MANTISSA: Final = 23
BIAS: Final = 127
_WIDE_MANTISSA, _WIDE_BIAS = 52, 1023
# The exponent of infinities and NaN. How many there are of either sign, a NaN for both, is counted in halves
# of the sum.
NO_NUMBER: Final = 255
_HALF_BITS: Final = 32
# Of an `f32`, all bits but the sign. Those of the largest NaN are as many as there are.
_UNSIGNED: Final = (1 << 31) - 1


def read_magnitude(number: Scalar) -> Scalar:
    """Return the bits of an `f32` without its sign, an `i32`: ordered as magnitudes are, infinity behind all
    numbers, NaN behind it.
    """
    return op("bitwise_and", op("bitcast", number, dtype=DType.I32), const(_UNSIGNED, DType.I32))


def put_zero_last(bits: Scalar) -> Scalar:
    """Return a `magnitude`; that of zero is greater than those of all numbers."""
    return select(lt(const(0, DType.I32), bits), bits, const(_UNSIGNED, DType.I32))


def read_exponent(bits: Scalar) -> Scalar:
    """Return the biased exponent of a `magnitude`, an `i32`: 1 for the numbers around zero, whose bits are
    multiples of the same unit.
    """
    return maximum(op("rshift", bits, const(MANTISSA, DType.I32)), const(1, DType.I32))


def power_of_two(exponent: Scalar) -> Scalar:
    """Return 2 to the `exponent`, an `f64`."""
    biased = cast(add(exponent, const(_WIDE_BIAS, DType.I32)), DType.I64)
    return op("bitcast", op("lshift", biased, const(_WIDE_MANTISSA, DType.I64)), dtype=DType.F64)


def count_units(number: Scalar, exponent: Scalar) -> Scalar:
    """Convert a number to units of 2 to minus the `exponent`, an `i64`, without what is behind the point."""
    return cast(mul(cast(number, DType.F64), power_of_two(exponent)), DType.I64)


def scale_units(units: Scalar, exponent: Scalar) -> Scalar:
    """Return `units` times 2 to the `exponent`, as an `f64`."""
    return mul(cast(units, DType.F64), power_of_two(exponent))


def classify_number(number: Scalar) -> Scalar:
    """Return what infinity, its negative, NaN and a number add to a count of special values."""
    positive, negative = const(1, DType.I64), const(1 << _HALF_BITS, DType.I64)
    zero = const(0, DType.I64)
    finite = lt(read_exponent(read_magnitude(number)), const(NO_NUMBER, DType.I32))
    infinite = select(lt(number, const(0.0, DType.F32)), negative, positive)
    result = select(op("isnan", number), add(positive, negative), infinite)
    return select(finite, zero, result)


def sum_not_numbers(total: Scalar) -> Scalar:
    """The sum of what is no number, and of numbers, by how many of either sign were added."""
    infinity = float("inf")
    negative = op("rshift", total, const(_HALF_BITS, DType.I64))
    positive = sub(total, op("lshift", negative, const(_HALF_BITS, DType.I64)))
    some, others = (lt(const(0, DType.I64), count) for count in (positive, negative))
    one_sign = select(some, const(infinity, DType.F32), const(-infinity, DType.F32))
    return select(logical_and(some, others), const(float("nan"), DType.F32), one_sign)


# ---- Points and their memory ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a row: how many, which of them an element is combined with, and, in a loop over them,
    whether one is used at all.
    """

    count: int
    choose: Callable[[Scalar], Scalar]
    is_used: Callable[[Scalar], Scalar]


class Points:
    """The elements as points of a space, and memory for what their rows get, in groups of neighbouring runs.

    Points are of `groups x run_length x width` and memory is of `groups x words x rows x width`: group by
    group, and within one as the elements lie. `width` is 1 where they have been laid out run by run.
    `row_bytes` is how much memory a row has in all, which decides about it.
    """

    def __init__(self, builder: Builder, device: str, elements: Elements, *, row_bytes: int) -> None:
        self._builder, self._device, self._elements = builder, device, elements
        near = builder.options.resident_bytes // row_bytes
        few = builder.machine_of(device).scatters.few_runs
        self._width = as_expr(_count_neighbours(elements, near, few))
        self._groups = floordiv(elements.runs, self._width)
        self._shape = (self._groups, elements.run_length, self._width)
        laid_out = not elements.has_one_run and as_int(self._width) == 1
        self._stored = (self._keys(), self._numbers()) if laid_out else None

    def extreme(self, which: ReduceKind, value: Callable[[Scalar], Scalar]) -> Scalar:
        """Return the largest or smallest `value` of an element, an `i32`, those that belong to no row among
        them.
        """
        length = self._elements.run_length

        def body(_: tuple[Expr, ...], point: tuple[Expr, ...]) -> Scalar:
            # side by side, as runs may lie, or one behind the other, as they do where they have been laid out
            flat = point[0] if len(point) == 1 else point[1] * length + point[0]
            return value(self._number_at(flat))

        one_behind_the_other = self._elements.has_one_run or self._stored is not None
        axes = (self._elements.count,) if one_behind_the_other else (length, self._elements.runs)
        (result,) = self._builder.reduce(which, (), axes, self._device, body, (DType.I32,))
        assert result is not None
        return self._builder.read(result, ())

    def combine(
        self,
        dtype: DType,
        mode: StoreMode,
        value: Callable[[Scalar, Scalar], Scalar],
        *,
        name: str,
        words: Words | None = None,
        adds: Callable[[Scalar], Scalar] | None = None,
        only: Scalar | None = None,
        checked: bool = False,
    ) -> TensorValue:
        """Return zeros into which `value` of every element and its key is combined, at its row, in one of its
        `words`.

        Elements of which `adds` does not hold are left out. Where `only`, which is the same for all of them,
        does not hold, nothing is read and nothing is written: the result is memory that holds nothing. With
        `checked`, keys are checked on the way, unless they were when they were stored.
        """
        elements, builder = self._elements, self._builder
        shape = (self._groups, as_expr(1 if words is None else words.count), elements.rows, self._width)
        name = f"{builder.hint}_{name}"
        used = None if words is None else words.is_used(index(make_coordinate_symbols("i", shape)[1]))
        zeros = self._zeros(dtype, shape, f"{name}_zero", only if used is None else used)
        point = make_coordinate_symbols("i", self._shape)
        key, number = self._key(point), self._number(point)
        indirect = (key,) if words is None else (key, words.choose(number))
        mask = _combine_conditions(self._belongs(key), None if adds is None else adds(number))
        output = builder.declare(shape, dtype, self._device, name=name)
        builder.add(
            Scatter(
                output=output,
                into=zeros.buffer.name,
                ranges=make_node_ranges("i", self._shape),
                index=(point[0], as_expr(0) if words is None else placeholder(1), placeholder(0), point[2]),
                indirect=tuple(simplify(_mask_reads(only, item)) for item in indirect),
                value=simplify(_mask_reads(only, value(number, key))),
                mode=mode,
                mask=only if mask is None else simplify(_mask_reads(only, _conjoin(only, mask))),
                checks=self._checks(point, only) if checked and self._stored is None else (),
                origins=builder.origins,
            )
        )
        builder.buffers.overwrite(zeros.buffer.name, output)
        return make_whole_value(output)

    def read(self, made: TensorValue, key: Scalar, *, only: Scalar | None = None) -> Scalar:
        """Return what `combine` made for the row of the element whose key is `key`; 0 for one that is left
        out, and without `only`.
        """
        group, _, neighbour = make_coordinate_symbols("i", self._shape)
        at = (group, as_expr(0), placeholder(0), neighbour)
        return self._builder.read(
            made, at, indirect=(key,), mask=_combine_conditions(only, self._belongs(key))
        )

    def read_row(self, made: TensorValue, row: Expr, *, word: int = 0, only: Scalar | None = None) -> Scalar:
        """Return what `combine` made for `row`; 0 where `only` does not hold."""
        runs = self._elements.runs
        run = mod(row, runs)
        at = (floordiv(run, self._width), as_expr(word), floordiv(row, runs), mod(run, self._width))
        return self._builder.read(made, at, mask=only)

    def _zeros(self, dtype: DType, shape: tuple[Expr, ...], name: str, used: Scalar | None) -> TensorValue:
        builder, zero = self._builder, const(0, dtype)
        if used is None:
            return builder.pointwise(shape, dtype, self._device, lambda point: zero, name=name)
        output = builder.declare(shape, dtype, self._device, name=name)
        builder.add(
            Scatter(
                output=output,
                ranges=make_node_ranges("i", shape),
                index=make_coordinate_symbols("i", shape),
                indirect=(),
                value=zero,
                mode="store",
                mask=simplify(used),
                covers=True,
                origins=builder.origins,
            )
        )
        return make_whole_value(output)

    def _belongs(self, key: Scalar) -> Scalar | None:
        """Tell if the element is added to a row; None if all are."""
        return None if self._elements.all_rows else lt(key, index(self._elements.rows))

    def _flat(self, point: tuple[Expr, ...]) -> Expr:
        group, position, neighbour = point
        return (group * self._width + neighbour) * self._elements.run_length + position

    def _checks(self, point: tuple[Expr, ...], only: Scalar | None) -> tuple[Check, ...]:
        if not self._builder.options.checks:
            return ()
        result = tuple(self._elements.checks(self._flat(point)))
        if only is None:
            return result
        return tuple(
            Check(
                condition=simplify(logical_or(invert(only), _mask_reads(only, check.condition))),
                message=check.message,
                error=check.error,
            )
            for check in result
        )

    def _key(self, point: tuple[Expr, ...]) -> Scalar:
        if self._stored is None:
            return self._elements.key(self._flat(point))
        narrow = self._builder.read(self._stored[0], (self._flat(point),))
        return add(cast(narrow, DType.I64), const(self._elements.key_type[1], DType.I64))

    def _number(self, point: tuple[Expr, ...]) -> Scalar:
        return self._number_at(self._flat(point))

    def _number_at(self, flat: Expr) -> Scalar:
        return self._value(flat) if self._stored is None else self._builder.read(self._stored[1], (flat,))

    def _value(self, flat: Expr) -> Scalar:
        point = (as_expr(0),) * len(self._elements.inner)
        return self._elements.value(flat, index(flat), point, const(True, DType.BOOL))

    def _keys(self) -> TensorValue:
        width, offset = self._elements.key_type
        return self._lay_out(
            width,
            lambda flat: cast(sub(self._elements.key(flat), const(offset, DType.I64)), width),
            checks=self._elements.checks,
            name=f"{self._builder.hint}_keys",
        )

    def _numbers(self) -> TensorValue:
        return self._lay_out(DType.F32, self._value, name=f"{self._builder.hint}_numbers")

    def _lay_out(
        self,
        dtype: DType,
        value: Callable[[Expr], Scalar],
        *,
        checks: Callable[[Expr], Sequence[Check]] | None = None,
        name: str,
    ) -> TensorValue:
        """`value` of every element in memory, read as the runs may lie side by side, written one behind the
        other.
        """
        elements, builder = self._elements, self._builder
        length = elements.run_length

        def flat(point: tuple[Expr, ...]) -> Expr:
            return point[1] * length + point[0]

        result = builder.pointwise(
            (length, elements.runs),
            dtype,
            self._device,
            lambda point: value(flat(point)),
            checks=None if checks is None else lambda point: checks(flat(point)),
            strides=(as_expr(1), length),
            name=name,
        )
        # a view: what reads it finds memory, and no expression to compute once more
        return builder.view(result.buffer, (elements.count,), (as_expr(1),), as_expr(0))


def find_uniform_number(builder: Builder, elements: Elements) -> float | None:
    """Return the number that all elements are; None where the graph does not say so."""
    flat = symbol("i0", extent=elements.count)
    point = (as_expr(0),) * len(elements.inner)

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or node.mask is not None:
            return node
        result = builder.number_everywhere(make_whole_value(builder.buffers[node.buffer]))
        return node if result is None else result

    value = elements.value(flat, index(flat), point, const(True, DType.BOOL))
    result = simplify(rewrite((value,), visit)[0])
    if not isinstance(result, Const):
        return None
    # a literal stands for the nearest `f32`
    return float(torch.tensor(result.value, dtype=torch.float32).item())


def _count_neighbours(elements: Elements, near: int, few: int) -> int:
    """Return how many neighbouring runs are taken at a time, with up to `near` rows in all.

    The number divides the runs evenly; it is 1 if they are `few`.
    """
    runs, rows = as_int(elements.runs), as_int(elements.rows)
    if runs is None or rows is None:
        return 1
    most = near // max(rows, 1)
    best = next((n for n in range(min(runs, most), 0, -1) if runs % n == 0), 1)
    return best if best >= min(runs, few) else 1


def _conjoin(first: Scalar | None, second: Scalar) -> Scalar:
    return second if first is None else logical_and(first, second)


def _combine_conditions(*conditions: Scalar | None) -> Scalar | None:
    """Tell if all of those that are given hold; None if none is."""
    result: Scalar | None = None
    for condition in conditions:
        result = result if condition is None else _conjoin(result, condition)
    return result


def _mask_reads(where: Scalar | None, value: Scalar) -> Scalar:
    """`value`, that reads nothing but what `where` itself does where that does not hold; what it then is does
    not matter.
    """
    if where is None:
        return value
    own = frozenset(node for node in iterate_postorder((where,)) if isinstance(node, Load))

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or node in own:
            return node
        mask = where if node.mask is None else logical_and(where, node.mask)
        return load(node.buffer, node.index, node.dtype, indirect=node.indirect, mask=mask, other=node.other)

    return rewrite((value,), visit)[0]


# ---- Sums ----


# Elements whose sums are sure to have 30 bits: see `_unit_bits`.
_MOST_ELEMENTS: Final = 1 << 31
# Bytes of a sum: an integer and an exponent, or two integers.
_OWN_BYTES: Final = 12
_COMMON_BYTES: Final = 16


def can_sum_in_fixed_point(elements: Elements, machine: MachineModel) -> bool:
    """Tell if fixed point is better than sorting for these elements; False where sizes are unknown."""
    figures = machine.scatters
    count, sums = as_int(elements.count), as_int(elements.sums)
    if count is None or sums is None or elements.ordered or elements.dtype is not DType.F32:
        return False
    single = all(as_int(extent) == 1 for extent in elements.inner)
    shared = sums * figures.most_per_sum >= count
    fits = sums <= count * figures.most_sums_per_element + figures.few_sums
    return single and 0 < count < _MOST_ELEMENTS and shared and fits


def sum_in_fixed_point(builder: Builder, device: str, elements: Elements) -> Sums:
    """Append what sums each row's elements."""
    count, alike = as_int(elements.count), find_uniform_number(builder, elements)
    many = alike is None and count is not None and count >= builder.machine_of(device).scatters.many_elements
    points = Points(builder, device, elements, row_bytes=_COMMON_BYTES if many else _OWN_BYTES)
    counts: list[TensorValue] = []

    def count_of(row: Expr) -> Scalar:
        if not counts:
            one = const(1, DType.I32)
            checked = alike is not None
            result = points.combine(DType.I32, "add", lambda number, key: one, name="counts", checked=checked)
            counts.append(result)
        return cast(points.read_row(counts[0], row), DType.I64)

    if alike is not None:
        value = _repeat_number(count_of, alike)
    else:
        common = _find_common_units(points, _unit_bits(elements)) if many else None
        value = _sum_multiples(points, _unit_bits(elements), common)
    shape = (elements.sums, *elements.inner)
    values = builder.pointwise(
        shape, DType.F32, device, lambda point: value(point[0]), name=f"{builder.hint}_sums"
    )
    return Sums(values=values, count_of=count_of)


def _repeat_number(count_of: Callable[[Expr], Scalar], number: float) -> Callable[[Expr], Scalar]:
    """Return the sum of a row whose elements are `number`."""

    def value(row: Expr) -> Scalar:
        count = count_of(row)
        result = mul(cast(count, DType.F64), const(number, DType.F64))
        # of no infinities, zero
        some = lt(const(0, DType.I64), count)
        return cast(select(some, result, const(0.0, DType.F64)), DType.F32)

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


def _find_common_units(points: Points, bits: int) -> _Common:
    top = read_exponent(points.extreme("max", read_magnitude))
    least = read_exponent(points.extreme("min", lambda number: put_zero_last(read_magnitude(number))))
    step = bits - MANTISSA + 1
    spread = sub(top, least)
    return _Common(
        top=top,
        step=step,
        serve=logical_and(lt(top, const(NO_NUMBER, DType.I32)), lt(spread, const(2 * step, DType.I32))),
        second=le(const(step, DType.I32), spread),
    )


def _sum_multiples(points: Points, bits: int, common: _Common | None) -> Callable[[Expr], Scalar]:
    """Append what adds elements up, with units of their sums' own unless the `common` ones serve; the sum of
    a row.
    """
    own = None if common is None else invert(common.serve)
    exponents = points.combine(
        DType.I32,
        "max",
        lambda number, key: read_exponent(read_magnitude(number)),
        name="exponents",
        adds=_is_not_zero,
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
            shared = select(common.is_first(read_exponent(read_magnitude(number))), first, second)
            scale = select(common.serve, shared, scale)
        return select(special, classify_number(number), count_units(number, scale))

    multiples = points.combine(
        DType.I64,
        "add",
        multiple,
        name="multiples",
        words=None if common is None else _compute_two_words(common),
        adds=_is_not_zero,
        checked=common is not None,
    )

    def value(row: Expr) -> Scalar:
        total, exponent = points.read_row(multiples, row), points.read_row(exponents, row, only=own)
        height = sub(exponent, const(BIAS + bits, DType.I32))
        if common is None:
            result = scale_units(total, height)
        else:
            height = select(common.serve, sub(common.top, const(BIAS + bits, DType.I32)), height)
            used = logical_and(common.serve, common.second)
            result = _join_units(
                total, points.read_row(multiples, row, word=1, only=used), height, common.step
            )
        special = eq(exponent, const(NO_NUMBER, DType.I32))
        return select(special, sum_not_numbers(total), cast(result, DType.F32))

    return value


def _compute_two_words(common: _Common) -> Words:
    """Return the words of common units: multiples of the first unit, or of a sum's own, then of the second
    unit.
    """
    zero, one = const(0, DType.I64), const(1, DType.I64)

    def choose_word(number: Scalar) -> Scalar:
        first = logical_or(invert(common.serve), common.is_first(read_exponent(read_magnitude(number))))
        return select(first, zero, one)

    def is_word_used(word: Scalar) -> Scalar:
        return logical_or(eq(word, zero), logical_and(common.serve, common.second))

    return Words(count=2, choose=choose_word, is_used=is_word_used)


def _join_units(first: Scalar, second: Scalar, height: Scalar, step: int) -> Scalar:
    """Return the sum of multiples of two units, an `f64`: as if it had been made of integers as long as it
    takes, and rounded.
    """
    shift = const(step, DType.I64)
    # what is a multiple of the first unit goes there: what is left of the second cannot cancel what was
    # rounded
    carried = op("rshift", second, shift)
    left = sub(second, op("lshift", carried, shift))
    below = sub(height, const(step, DType.I32))
    return add(scale_units(add(first, carried), height), scale_units(left, below))


def _is_not_zero(number: Scalar) -> Scalar:
    """Tell if adding the number may make a difference: zeros need no place in memory."""
    return gt(read_magnitude(number), const(0, DType.I32))


def _unit_bits(elements: Elements) -> int:
    """Return the exponent of the largest element over that of its sum's unit, such that all elements together
    are below 2^62.

    There would be room for one bit more. But elements may be computed again for each pass, and then be
    rounded another way in one of them: past the largest that another has seen.
    """
    most = as_int(elements.run_length)
    assert most is not None
    return 61 - max(most - 1, 1).bit_length()
