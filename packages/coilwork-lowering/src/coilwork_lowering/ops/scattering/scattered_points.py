"""Single elements as points of a space, and memory that numbers made of them are combined in by atomics, a
few runs at a time.

What elements are combined with should stay in a cache while they are. So elements of several runs are taken a
few neighbouring runs at a time, where they lie; or, where the memory of a few runs is too much for that, they
are laid out run by run first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, symbol
from coilwork_ir.loops import Check, Scatter
from coilwork_ir.ops import ReduceKind, StoreMode
from coilwork_ir.scalar import Const, Load, Scalar, cast, const, load, placeholder, postorder, rewrite
from coilwork_lowering.building.builder import Builder, node_ranges
from coilwork_lowering.building.simplify import simplify
from coilwork_lowering.building.values import TensorValue, coordinate_symbols, whole
from coilwork_lowering.ops.scattering.elements import Elements
from coilwork_lowering.scalar_math import add, both, either, index, invert, lt, sub


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """The words of a row: how many, which of them an element is combined with, and, in a loop over them,
    whether one is used at all.
    """

    count: int
    of: Callable[[Scalar], Scalar]
    used: Callable[[Scalar], Scalar]


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
        self._width = as_expr(_neighbours(elements, near, few))
        self._groups = floordiv(elements.runs, self._width)
        self._shape = (self._groups, elements.run_length, self._width)
        laid_out = not elements.one_run and as_int(self._width) == 1
        self._stored = (self._keys(), self._numbers()) if laid_out else None

    def extreme(self, which: ReduceKind, value: Callable[[Scalar], Scalar]) -> Scalar:
        """The largest or smallest `value` of an element, an `i32`, those that belong to no row among them."""
        length = self._elements.run_length

        def body(_: tuple[Expr, ...], point: tuple[Expr, ...]) -> Scalar:
            # side by side, as runs may lie, or one behind the other, as they do where they have been laid out
            flat = point[0] if len(point) == 1 else point[1] * length + point[0]
            return value(self._number_at(flat))

        one_behind_the_other = self._elements.one_run or self._stored is not None
        axes = (self._elements.count,) if one_behind_the_other else (length, self._elements.runs)
        (found,) = self._builder.reduce(which, (), axes, self._device, body, (DType.I32,))
        assert found is not None
        return self._builder.read(found, ())

    def combined(
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
        """Zeros, with which `value` of every element and of its key is combined where its row is, in one of
        its `words`.

        Elements of which `adds` does not hold are left out. Where `only`, which is the same for all of them,
        does not hold, nothing is read and nothing is written: the result is memory that holds nothing. With
        `checked`, keys are checked on the way, unless they were when they were stored.
        """
        elements, builder = self._elements, self._builder
        shape = (self._groups, as_expr(1 if words is None else words.count), elements.rows, self._width)
        name = f"{builder.hint}_{name}"
        used = None if words is None else words.used(index(coordinate_symbols("i", shape)[1]))
        zeros = self._zeros(dtype, shape, f"{name}_zero", only if used is None else used)
        point = coordinate_symbols("i", self._shape)
        key, number = self._key(point), self._number(point)
        indirect = (key,) if words is None else (key, words.of(number))
        mask = _all_of(self._belongs(key), None if adds is None else adds(number))
        output = builder.declare(shape, dtype, self._device, name=name)
        builder.add(
            Scatter(
                output=output,
                into=zeros.buffer.name,
                ranges=node_ranges("i", self._shape),
                index=(point[0], as_expr(0) if words is None else placeholder(1), placeholder(0), point[2]),
                indirect=tuple(simplify(_reading_only(only, one)) for one in indirect),
                value=simplify(_reading_only(only, value(number, key))),
                mode=mode,
                mask=only if mask is None else simplify(_reading_only(only, _both(only, mask))),
                checks=self._checks(point, only) if checked and self._stored is None else (),
                origins=builder.origins,
            )
        )
        builder.buffers.overwrite(zeros.buffer.name, output)
        return whole(output)

    def read(self, made: TensorValue, key: Scalar, *, only: Scalar | None = None) -> Scalar:
        """Return what `combined` made for the row of the element whose key is `key`; 0 for one that is left
        out, and without `only`.
        """
        group, _, neighbour = coordinate_symbols("i", self._shape)
        at = (group, as_expr(0), placeholder(0), neighbour)
        return self._builder.read(made, at, indirect=(key,), mask=_all_of(only, self._belongs(key)))

    def at(self, made: TensorValue, row: Expr, *, word: int = 0, only: Scalar | None = None) -> Scalar:
        """Return what `combined` made for `row`; 0 where `only` does not hold."""
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
                ranges=node_ranges("i", shape),
                index=coordinate_symbols("i", shape),
                indirect=(),
                value=zero,
                mode="store",
                mask=simplify(used),
                covers=True,
                origins=builder.origins,
            )
        )
        return whole(output)

    def _belongs(self, key: Scalar) -> Scalar | None:
        """Tell if the element is added to a row; None if all are."""
        return None if self._elements.all_rows else lt(key, index(self._elements.rows))

    def _flat(self, point: tuple[Expr, ...]) -> Expr:
        group, position, neighbour = point
        return (group * self._width + neighbour) * self._elements.run_length + position

    def _checks(self, point: tuple[Expr, ...], only: Scalar | None) -> tuple[Check, ...]:
        if not self._builder.options.checks:
            return ()
        found = tuple(self._elements.checks(self._flat(point)))
        if only is None:
            return found
        return tuple(
            Check(
                condition=simplify(either(invert(only), _reading_only(only, check.condition))),
                message=check.message,
                error=check.error,
            )
            for check in found
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
        """`value` of every element in memory, read as the runs may lie side by side, written one behind the
        other.
        """
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


def number_everywhere(builder: Builder, elements: Elements) -> float | None:
    """The number that all elements are; None where the graph does not say so."""
    flat = symbol("i0", extent=elements.count)
    point = (as_expr(0),) * len(elements.inner)

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or node.mask is not None:
            return node
        found = builder.number_everywhere(whole(builder.buffers[node.buffer]))
        return node if found is None else found

    value = elements.value(flat, index(flat), point, const(True, DType.BOOL))
    found = simplify(rewrite((value,), visit)[0])
    if not isinstance(found, Const):
        return None
    # a literal stands for the nearest `f32`
    return float(torch.tensor(found.value, dtype=torch.float32).item())


def _neighbours(elements: Elements, near: int, few: int) -> int:
    """How many neighbouring runs are taken at a time where the elements lie, with up to `near` rows in all.

    As many as share the runs evenly; 1 if those are `few`.
    """
    runs, rows = as_int(elements.runs), as_int(elements.rows)
    if runs is None or rows is None:
        return 1
    most = near // max(rows, 1)
    best = next((n for n in range(min(runs, most), 0, -1) if runs % n == 0), 1)
    return best if best >= min(runs, few) else 1


def _both(first: Scalar | None, second: Scalar) -> Scalar:
    return second if first is None else both(first, second)


def _all_of(*conditions: Scalar | None) -> Scalar | None:
    """Tell if all of those that are given hold; None if none is."""
    found: Scalar | None = None
    for condition in conditions:
        found = found if condition is None else _both(found, condition)
    return found


def _reading_only(where: Scalar | None, value: Scalar) -> Scalar:
    """`value`, that reads nothing but what `where` itself does where that does not hold; what it then is does
    not matter.
    """
    if where is None:
        return value
    own = frozenset(node for node in postorder((where,)) if isinstance(node, Load))

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or node in own:
            return node
        mask = where if node.mask is None else both(where, node.mask)
        return load(node.buffer, node.index, node.dtype, indirect=node.indirect, mask=mask, other=node.other)

    return rewrite((value,), visit)[0]
