"""The lists of indices whose rows an embedding combines: which elements belong to a bag, and which count.

Bag `b` holds the elements from `offsets[b]` up to the next offset, or to the end. Elements of the row for
padding do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from coilwork_ir.device_traits import ATEN_CPU, PROCESSOR, has_trait
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, provably_eq
from coilwork_ir.loops import Check, Scan
from coilwork_ir.loops.nodes import CheckError
from coilwork_ir.scalar import Literal_, Scalar, cast, const, op, placeholder
from coilwork_lowering.building.builder import Builder, make_node_ranges
from coilwork_lowering.building.values import Shape, TensorValue, make_coordinate_symbols, make_whole_value
from coilwork_lowering.ops.binary_search import choose_position_type, lower_bound
from coilwork_lowering.ops.gathers import check_bounds, check_in_range
from coilwork_lowering.ops.scattering.deterministic_scatter import needs_fixed_order
from coilwork_lowering.ops.scattering.scatters import scatter_into
from coilwork_lowering.rules import Call
from coilwork_lowering.scalar_math import eq, index, invert, le, logical_and, logical_or, lt, select, sub


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One element of a bag, at one point of what is combined.

    Attributes:
        at: its number among all elements, in `i64`.
        row: its row of the table, in `i64`.
        point: the point.
        readable: where it counts; elsewhere nothing may be read for it.
        of_bag: what stands in a tensor at its bag and point.
    """

    at: Scalar
    row: Scalar
    point: tuple[Expr, ...]
    readable: Scalar
    of_bag: Callable[[TensorValue], Scalar]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """Indices, and where each bag of them begins.

    Attributes:
        rows: rows of the table.
        indices: `(elements,)`, each a row, checked to be one.
        offsets: where each bag begins; one more may say where the last one ends.
        count: how many bags there are.
        padding: the row that does not count; negative if all do.
        device: where all is.
        in_bounds: whether the offsets are known to begin at 0, never to go down, and to end among the
            elements.
        error: what eager raises where an offset is out of range.
    """

    rows: Expr
    indices: TensorValue
    offsets: TensorValue
    count: Expr
    padding: int
    device: str
    in_bounds: bool
    error: CheckError

    @property
    def elements(self) -> Expr:
        """Return how many elements there are in all."""
        return self.indices.shape[0]

    def row(
        self, builder: Builder, at: Expr, indirect: tuple[Scalar, ...] = (), mask: Scalar | None = None
    ) -> Scalar:
        """Return the row of the element `at`, in `i64`."""
        return cast(builder.read(self.indices, (at,), indirect=indirect, mask=mask), DType.I64)

    def counts(self, row: Scalar) -> Scalar:
        """Tell if an element of `row` counts."""
        if self.padding < 0:
            return const(True, DType.BOOL)
        return op("ne", row, const(self.padding, DType.I64))

    def start(self, builder: Builder, bag: Expr) -> Scalar:
        """Return the first element of a bag, in `i64`."""
        return self._clamp_to_elements(self.read_start(builder, bag))

    def length(self, builder: Builder, bag: Expr) -> Scalar:
        """Return the elements of a bag, padding included, in `i64`."""
        return sub(self._clamp_to_elements(self.read_end(builder, bag)), self.start(builder, bag))

    def read_start(self, builder: Builder, bag: Expr) -> Scalar:
        """Return the bag's offset, in `i64`. On accelerators the first bag begins at 0, whatever its offset
        says, as in eager mode.
        """
        offset = cast(builder.read(self.offsets, (bag,)), DType.I64)
        if has_trait(self.device, ATEN_CPU) or self.in_bounds:
            return offset
        zero = const(0, DType.I64)
        return select(eq(index(bag), zero), zero, offset)

    def read_end(self, builder: Builder, bag: Expr) -> Scalar:
        """Return the next bag's offset if there is one, else the number of elements, in `i64`.

        On accelerators the last bag ends with the elements, whatever an offset says, as in eager mode.
        """
        others = self.offsets.shape[0] if has_trait(self.device, ATEN_CPU) else self.count
        more = lt(index(bag + 1), index(others))
        following = cast(builder.read(self.offsets, (bag + 1,), mask=more), DType.I64)
        return select(more, following, index(self.elements))

    def _clamp_to_elements(self, offset: Scalar) -> Scalar:
        """`offset`; on accelerators bags are read while they are checked, by one kernel, and stay among the
        elements.
        """
        if has_trait(self.device, ATEN_CPU) or self.in_bounds:
            return offset
        return op("minimum", op("maximum", offset, const(0, DType.I64)), index(self.elements))

    def reduce(
        self,
        builder: Builder,
        kind: Literal["sum", "min", "max"],
        inner: Shape,
        neutral: Literal_,
        dtype: DType,
        value: Callable[[Element], Scalar],
    ) -> TensorValue:
        """`value` of each bag's elements that count, combined, for every point of `inner`; `neutral` for bags
        without any.
        """
        if not self.is_reduced_by_bag(builder):
            return self._reduce_in_memory(builder, kind, inner, neutral, dtype, value)

        def body(point: tuple[Expr, ...], axes: tuple[Expr, ...]) -> Scalar:
            bag, *rest = point
            inside = lt(index(axes[0]), self.length(builder, bag))
            at = op("add", self.start(builder, bag), index(axes[0]))
            row = self.row(builder, placeholder(0), (at,), inside)
            counted = logical_and(inside, self.counts(row))
            nothing = const(neutral, dtype)
            one = Element(
                at=at,
                row=row,
                point=tuple(rest),
                readable=counted,
                of_bag=lambda tensor: builder.read(tensor, point),
            )
            result = select(counted, value(one), nothing)
            # rows end where the condition says
            return select(inside, result, nothing)

        (result,) = builder.reduce(kind, (self.count, *inner), (self.elements,), self.device, body, (dtype,))
        assert result is not None
        return result

    def is_reduced_by_bag(self, builder: Builder) -> bool:
        """Tell if bags are reduced each by itself, not element by element into memory."""
        return needs_fixed_order(builder, self.device, DType.F32) or not has_trait(self.device, PROCESSOR)

    def _reduce_in_memory(
        self,
        builder: Builder,
        kind: Literal["sum", "min", "max"],
        inner: Shape,
        neutral: Literal_,
        dtype: DType,
        value: Callable[[Element], Scalar],
    ) -> TensorValue:
        empty = builder.pointwise(
            (self.count, *inner), dtype, self.device, lambda point: const(neutral, dtype)
        )
        bags = number_bags(builder, self)

        def element(point: tuple[Expr, ...]) -> Scalar:
            row = self.row(builder, point[0])
            counted = logical_and(lt(self._bag(builder, bags, point[0]), index(self.count)), self.counts(row))
            one = Element(
                at=index(point[0]),
                row=row,
                point=point[1:],
                readable=counted,
                of_bag=lambda tensor: builder.read(
                    tensor, (placeholder(0), *point[1:]), indirect=(place(point),)
                ),
            )
            return select(counted, value(one), const(neutral, dtype))

        def place(point: tuple[Expr, ...]) -> Scalar:
            bag = self._bag(builder, bags, point[0])
            return select(lt(bag, index(self.count)), bag, const(0, DType.I64))

        return scatter_into(
            builder,
            empty,
            (self.elements, *inner),
            lambda point: (placeholder(0), *point[1:]),
            lambda point: (place(point),),
            element,
            "add" if kind == "sum" else kind,
            lambda point: (),
        )

    def _bag(self, builder: Builder, bags: TensorValue, at: Expr) -> Scalar:
        return cast(builder.read(bags, (at,)), DType.I64)


