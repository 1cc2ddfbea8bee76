"""The statements of the gradient of attention.

A program has a block of rows, for which it sums the gradient of queries over the keys, or a block of keys,
for which it sums those of keys and values over the rows. So each sum has one order, and nothing is added in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, mod, multiply_all
from coilwork_ir.kernels.attention import Sharing, find_key_sharing, roles_of
from coilwork_ir.kernels.nodes import AttentionGradientCore
from coilwork_ir.scalar import Load, Parameter, Scalar, iterate_postorder, parameter
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Expression,
    For,
    Name,
    Number,
    Statement,
    call,
    method,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.iteration.shape import Tile
from coilwork_triton.launch.parameters import BLOCKS, Letter
from coilwork_triton.statements.attention_blocks import (
    LOG2_E,
    PROGRAM,
    SHARED,
    AttentionBranch,
    convert,
    dot,
    hide,
    join_types,
    scale_of,
    transpose,
)
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import Writer, fill_shape, get_triton_type, insert_axes, tl, tl_name

# ---- The gradient ----


_OF_BIAS: Final = Name("of_bias")


class Gradient(AttentionBranch):
    """What both kinds of programs of the gradient share: weights and slopes of a block of scores."""

    core: AttentionGradientCore
    first: Expression
    second: Expression
    bias: Scalar | None = None
    """What each score adds to the gradient of a bias, if that is summed here."""
    term: Expression = Number(0)
    """A block of that."""
    folded: Expression = Number(0)
    """What all weights of a row pass on, as a product of a step begins with it."""

    def slopes(
        self,
        writer: Writer,
        raw: Expression,
        of_weight: Callable[[Expression, Writer], Expression],
        inner: Expression | None,
        tile: Tile,
        *,
        has_mask: bool,
        ragged: bool,
        early: Writer | None = None,
        folds: bool = False,
    ) -> tuple[Expression, Expression]:
        """Blocks of weights, and of slopes of raw scores less a constant factor. `of_weight` writes what
        weights pass on, given these and the writer of what comes next, and `inner` is what all of a row pass
        on, if no body says it. What is the same for the whole block's own side is loaded in `early`, if that
        is given. If it `folds`, what weights pass on comes less `self.folded`, which is known there.
        """
        core, weights = self.core, self.weights
        mask = weights.mask if has_mask else None
        scale, slope = scale_of(weights.score, 0), scale_of(core.slope, 1)
        wanted = [] if scale is not None else [weights.score]
        wanted += [core.logsumexp, *(() if core.inner is None else (core.inner,))]
        before = (*wanted, *(() if mask is None else (mask,)))
        behind = (*(() if slope is not None else (core.slope,)), *(() if self.bias is None else (self.bias,)))
        roots = (*before, *behind)
        values = self.values((self.tile("y", 0), replace(tile, axis=1)), roots)
        outer = self.outer.setdefault(weights.score, Scope(writer=self.writer))
        raw_score, passed_on = parameter(0, DType.F32), parameter(1, DType.F32)
        order = values.find_pending(outer, roots)
        values.compute(outer, [n for n in order if not isinstance(n, Parameter) and not self._is_changing(n)])
        first = None if early is None else Scope(writer=early.inner(), parent=outer)
        if first is not None:
            values.compute(first, values.find_pending(first, self._list_row_loads(values, first, roots)))
            if folds and core.inner is not None:
                values.compute(first, values.find_pending(first, (core.inner,)))
                self.folded = values.expression(first, core.inner)
        scope = Scope(writer=writer.inner(), parent=first or outer, bound={raw_score: raw})
        values.compute(scope, values.find_pending(scope, before))
        score: Expression = raw if scale is not None else values.expression(scope, weights.score)
        factor = LOG2_E * (1.0 if scale is None else scale)
        logs = values.expression(scope, core.logsumexp)
        if weights.logsumexp == "natural":
            logs = Binary("*", logs, Number(LOG2_E))
        power: Expression = tl("exp2", Binary("-", Binary("*", score, Number(factor)), logs))
        hidden = hide(values, scope, mask, ragged)
        if hidden is not None:
            if not isinstance(hidden, Name):
                hidden = scope.writer.bind("counts", hidden)
            power = tl("where", hidden, power, Number(0.0))
        weight = scope.writer.bind("weight", power)
        if core.inner is not None:
            inner = values.expression(scope, core.inner)
        assert inner is not None
        through = of_weight(weight, scope.writer)
        change = through if folds else Binary("-", through, inner)
        passed = scope.writer.bind("passed", Binary("*", weight, change))
        found: Expression = passed
        if behind:
            scope.bound[passed_on] = passed
            values.compute(scope, values.find_pending(scope, behind))
        if slope is None:
            found = values.expression(scope, core.slope)
            if hidden is not None:
                found = tl("where", hidden, found, Number(0.0))
        if self.bias is not None:
            term = values.expression(scope, self.bias)
            self.term = scope.writer.bind(
                "term", term if hidden is None else tl("where", hidden, term, Number(0.0))
            )
        if not isinstance(found, Name):
            found = scope.writer.bind("slope", found)
        if early is None or first is None:
            self._close_scope(values, scope, writer)
        else:
            self._close_scope(values, first, early)
            writer.statements += scope.writer.statements
        return weight, found

    def _list_row_loads(self, values: Values, scope: Scope, roots: Sequence[Scalar]) -> list[Scalar]:
        """List the loads of `roots` that do not vary along the rows or keys that this program owns."""
        along = self.levels.varies
        pending = values.find_pending(scope, roots)
        return [n for n in pending if isinstance(n, Load) and self.fixed.symbol not in along[n]]

    @property
    def factor(self) -> float:
        """The constant factor of all slopes, by which sums are multiplied at the end."""
        return scale_of(self.core.slope, 1) or 1.0

    def scale_sum(self, total: Expression) -> Expression:
        """Return `total`, a sum of slopes times something, times the constant factor."""
        return total if self.factor == 1.0 else Binary("*", total, Number(self.factor))

    def store_result(self, number: int, second: Letter, found: Expression) -> None:
        """Store result `number`, which is `found`."""
        node = parameter(number, DType.F32)
        for store in self.kernel.stores:
            if node in iterate_postorder((store.value,)):
                along = frozenset(store.index.free_symbols)
                self.store(store, second, {node: (found, along)})

    def sum_rows(self, gradient: Expression, output: Expression, *, along: tuple[bool, bool]) -> Expression:
        """Write the sum over each row of output times gradient, both blocks of rows by columns."""
        wide = [method(value, "to", tl_name("float32")) for value in (gradient, output)]
        return insert_axes(tl("sum", Binary("*", *wide), Number(1)), along)


class GradientOfQuery(Gradient):
    """A block of rows, and all keys: the gradient of queries."""

    def __init__(self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)
        self.core, self.bias = core, core.bias

    def statements(self) -> tuple[Statement, ...]:
        """Return all statements behind the program's number."""
        weights, writer, core = self.weights, self.writer, self.core
        rows = self.tile("y", 0)
        self.first = self.operand(weights.query, rows, self.tile("l", 1), writer)
        self.second = self.operand(core.gradient, rows, self.tile("x", 1), writer)
        self.inner: Expression | None = None
        if core.output is not None:
            output = self.operand(core.output, rows, self.tile("x", 1), writer)
            self.inner = writer.bind("inner", self.sum_rows(self.second, output, along=(True, False)))
        total = Name("of_query")
        writer.assign((total,), fill_shape((BLOCKS["y"], BLOCKS["l"]), 0, DType.F32))
        if self.bias is not None:
            writer.assign((_OF_BIAS,), fill_shape((BLOCKS["y"],), 0, DType.F32))
        self.loop(self._step)
        self.store_result(0, "l", writer.bind("result", self.scale_sum(total)))
        if self.bias is not None:
            self.store_result(3, "l", insert_axes(_OF_BIAS, (True, False)))
        lines = self.lines(Name("yprogram"), Name(PROGRAM.name))
        count = multiply_all(r.extent for r in self.roles.others)
        return (*self.number_programs(count), *lines, *writer.statements)

    def _step(self, has_mask: bool, ragged: bool) -> tuple[Statement, ...]:
        weights, core = self.weights, self.core
        writer = self.writer.inner()
        tile = self.tile("r", 0, ragged=ragged)
        key = self.operand(weights.key, tile, self.tile("l", 1), writer)
        raw = writer.bind("raw", _product(self.first, weights.query.dtype, key, weights.key.dtype))
        value = self.operand(weights.value, tile, self.tile("x", 1), writer)
        _, slope = self.slopes(
            writer,
            raw,
            lambda *_: _product(self.second, core.gradient.dtype, value, weights.value.dtype),
            self.inner,
            tile,
            has_mask=has_mask,
            ragged=ragged,
        )
        total, dtype = Name("of_query"), weights.key.dtype
        writer.assign((total,), dot(convert(slope, dtype), key, dtype, total))
        if self.bias is not None:
            writer.assign((_OF_BIAS,), Binary("+", _OF_BIAS, tl("sum", self.term, Number(1))))
        return tuple(writer.statements)


