"""The gradient of attention: a unit of work has all heads that share keys, and goes through blocks of rows.

```
for a unit of work (a point of the ranges around, of those that have keys of their own)
  of_keys[r][l] = 0; of_values[r][x] = 0, for all keys
  for the points that share these keys
    for blocks of rows
      queries[l][y], gradients[x][y] = query and gradient, transposed; of_query[y][l] = 0
      for blocks of keys
        weights[r][y] = sum over l of key(r, l) * queries[l][y]
        slopes[r][y] = sum over x of value(r, x) * gradients[x][y]
        weights, slopes = exp(score(weights) - logsumexp), slope(weights * (slopes - inner))
        of_values[r][x] += sum over y of weights[r][y] * gradient(y, x)
        of_keys[r][l] += sum over y of slopes[r][y] * query(y, l)
        of_query[y][l] += sum over r of slopes[r][y] * key(r, l)
      stores of of_query
  stores of of_keys and of_values
```

Scores are computed again, so that memory is what the gradients of keys and values take, in f32. Each sum has
one order, whatever the number of threads.
"""

from __future__ import annotations

from math import log

from coilwork_cpp.nests.attention import (
    AttentionBlock,
    AttentionBody,
    Matrix,
    fill_zeros,
    minus,
    plus,
    product,
    round_up,
    times,
)
from coilwork_cpp.nests.loops import Span, bind_ranges, make_whole_span
from coilwork_cpp.planning.attention import ROWS, AttentionPlan
from coilwork_cpp.values.block import Block
from coilwork_cpp.values.element_types import convert, make_literal
from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_int, floordiv, get_extent, multiply_all
from coilwork_ir.kernels import Store, TensorArg
from coilwork_ir.kernels.attention import find_key_sharing, find_sharing, index_of_store
from coilwork_ir.kernels.nodes import AttentionGradientCore
from coilwork_ir.scalar import Parameter, Scalar, iterate_postorder, parameter
from coilwork_ir.syntax.cpp import (
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Element,
    For,
    Literal,
    Member,
    Name,
    Select,
)

_WIDE = DType.F32