def number_bags(builder: Builder, bags: Bags) -> TensorValue:
    """Return the bag of each element: the last that begins at it or before. What lies behind the last bag has
    none, and their number.
    """
    if not bags.is_reduced_by_bag(builder):
        return _count_in_one_pass(builder, bags)
    (count,) = bags.offsets.shape
    width = choose_position_type(count)

    def bag(point: tuple[Expr, ...]) -> Scalar:
        begun = lower_bound(builder, bags.offsets, lambda first: le(cast(first, DType.I64), index(point[0])))
        result = sub(begun, const(1, width))
        if has_trait(bags.device, ATEN_CPU) or bags.in_bounds:
            return result
        # the first bag has what lies in front of its offset, the last one what lies behind an offset that
        # ends it
        result = op("maximum", result, const(0, width))
        if provably_eq(count, bags.count):
            return result
        return op("minimum", result, cast(index(bags.count - 1), width))

    return builder.pointwise((bags.elements,), width, bags.device, bag, name=f"{builder.hint}_bags")


def _count_in_one_pass(builder: Builder, bags: Bags) -> TensorValue:
    """Return the bag of each element. One pass counts the bags that have begun; accelerators search for each
    element.
    """
    behind = bags.elements + 1
    none = builder.pointwise((behind,), DType.I64, bags.device, lambda point: const(0, DType.I64))

    def offset(point: tuple[Expr, ...]) -> Scalar:
        return cast(builder.read(bags.offsets, point), DType.I64)

    begun = scatter_into(
        builder,
        none,
        bags.offsets.shape,
        lambda point: (placeholder(0),),
        lambda point: (offset(point),),
        lambda point: const(1, DType.I64),
        "add",
        lambda point: (check_bounds(offset(point), behind, "the offsets of bags", bags.error),),
    )
    ranges = make_node_ranges("i", (bags.elements,))
    counts = builder.declare((bags.elements,), DType.I64, bags.device, name=f"{builder.hint}_begun")
    body = builder.read(begun, make_coordinate_symbols("i", (bags.elements,)))
    builder.add(
        Scan(outputs=(counts,), kind="sum", ranges=ranges, axis=ranges[0], body=body, origins=builder.origins)
    )
    return builder.pointwise(
        (bags.elements,),
        DType.I64,
        bags.device,
        lambda point: sub(builder.read(make_whole_value(counts), point), const(1, DType.I64)),
        name=f"{builder.hint}_bags",
    )