def _product(left: Expression, first: DType, right: Expression, second: DType) -> Expression:
    """`left` times the transpose of `right`."""
    both = join_types(first, second)
    if first is not second:
        left, right = (method(value, "to", get_triton_type(both)) for value in (left, right))
    return dot(left, transpose(right), both)


class GradientOfKeys(Gradient):
    """A block of keys, and all rows: the gradients of keys and values."""

    def __init__(self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.keys, looped=roles.rows)
        self.core = core
        self.sharing = find_key_sharing(plan.kernel)

    def count_programs(self) -> Expression:
        """Return the number of programs that have a block of keys."""
        count = tl("cdiv", self.print_index(self.fixed.extent), Name(BLOCKS["y"]))
        return Binary("*", count, self.print_index(self.count_points()))

    def count_points(self) -> Expr:
        """Return the number of points of the other ranges with keys of their own."""
        return count_own_points(self.sharing)

    def statements(self) -> tuple[Statement, ...]:
        """Return all statements behind the program's number."""
        weights, top = self.weights, self.writer
        keys = self.tile("y", 0)
        self.first = self.operand(weights.key, keys, self.tile("l", 1), top)
        self.second = self.operand(weights.value, keys, self.tile("x", 1), top)
        of_key, of_value = Name("of_key"), Name("of_value")
        top.assign((of_key,), fill_shape((BLOCKS["y"], BLOCKS["l"]), 0, DType.F32))
        top.assign((of_value,), fill_shape((BLOCKS["y"], BLOCKS["x"]), 0, DType.F32))
        count = multiply_all(s.count for s in self.sharing)
        shared = as_int(count) != 1
        if shared:
            self.writer = top.inner()
        self.loop(self._step)
        looped, self.writer = self.writer, top
        before = len(top.statements)
        self.store_result(1, "l", top.bind("result", self.scale_sum(of_key)))
        self.store_result(2, "x", of_value)
        starts = self.number_programs(self.count_points())
        point = find_point(self.sharing, SHARED if shared else as_expr(0))
        other = Number(0) if point is None else self.print_index(point)
        lines = self.lines(Name("yprogram"), other)
        if not shared:
            return (*starts, *lines, *top.statements)
        moved = [line for line in lines if self.is_of_others(line)]
        values = call("range", Number(0), self.print_index(count))
        around = For(SHARED.name, values, (*moved, *looped.statements))
        first = Assign((SHARED.name,), Number(0))
        return (*starts, first, *lines, *top.statements[:before], around, *top.statements[before:])

    def _step(self, has_mask: bool, ragged: bool) -> tuple[Statement, ...]:
        weights, core = self.weights, self.core
        writer = self.writer.inner()
        tile = self.tile("r", 0, ragged=ragged)
        query = self.operand(weights.query, tile, self.tile("l", 1), writer)
        raw = writer.bind("raw", _product(self.first, weights.key.dtype, query, weights.query.dtype))
        gradient = self.operand(core.gradient, tile, self.tile("x", 1), writer)
        inner: Expression | None = None
        if core.output is not None:
            output = self.operand(core.output, tile, self.tile("x", 1), writer)
            inner = writer.bind("inner", self.sum_rows(gradient, output, along=(False, True)))
        weight, slope = self.slopes(
            writer,
            raw,
            lambda *_: _product(self.second, weights.value.dtype, gradient, core.gradient.dtype),
            inner,
            tile,
            has_mask=has_mask,
            ragged=ragged,
        )
        of_key, of_value = Name("of_key"), Name("of_value")
        dtype = core.gradient.dtype
        writer.assign((of_value,), dot(convert(weight, dtype), gradient, dtype, of_value))
        dtype = weights.query.dtype
        writer.assign((of_key,), dot(convert(slope, dtype), query, dtype, of_key))
        return tuple(writer.statements)


# ---- Points that share keys ----


def count_own_points(sharing: Sequence[Sharing]) -> Expr:
    """Return the number of points of the other ranges with keys of their own."""
    return multiply_all(floordiv(s.extent, s.count) for s in sharing)


def find_point(sharing: Sequence[Sharing], shared: Expr) -> Expr | None:
    """Return the point of the other ranges that a program has, for one of the points that share its keys."""
    if not sharing:
        return None
    outer, inner = PROGRAM, shared
    digits: list[Expr] = []
    for one in reversed(sharing):
        outers = floordiv(one.extent, one.count)
        digits.append(mod(outer, outers) * one.count + mod(inner, one.count))
        outer, inner = floordiv(outer, outers), floordiv(inner, one.count)
    point = as_expr(0)
    for one, digit in zip(sharing, reversed(digits), strict=True):
        point = point * one.extent + digit
    return point