class GradientBlock(AttentionBlock):
    """A block of rows, its gradients, and those of all keys."""

    def __init__(self, plan: AttentionPlan, args: dict[str, TensorArg], grain: int) -> None:
        super().__init__(plan, args, grain)
        assert isinstance(plan.core, AttentionGradientCore)
        self.core = plan.core
        self.sharing = find_key_sharing(plan.kernel)
        self._require_own_rows()
        self.term_width, self.column_width = round_up(plan.length), round_up(plan.columns)

    def _require_own_rows(self) -> None:
        """Refuse gradients of rows that several points add to."""
        of_bias = index_of_store(self.plan.kernel, 3) if self.core.bias is not None else None
        if of_bias is not None and (
            self.rows not in of_bias.free_symbols or self.keys in of_bias.free_symbols
        ):
            raise EmitError(self.core.kind, "the gradient of a bias is summed along the keys of a row alone")
        for index in (index_of_store(self.plan.kernel, 0), *(() if of_bias is None else (of_bias,))):
            shared = None if index is None else find_sharing(self.plan.kernel, self.roles, index)
            if shared is None or any(as_int(one.count) != 1 for one in shared):
                raise EmitError(self.core.kind, "several points share a query, or a row of a bias")

    def write(self) -> AttentionBody:
        """Return all of the nest."""
        plan, top = self.plan, self.top
        self.queries = self.reserve("queries", ROWS * plan.length)
        self.gradients = self.reserve("gradients", ROWS * plan.columns)
        self.weight_block = self.reserve("weights", plan.keys * ROWS)
        self.slope_block = self.reserve("slopes", plan.keys * ROWS)
        self.of_query = self.reserve("of_query", ROWS * self.term_width)
        self.of_bias, self.inner, self.logs = (
            self.reserve(name, ROWS) for name in ("of_bias", "inner", "logs")
        )
        self.row_rooms = (
            self.reserve("query_rows", ROWS * self.term_width),
            self.reserve("gradient_rows", ROWS * self.column_width),
        )
        extent = top.index(self.roles.keys.extent)
        unit = top.open_nested()
        for name, width in (("of_keys", self.term_width), ("of_values", self.column_width)):
            unit.add(fill_zeros(Name(name), times(extent, width)))
        count = multiply_all(s.count for s in self.sharing)
        shared = unit.open_nested()
        self._bind_shared_point(shared)
        rows = shared.open_nested()
        self.bind_rows(rows, times(Name("row_block"), ROWS))
        self._write_rows(rows)
        shared.add(For("row_block", ZERO, shared.index(self.row_blocks()), rows.body()))
        unit.add(For("shared", ZERO, unit.index(count), shared.body()))
        self._bind_first_point(unit)
        for number, total, columns, width in (
            (1, Name("of_keys"), self.terms, self.term_width),
            (2, Name("of_values"), self.columns, self.column_width),
        ):
            self._store_rows(unit, number, total, make_whole_span(unit, self.keys), columns, width)
        points = multiply_all(floordiv(s.extent, s.count) for s in self.sharing)
        numbers = Binary("+", times(extent, self.term_width + self.column_width), Literal("16"))
        totals = (
            Declare("const Workspace<float>", "totals", Call("Workspace<float>", (numbers,))),
            Declare(
                "float* __restrict const",
                "of_keys",
                Call("align_workspace", (Member(Name("totals"), "memory"),)),
            ),
            Declare(
                "float* __restrict const",
                "of_values",
                plus(Name("of_keys"), times(extent, self.term_width)),
            ),
        )
        return AttentionBody(
            before=(*self.declare_memory(), *totals),
            loop=(For("unit", Name("begin"), Name("end"), unit.body()),),
            units=top.index(points),
            grain=self.thread_grain(self.roles.rows.extent * 3),
        )

    # points

    def _bind_shared_point(self, block: Block) -> None:
        """Declare a point of the other ranges: `shared` of those that have the keys of `unit`."""
        outer: Code = Name("unit")
        inner: Code = Name("shared")
        for position in reversed(range(len(self.sharing))):
            one, r = self.sharing[position], self.roles.others[position]
            outers, count = block.index(floordiv(one.extent, one.count)), block.index(one.count)
            digit = plus(times(Binary("%", outer, outers), count), Binary("%", inner, count))
            block.add(Declare("const i64", r.symbol.name, digit))
            bind_ranges(block, r.symbol)
            outer, inner = Binary("/", outer, outers), Binary("/", inner, count)

    def _bind_first_point(self, block: Block) -> None:
        """Declare the first of the points that share the keys of `unit`."""
        outer: Code = Name("unit")
        for position in reversed(range(len(self.sharing))):
            one, r = self.sharing[position], self.roles.others[position]
            outers, count = block.index(floordiv(one.extent, one.count)), block.index(one.count)
            block.add(Declare("const i64", r.symbol.name, times(Binary("%", outer, outers), count)))
            bind_ranges(block, r.symbol)
            outer = Binary("/", outer, outers)

    # rows

    def _write_rows(self, block: Block) -> None:
        core, weights, plan = self.core, self.weights, self.plan
        self.query = self.place_rows(block, weights.query, self.terms, self.row_rooms[0])
        self.gradient = self.place_rows(block, core.gradient, self.columns, self.row_rooms[1])
        self.transpose(block, self.query, self.queries, plan.length)
        self.transpose(block, self.gradient, self.gradients, plan.columns)
        block.add(fill_zeros(self.of_query, Literal(str(ROWS * self.term_width))))
        if core.bias is not None:
            block.add(fill_zeros(self.of_bias, Literal(str(ROWS))))
        self._write_statistics(block)
        block.hoist(self._roots(has_mask=True), frozenset((self.rows, self.keys)))
        self.loop(block, self._step)
        self._store_rows(block, 0, self.of_query, self.row_span, self.terms, self.term_width)
        if core.bias is not None:
            self._store_rows(block, 3, self.of_bias, self.row_span, None, 1)

    def _write_statistics(self, block: Block) -> None:
        """The logsumexp of each row, as a natural logarithm, and what all its weights pass on."""
        core = self.core
        line = block.open_nested()
        bind_ranges(line, self.rows)
        place = minus(Name(self.rows.name), self.row_span.begin)
        logs = convert(line.value(core.logsumexp), core.logsumexp.dtype, _WIDE)
        if self.weights.logsumexp == "binary":
            logs = Binary("*", logs, make_literal(log(2), _WIDE))
        line.add(Assign(Element(self.logs, place), logs))
        if core.inner is not None:
            found = convert(line.value(core.inner), core.inner.dtype, _WIDE)
        else:
            assert core.output is not None
            line.add(Declare("float", "passed_on", make_literal(0, _WIDE)))
            line.hoist((core.output,), frozenset((self.columns,)))
            point = line.open_nested()
            bind_ranges(point, self.columns)
            output = convert(point.value(core.output), core.output.dtype, _WIDE)
            given = Element(
                self.gradient.start, plus(times(place, self.gradient.row), Name(self.columns.name))
            )
            point.add(Assign(Name("passed_on"), Binary("*", output, given), "+="))
            line.add(For(self.columns.name, ZERO, Literal(str(self.plan.columns)), point.body()))
            found = Name("passed_on")
        line.add(Assign(Element(self.inner, place), found))
        block.add(For(self.rows.name, self.row_span.begin, self.row_span.end, line.body()))

    def _roots(self, has_mask: bool) -> tuple[Scalar, ...]:
        core, weights = self.core, self.weights
        mask = weights.mask if has_mask else None
        more = [one for one in (mask, core.bias) if one is not None]
        return (weights.score, core.slope, *more)

    # keys

    def _step(self, block: Block, full: Code | None) -> None:
        weights, plan = self.weights, self.plan
        key = self.place_keys(
            block,
            weights.key,
            self.terms,
            lambda: self.reserve("key_rows", plan.keys * self.term_width),
            vectors=True,
        )
        value = self.place_keys(
            block,
            weights.value,
            self.columns,
            lambda: self.reserve("value_rows", plan.keys * self.column_width),
            vectors=False,
        )
        rows = Literal(str(ROWS))
        terms, columns = Literal(str(plan.length)), Literal(str(plan.columns))
        first, second = Matrix(self.weight_block, rows), Matrix(self.slope_block, rows)
        product(block, 0, ROWS, key, Matrix(self.queries, rows), first, self.key_count, terms)
        product(block, 0, ROWS, value, Matrix(self.gradients, rows), second, self.key_count, columns)
        self.branch(block, full, self._roots, self._differentiate)
        begin = Name("keys_begin")
        of_values = Matrix(
            plus(Name("of_values"), times(begin, self.column_width)), Literal(str(self.column_width))
        )
        of_keys = Matrix(plus(Name("of_keys"), times(begin, self.term_width)), Literal(str(self.term_width)))
        product(block, 1, plan.columns, first, self.gradient, of_values, self.key_count, self.row_count)
        product(block, 1, plan.length, second, self.query, of_keys, self.key_count, self.row_count)
        turned = Matrix(self.slope_block, Literal("1"), rows)
        of_query = Matrix(self.of_query, Literal(str(self.term_width)))
        product(block, 1, plan.length, turned, key, of_query, self.row_count, self.key_count)

    def _differentiate(self, block: Block, has_mask: bool) -> None:
        """Weights, and slopes of raw scores, from raw scores and what passes through the weights."""
        core, weights = self.core, self.weights
        mask = weights.mask if has_mask else None
        line = block.open_nested()
        bind_ranges(line, self.keys)
        line.hoist(self._roots(has_mask=has_mask), frozenset((self.rows,)))
        point = line.open_nested()
        bind_ranges(point, self.rows)
        place = point.declare_index("place", minus(Name(self.rows.name), self.row_span.begin))
        at = plus(times(minus(Name(self.keys.name), Name("keys_begin")), ROWS), place)
        raw, passed = Element(self.weight_block, at), Element(self.slope_block, at)
        point.known[parameter(0, _WIDE)] = point.declare(_WIDE, "raw", raw)
        through = point.declare(_WIDE, "through", passed)
        score = convert(point.value(weights.score), weights.score.dtype, _WIDE)
        weight: Code = Call("exp_f32", (Binary("-", score, Element(self.logs, place)),))
        if mask is not None:
            weight = point.declare(_WIDE, "shown", weight)
            weight = Select(point.name_value(mask), weight, make_literal(0, _WIDE))
        weight = point.declare(_WIDE, "weight", weight)
        change = Binary("*", weight, Binary("-", through, Element(self.inner, place)))
        point.known[parameter(1, _WIDE)] = point.declare(_WIDE, "change", change)
        slope = convert(point.value(core.slope), core.slope.dtype, _WIDE)
        if mask is not None:
            # a slope where nothing counts may be NaN
            slope = point.declare(_WIDE, "slope", slope)
            slope = Select(point.name_value(mask), slope, make_literal(0, _WIDE))
        slope = point.declare(_WIDE, "found", slope)
        if core.bias is not None:
            term = convert(point.value(core.bias), core.bias.dtype, _WIDE)
            if mask is not None:
                term = point.declare(_WIDE, "term", term)
                term = Select(point.name_value(mask), term, make_literal(0, _WIDE))
            point.add(Assign(Element(self.of_bias, place), term, "+="))
        point.add(Assign(raw, weight), Assign(passed, slope))
        line.add(For(self.rows.name, self.row_span.begin, self.row_span.end, point.body(), simd=True))
        block.add(For(self.keys.name, Name("keys_begin"), Name("keys_end"), line.body()))

    # results

    def _store_rows(
        self, block: Block, number: int, total: Name, rows: Span, columns: Expr | None, width: int
    ) -> None:
        """Store result `number`, which is in `total`, along `rows` and `columns`."""
        store = self._find_store(number)
        if store is None:
            return
        line = block.open_nested()
        bind_ranges(line, rows.symbol)
        place = times(minus(Name(rows.variable), rows.begin), width)
        if columns is not None:
            place = plus(place, Name(columns.name))
        point = line.open_nested() if columns is not None else line
        if columns is not None:
            bind_ranges(point, columns)
        point.known[parameter(number, _WIDE)] = point.declare(_WIDE, "result", Element(total, place))
        point.store_all((store,))
        if columns is not None:
            count = line.index(get_extent(columns))
            line.add(For(columns.name, ZERO, count, point.body(), simd=True))
        block.add(For(rows.variable, rows.begin, rows.end, line.body()))

    def _find_store(self, number: int) -> Store | None:
        for store in self.plan.kernel.stores:
            values = iterate_postorder((store.value,))
            if any(isinstance(v, Parameter) and v.position == number for v in values):
                return store
        return None