def check_indices(builder: Builder, indices: TensorValue, rows: Expr, call: Call) -> TensorValue:
    """`indices`, each checked to be a row."""
    return builder.pointwise(
        indices.shape,
        indices.dtype,
        indices.device,
        lambda point: builder.read(indices, point),
        checks=lambda point: (check_in_range(cast(builder.read(indices, point), DType.I64), rows, call),),
        name=f"{builder.hint}_indices",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRules:
    """The demands of eager's kernel on offsets.

    Attributes:
        elements: how many elements there are.
        count: how many bags there are.
        in_order: each list of elements is walked from offset to offset, as by eager's fast kernel for CPUs.
        error: what eager raises where an offset is out of range.
    """

    elements: Expr
    count: Expr
    in_order: bool
    error: CheckError


def check_offsets(builder: Builder, offsets: TensorValue, rules: OffsetRules) -> TensorValue:
    """`offsets`, checked as eager's kernels for CPUs do.

    Elements in front of the first bag would be written in front of memory.

    On accelerators whoever reads a bag's offsets checks them with `make_order_checks`, because a pass of its
    own would be one more kernel.
    """
    if not has_trait(offsets.device, ATEN_CPU):
        return offsets
    return builder.pointwise(
        offsets.shape,
        offsets.dtype,
        offsets.device,
        lambda point: builder.read(offsets, point),
        checks=lambda point: _make_offset_checks(builder, offsets, point[0], rules),
        name=f"{builder.hint}_offsets",
    )


def _make_offset_checks(
    builder: Builder, offsets: TensorValue, bag: Expr, rules: OffsetRules
) -> tuple[Check, ...]:
    """Return the conditions of eager's kernels for CPUs.

    The one that walks in order goes no further than an offset that ends the last bag.
    """
    at = cast(builder.read(offsets, (bag,)), DType.I64)
    number, last = index(bag), offsets.shape[0] - 1
    begins = Check(
        condition=logical_or(invert(eq(number, const(0, DType.I64))), eq(at, const(0, DType.I64))),
        message="offsets[0] has to be 0, i.e., the first sequence in the mini-batch "
        "has to start from position 0",
    )
    ends = Check(
        condition=logical_or(lt(number, index(last)), le(at, index(rules.elements))),
        message="offsets[-1] can not be greater than input's length",
    )
    inside = check_bounds(at, rules.elements + 1, "the offsets of bags", rules.error)
    if not rules.in_order or provably_eq(offsets.shape[0], rules.count):
        return (begins, ends, inside)
    end = cast(builder.read(offsets, (last,)), DType.I64)
    return (begins, ends, inside, Check(condition=le(at, end), message="the offsets of bags go down"))


def make_order_checks(builder: Builder, bags: Bags, bag: Expr) -> tuple[Check, ...]:
    """Return the check of eager's kernels for accelerators: no bag ends before it begins."""
    if has_trait(bags.device, ATEN_CPU) or bags.in_bounds:
        return ()
    begin, end = bags.read_start(builder, bag), bags.read_end(builder, bag)
    in_order = logical_and(le(begin, end), le(const(0, DType.I64), begin))
    return (Check(condition=in_order, message="the offsets of bags go down"),)
