"""Attention: a unit of work has a block of rows, which goes through the keys with an online softmax.

```
for a unit of work (a point of the ranges around, a block of rows)
  queries[l][y] = query, transposed; sums[y][x] = 0
  for blocks of keys
    scores[r][y] = sum over l of key(r, l) * queries[l][y]
    scores = score(scores), or -inf where the mask hides; most[y] = max over r
    scores = exp(scores - most); total[y] = total[y] * kept[y] + sum over r
    sums[y][x] = sums[y][x] * kept[y] + sum over r of scores[r][y] * value(r, x)
  stores of sums / total
```

Vectors lie along rows: statistics of rows need no folds, and keys and values of f32 are multiplied where they
lie. The algorithm is that of FlashAttention-2 (Dao, 2023). `attention_gradient.py` shares the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Final

from coilwork_cpp.facts import collect_facts
from coilwork_cpp.nests.loops import Span, bind_ranges
from coilwork_cpp.planning.attention import ROWS, AttentionPlan
from coilwork_cpp.values.block import Block, decode_element
from coilwork_cpp.values.element_types import convert, get_memory_type, make_literal
from coilwork_cpp.values.ops import apply
from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    find_stride,
    get_extent,
    multiply_all,
    substitute,
    symbol,
)
from coilwork_ir.kernels import Range, Store, TensorArg
from coilwork_ir.kernels.mask_bounds import Span as KeySpan
from coilwork_ir.kernels.mask_bounds import find_conditions, find_span
from coilwork_ir.kernels.rewrite import list_kernel_roots
from coilwork_ir.scalar import Load, Op, Parameter, Scalar, iterate_postorder, parameter, substitute_ranges
from coilwork_ir.syntax.cpp import (
    ONE,
    ZERO,
    Assign,
    Binary,
    Call,
    Code,
    Declare,
    Do,
    Element,
    For,
    If,
    Literal,
    Member,
    Name,
    Select,
    Statement,
)

_WIDE: Final = DType.F32
_LINE: Final = 16
"""Numbers of a cache line: rows of blocks begin on one, and whole vectors of any size fit them."""
_NOWHERE: Final = make_literal(-inf, _WIDE)
_OFFSET: Final = symbol("rows_begin", lo=0)
_PLACE: Final = symbol("place", lo=0)


@dataclass(frozen=True, slots=True)
class Matrix:
    """Numbers of f32 in memory: where they begin, and how far apart rows and the numbers of a row are."""

    start: Code
    row: Code
    step: Code = ONE


@dataclass(frozen=True, slots=True)
class AttentionBody:
    """A nest: what is declared once per thread, the loop over units, their number, and the work of one."""

    before: tuple[Statement, ...]
    loop: tuple[Statement, ...]
    units: Code
    grain: Code


class AttentionBlock:
    """A block of rows, its memory, and its way through the keys."""

    def __init__(self, plan: AttentionPlan, args: dict[str, TensorArg], grain: int) -> None:
        kernel = plan.kernel
        self.plan, self.roles, self.weights = plan, plan.roles, plan.core.weights
        self.grain = grain
        sizes: dict[Expr, Code] = {size: Name(size.name) for size in kernel.sizes}
        ranges = {r.symbol.name for r in kernel.ranges}
        names = FreshNames({*args, *(s.name for s in kernel.sizes), *ranges})
        facts = collect_facts(list_kernel_roots(kernel), (r.symbol for r in kernel.ranges))
        self.top = Block(args=args, symbols=sizes, facts=facts, names=names)
        self.rows, self.keys = self.roles.rows.symbol, self.roles.keys.symbol
        self.terms, self.columns = self.roles.length.symbol, self.roles.columns.symbol
        self.row_span = Span(self.rows, Name("rows_begin"), Name("rows_end"))
        self.key_span = Span(self.keys, Name("keys_begin"), Name("keys_end"))
        self.row_count, self.key_count = Name("row_count"), Name("key_count")
        self._rooms: list[tuple[str, Code]] = []
        self._taken = 0
        self._tiles: dict[Scalar, Name] = {}

    # memory

    def reserve(self, name: str, numbers: int) -> Name:
        """Room for so many numbers of this thread, on a cache line."""
        found = self.top.names.make_suffixed(name)
        self._rooms.append((found, Literal(str(self._taken))))
        self._taken += numbers + -numbers % _LINE
        return Name(found)

    def declare_memory(self) -> tuple[Statement, ...]:
        """Declarations of all rooms that are reserved."""
        room = Call("Workspace<float>", (Literal(str(self._taken + _LINE)),))
        start = Name("rooms")
        return (
            Declare("const Workspace<float>", "workspace", room),
            Declare("float* const", "rooms", Call("align_workspace", (Member(Name("workspace"), "memory"),))),
            *(Declare("float* __restrict const", name, plus(start, at)) for name, at in self._rooms),
        )

    # units

    def bind_point(self, block: Block, number: Code, ranges: Sequence[Range]) -> None:
        """Declare the point of `ranges` that has this `number`."""
        for position, r in enumerate(ranges):
            inner = multiply_all(one.extent for one in ranges[position + 1 :])
            found = number if position == len(ranges) - 1 else Binary("/", number, block.index(inner))
            if position:
                found = Binary("%", found, block.index(r.extent))
            block.add(Declare("const i64", r.symbol.name, found))
            bind_ranges(block, r.symbol)

    def bind_rows(self, block: Block, first: Code) -> None:
        """Declare a block of rows, which begins at `first`."""
        extent = block.index(self.roles.rows.extent)
        end = Call("min_i64", (plus(Name("rows_begin"), Literal(str(ROWS))), extent))
        block.add(
            Declare("const i64", "rows_begin", first),
            Declare("const i64", "rows_end", end),
            Declare("const i64", "row_count", Binary("-", Name("rows_end"), Name("rows_begin"))),
        )
        block.symbols[_OFFSET] = Name("rows_begin")

    def has_uneven_rows(self) -> bool:
        """Tell if blocks of rows near one end have more keys than those near the other."""
        span = self._find_span()
        return (_OFFSET in span.last.free_symbols) != (_OFFSET in span.first.free_symbols)

    def row_blocks(self) -> Expr:
        """Return the number of blocks of rows."""
        return ceildiv(self.roles.rows.extent, ROWS)

    def thread_grain(self, rows: Expr) -> Code:
        """Units of so many `rows` that are worth a thread."""
        vectors = max(1, (self.plan.length + self.plan.columns) // _LINE)
        work = rows * self.roles.keys.extent * vectors
        known = as_int(work)
        if known is not None:
            return Literal(str(max(1, self.grain // max(known, 1))))
        size = Call("max_i64", (self.top.index(work), ONE))
        return Call("max_i64", (Binary("/", Literal(str(self.grain)), size), ONE))

    # operands

    def find_matrix(
        self, block: Block, body: Scalar, rows: Span, columns: Expr, vectors: bool
    ) -> Matrix | None:
        """Return the address and both strides, in elements, of `body` along `rows` and `columns`.

        None: its elements are not plain loads of f32 at constant strides, so that they have to be computed.
        With `vectors`, columns also have to be contiguous, in whole cache lines.
        """
        if not isinstance(body, Load) or body.dtype is not _WIDE or body.indirect or body.mask is not None:
            return None
        index = body.index[0]
        row, step = find_stride(index, rows.symbol), find_stride(index, columns)
        if row is None or step is None or rows.symbol in step.free_symbols or columns in row.free_symbols:
            return None
        if vectors and (as_int(step) != 1 or (as_int(get_extent(columns)) or 1) % _LINE):
            return None
        first = block.open_nested()
        first.symbols[rows.symbol] = rows.begin
        start = first.index(substitute(index, {columns: as_expr(0)}))
        return Matrix(plus(Name(body.buffer), start), block.index(row), block.index(step))

    def fill(self, block: Block, body: Scalar, room: Name, rows: Span, columns: Expr) -> Matrix:
        """Compute `body` along `rows` and `columns` into `room`, with zeros up to whole cache lines."""
        count = as_int(get_extent(columns)) or 0
        width = count + -count % _LINE
        line = block.open_nested()
        bind_ranges(line, rows.symbol)
        line.hoist((body,), frozenset((columns,)))
        point = line.open_nested()
        bind_ranges(point, columns)
        row = times(Binary("-", Name(rows.variable), rows.begin), width)
        value = convert(point.value(body), body.dtype, _WIDE)
        point.add(Assign(Element(room, plus(row, Name(columns.name))), value))
        line.add(For(columns.name, ZERO, Literal(str(count)), point.body(), simd=True))
        if width > count:
            zero = Assign(Element(room, plus(row, Name(columns.name))), make_literal(0, _WIDE))
            line.add(For(columns.name, Literal(str(count)), Literal(str(width)), (zero,)))
        block.add(For(rows.variable, rows.begin, rows.end, line.body()))
        return Matrix(room, Literal(str(width)))

    def transpose(self, block: Block, given: Matrix, room: Name, count: int) -> None:
        """Fill `room` with the transpose of `given`, this block's rows; what has no row is zero."""
        is_short = Binary("<", self.row_count, Literal(str(ROWS)))
        block.add(If(is_short, (fill_zeros(room, Literal(str(ROWS * count))),)))
        sizes = (self.row_count, Literal(str(count)))
        block.add(Do(Call("transpose", (given.start, given.row, room, Literal(str(ROWS)), *sizes))))

    def place_rows(self, block: Block, body: Scalar, columns: Expr, room: Name) -> Matrix:
        """This block's rows of `body` in whole vectors: where they lie, or in `room`."""
        found = self.find_matrix(block, body, self.row_span, columns, vectors=True)
        return found or self.fill(block, body, room, self.row_span, columns)

    def place_keys(
        self, block: Block, body: Scalar, columns: Expr, reserve: Callable[[], Name], vectors: bool
    ) -> Matrix:
        """Return a block of keys of `body`: where they lie, or in a room of their own."""
        found = self.find_matrix(block, body, self.key_span, columns, vectors)
        return found or self.fill(block, body, reserve(), self.key_span, columns)

    # keys

    def loop(self, block: Block, write: Callable[[Block, Code | None], None]) -> None:
        """Write the loop over all blocks of keys in which one counts.

        `write` is given the inside of the loop, and what tells if all keys of a block count; None: all do.
        """
        step, plan = Literal(str(self.plan.keys)), self.plan
        inner = block.open_nested()
        full: Code | None = None
        if plan.lists is not None:
            steps = self._open_lists(block, inner)
            full = Name("is_full")
        else:
            span = self._find_span()
            first = block.declare_index("first_key", block.index(span.first))
            last = block.declare_index("last_key", block.index(span.last))
            distance = Binary("-", Binary("+", last, Literal(str(plan.keys - 1))), first)
            steps = Binary("/", Call("max_i64", (distance, ZERO)), step)
            begin = plus(first, Binary("*", Name("step"), step))
            end = Call("min_i64", (plus(Name("keys_begin"), step), last))
            inner.add(Declare("const i64", "keys_begin", begin), Declare("const i64", "keys_end", end))
            if self.weights.mask is not None:
                full = Literal("false")
            if span.exact and self.weights.mask is not None:
                full_first = block.declare_index("full_first", block.index(span.full_first))
                full_last = block.declare_index("full_last", block.index(span.full_last))
                full = Binary(
                    "&",
                    Binary(">=", Name("keys_begin"), full_first),
                    Binary("<=", Name("keys_end"), full_last),
                )
        inner.add(Declare("const i64", "key_count", Binary("-", Name("keys_end"), Name("keys_begin"))))
        write(inner, full)
        block.add(For("step", ZERO, steps, inner.body()))

    def branch(
        self,
        block: Block,
        full: Code | None,
        roots: Callable[[bool], Sequence[Scalar]],
        write: Callable[[Block, bool], None],
    ) -> None:
        """Write what `write` adds, without the mask where `full` tells that all keys count, and with it
        elsewhere.

        `roots` are what it computes.
        """
        parts: list[Block] = []
        for has_mask in (False, True):
            part = block.open_nested()
            self._stage(part, roots(has_mask))
            write(part, has_mask)
            parts.append(part)
        plain, masked = (part.body() for part in parts)
        if full is None or full == Literal("false"):
            block.add(*(plain if full is None else masked))
        else:
            block.add(If(full, plain, masked))

    def _stage(self, block: Block, roots: Sequence[Scalar]) -> None:
        """Transpose what lies along the keys, so that vectors along rows are read from neighbours."""
        for value in iterate_postorder(roots):
            if not isinstance(value, Load) or value.indirect or value.mask is not None:
                continue
            index = value.index[0]
            row, key = find_stride(index, self.rows), find_stride(index, self.keys)
            if row is None or key is None or as_int(key) != 1 or as_int(row) in (0, 1):
                continue
            if {self.rows, self.keys} & row.free_symbols:
                continue
            tile = self._tiles.get(value)
            if tile is None:
                wide = max(1, value.dtype.itemsize // _WIDE.itemsize)
                tile = self._tiles[value] = self.reserve("tile", self.plan.keys * ROWS * wide)
            kind, name = get_memory_type(value.dtype), block.names.make_suffixed("turned")
            block.add(Declare(f"{kind}* const", name, Call(f"reinterpret_cast<{kind}*>", (tile,))))
            first = block.open_nested()
            first.symbols |= {self.rows: self.row_span.begin, self.keys: self.key_span.begin}
            start = plus(Name(value.buffer), first.index(index))
            counts = (self.row_count, self.key_count)
            to = (Name(name), Literal(str(ROWS)))
            block.add(Do(Call("transpose", (start, block.index(row), *to, *counts))))
            line = times(minus(Name(self.keys.name), self.key_span.begin), ROWS)
            at = plus(line, minus(Name(self.rows.name), self.row_span.begin))
            block.known[value] = decode_element(Element(Name(name), at), value.dtype)

    def _find_span(self) -> KeySpan:
        conditions = find_conditions(self.weights.mask)
        block = (_OFFSET, _OFFSET + (ROWS - 1))
        return find_span(conditions, self.keys, self.rows, block, self.roles.keys.extent)

    def _open_lists(self, block: Block, inner: Block) -> Code:
        """Declare a block of keys that the lists name, and return the number of steps."""
        lists = self.plan.lists
        assert lists is not None
        some, whole = lists.find("keys"), lists.find("full_keys")
        assert some is not None
        steps = Literal(str(lists.key_block // self.plan.keys))
        count = self._read_list(block, some.count)
        first: Code = ZERO
        if whole is not None:
            first = block.declare_index("full_blocks", self._read_list(block, whole.count))
        blocks = block.declare_index("blocks", count if whole is None else plus(first, count))
        place = Binary("/", Name("step"), steps)
        inner.add(Declare("const i64", "place", place))
        inner.add(Declare("const bool", "is_full", Binary("<", Name("place"), first)))
        inner.add(Declare("i64", "key_block"))
        parts = inner.open_nested(), inner.open_nested()
        for part, one, at in (
            (parts[0], whole, Name("place")),
            (parts[1], some, minus(Name("place"), first)),
        ):
            if one is not None:
                part.symbols[_PLACE] = at
                number = self._read_list(part, one.index, lists.key_block)
                part.add(Assign(Name("key_block"), number))
        if whole is None:
            inner.add(*parts[1].body())
        else:
            inner.add(If(Name("is_full"), parts[0].body(), parts[1].body()))
        inside = Binary("*", Binary("%", Name("step"), steps), Literal(str(self.plan.keys)))
        begin = plus(times(Name("key_block"), lists.key_block), inside)
        end = Call(
            "min_i64",
            (plus(Name("keys_begin"), Literal(str(self.plan.keys))), block.index(self.roles.keys.extent)),
        )
        inner.add(Declare("const i64", "keys_begin", begin))
        inner.add(Declare("const i64", "keys_end", Call("max_i64", (end, Name("keys_begin")))))
        return Binary("*", blocks, steps)

    def _read_list(self, block: Block, body: Scalar, length: int = 1) -> Code:
        """`body` for this block of rows, at the place that the loop is at."""
        (moved,) = substitute_ranges((body,), {self.rows: _OFFSET, self.keys: _PLACE * length})
        assert isinstance(moved, Load | Op)
        own = Block(
            args=block.args,
            symbols=block.symbols,
            facts=collect_facts((moved,), ()),
            names=block.names,
        )
        found = convert(own.value(moved), moved.dtype, DType.I64)
        block.add(*own.body())
        return found


# ---- Attention ----


class ForwardBlock(AttentionBlock):
    """A block of rows, its weighted sums and the statistics of its softmax."""

    def write(self) -> AttentionBody:
        """Return all of the nest."""
        plan, top, width = self.plan, self.top, round_up(self.plan.columns)
        self.queries = self.reserve("queries", ROWS * plan.length)
        self.scores = self.reserve("scores", plan.keys * ROWS)
        self.sums = self.reserve("sums", ROWS * width)
        self.most, self.total, self.kept, self.base, self.part = (
            self.reserve(name, ROWS) for name in ("most", "total", "kept", "base", "part")
        )
        unit = top.open_nested()
        blocks = unit.index(self.row_blocks())
        self.bind_point(unit, Binary("/", Name("unit"), blocks), self.roles.others)
        unit.add(Declare("i64", "row_block", Binary("%", Name("unit"), blocks)))
        if self.has_uneven_rows():
            # threads take neighbouring units: long rows and short ones in turn
            last = Binary("-", Binary("-", blocks, ONE), Binary("/", Name("row_block"), Literal("2")))
            half = Binary("/", Name("row_block"), Literal("2"))
            even = Binary("==", Binary("%", Name("row_block"), Literal("2")), ZERO)
            unit.add(Assign(Name("row_block"), Select(even, half, last)))
        self.bind_rows(unit, Binary("*", Name("row_block"), Literal(str(ROWS))))
        given = self.place_rows(
            unit, self.weights.query, self.terms, self.reserve("rows", ROWS * round_up(plan.length))
        )
        self.transpose(unit, given, self.queries, plan.length)
        unit.add(
            _write_loop(ROWS, Assign(Element(self.most, Name("at")), _NOWHERE)),
            fill_zeros(self.total, Literal(str(ROWS))),
            fill_zeros(self.sums, Literal(str(ROWS * width))),
        )
        self.hoist_scores(unit)
        self.loop(unit, self._step)
        for store in plan.kernel.stores:
            self._store(unit, store)
        units = self.row_blocks() * multiply_all(r.extent for r in self.roles.others)
        return AttentionBody(
            before=self.declare_memory(),
            loop=(For("unit", Name("begin"), Name("end"), unit.body()),),
            units=top.index(units),
            grain=self.thread_grain(as_expr(ROWS)),
        )

    def hoist_scores(self, block: Block) -> None:
        """Declare what no score of this block of rows changes."""
        block.hoist(self._roots(has_mask=True), frozenset((self.rows, self.keys)))

    def _roots(self, has_mask: bool) -> tuple[Scalar, ...]:
        mask = self.weights.mask if has_mask else None
        return (self.weights.score,) if mask is None else (self.weights.score, mask)

    def _step(self, block: Block, full: Code | None) -> None:
        weights, plan, width = self.weights, self.plan, round_up(self.plan.columns)
        key = self.place_keys(
            block,
            weights.key,
            self.terms,
            lambda: self.reserve("key_rows", plan.keys * round_up(plan.length)),
            vectors=False,
        )
        rows = Literal(str(ROWS))
        product(
            block,
            0,
            ROWS,
            key,
            Matrix(self.queries, rows),
            Matrix(self.scores, rows),
            self.key_count,
            Literal(str(plan.length)),
        )
        block.add(_write_loop(ROWS, Assign(Element(self.base, Name("at")), Element(self.most, Name("at")))))
        self.branch(block, full, self._roots, self._score)
        self._weigh(block)
        value = self.place_keys(
            block,
            weights.value,
            self.columns,
            lambda: self.reserve("value_rows", plan.keys * width),
            vectors=True,
        )
        weight = Matrix(self.scores, ONE, rows)
        product(
            block,
            2,
            plan.columns,
            weight,
            value,
            Matrix(self.sums, Literal(str(width))),
            self.row_count,
            self.key_count,
            self.kept,
        )

    def _score(self, block: Block, has_mask: bool) -> None:
        """A block of scores, minus infinity where the mask hides, and the most of each row."""
        mask = self.weights.mask if has_mask else None
        line = block.open_nested()
        bind_ranges(line, self.keys)
        line.hoist(self._roots(has_mask), frozenset((self.rows,)))
        point = line.open_nested()
        bind_ranges(point, self.rows)
        place = point.declare_index("place", Binary("-", Name(self.rows.name), Name("rows_begin")))
        row = Binary("-", Name(self.keys.name), Name("keys_begin"))
        score = Element(self.scores, plus(times(row, ROWS), place))
        point.known[parameter(0, _WIDE)] = point.declare(_WIDE, "raw", score)
        value = convert(point.value(self.weights.score), self.weights.score.dtype, _WIDE)
        if mask is not None:
            value = point.declare(_WIDE, "score", value)
            value = Select(point.name_value(mask), value, _NOWHERE)
        found = point.declare(_WIDE, "shown", value)
        old = point.declare(_WIDE, "old", Element(self.base, place))
        point.add(
            Assign(score, found),
            Assign(Element(self.base, place), Select(Binary(">", found, old), found, old)),
        )
        line.add(For(self.rows.name, Name("rows_begin"), Name("rows_end"), point.body(), simd=True))
        block.add(For(self.keys.name, Name("keys_begin"), Name("keys_end"), line.body()))

    def _weigh(self, block: Block) -> None:
        """Make weights of scores, and bring the statistics of rows up to date."""
        at = Name("at")
        most, total, kept = (Element(one, at) for one in (self.most, self.total, self.kept))
        base, part = Element(self.base, at), Element(self.part, at)
        shrunk = Call("exp_f32", (Binary("-", most, Name("low")),))
        block.add(
            For(
                "at",
                ZERO,
                self.row_count,
                (
                    Declare("const float", "top", base),
                    # a row without keys so far
                    Declare(
                        "const float",
                        "low",
                        Select(Binary("==", Name("top"), _NOWHERE), make_literal(0, _WIDE), Name("top")),
                    ),
                    Assign(kept, shrunk),
                    Assign(most, Name("top")),
                    Assign(base, Name("low")),
                    Assign(part, make_literal(0, _WIDE)),
                ),
                simd=True,
            )
        )
        score = Element(self.scores, plus(times(Name("key"), ROWS), at))
        block.add(
            For(
                "key",
                ZERO,
                self.key_count,
                (
                    For(
                        "at",
                        ZERO,
                        self.row_count,
                        (
                            Declare("const float", "weight", Call("exp_f32", (Binary("-", score, base),))),
                            Assign(score, Name("weight")),
                            Assign(part, Binary("+", part, Name("weight"))),
                        ),
                        simd=True,
                    ),
                ),
            )
        )
        # block by block, so that no number takes an addition for each key
        whole = Assign(total, Binary("+", Binary("*", total, kept), part))
        block.add(For("at", ZERO, self.row_count, (whole,), simd=True))

    def _store(self, unit: Block, store: Store) -> None:
        """Store what is made of the sums, or of the logarithm of each row's total."""
        used = {v.position for v in iterate_postorder((store.value,)) if isinstance(v, Parameter)}
        line = unit.open_nested()
        bind_ranges(line, self.rows)
        place = Binary("-", Name(self.rows.name), Name("rows_begin"))
        total = line.declare(_WIDE, "total_weight", Element(self.total, place))
        if 1 in used:
            logs: Code = Binary("+", Element(self.most, place), apply("log", (_WIDE,), _WIDE, (total,)))
            empty: Code = make_literal(0, _WIDE)
            if self.weights.logsumexp == "binary":
                logs = Binary("*", logs, make_literal(1 / log(2), _WIDE))
                empty = _NOWHERE
            hidden = Binary("==", Element(self.most, place), _NOWHERE)
            line.known[parameter(1, _WIDE)] = line.declare(_WIDE, "logsumexp", Select(hidden, empty, logs))
        whole = 0 in used or self.columns in store.index.free_symbols
        if not whole:
            line.store_all((store,))
            unit.add(For(self.rows.name, Name("rows_begin"), Name("rows_end"), line.body()))
            return
        none = Binary("==", total, make_literal(0, _WIDE))
        divisor = line.declare(_WIDE, "divisor", Select(none, make_literal(1, _WIDE), total))
        line.hoist((store.value,), frozenset((self.columns,)))
        point = line.open_nested()
        bind_ranges(point, self.columns)
        sums = Element(self.sums, plus(times(place, round_up(self.plan.columns)), Name(self.columns.name)))
        point.known[parameter(0, _WIDE)] = point.declare(_WIDE, "result", Binary("/", sums, divisor))
        point.store_all((store,))
        count = Literal(str(self.plan.columns))
        line.add(For(self.columns.name, ZERO, count, point.body(), simd=True))
        unit.add(For(self.rows.name, Name("rows_begin"), Name("rows_end"), line.body()))


# ---- Small pieces of code ----


def product(
    block: Block,
    mode: int,
    columns: int,
    left: Matrix,
    right: Matrix,
    to: Matrix,
    rows: Code,
    terms: Code,
    kept: Code | None = None,
) -> None:
    """Multiply `rows` of `left` by `right`, whose numbers of a row are neighbours: see the prelude."""
    arguments = (left.start, left.row, left.step, right.start, right.row, to.start, to.row, rows, terms)
    block.add(Do(Call(f"product<{mode}, {columns}>", (*arguments, to.start if kept is None else kept))))


def fill_zeros(room: Name, numbers: Code) -> For:
    """Fill so many `numbers` of `room` with zeros."""
    return For("at", ZERO, numbers, (Assign(Element(room, Name("at")), make_literal(0, _WIDE)),), simd=True)


def _write_loop(count: int, statement: Statement) -> For:
    return For("at", ZERO, Literal(str(count)), (statement,), simd=True)


def round_up(count: int) -> int:
    """`count` as whole cache lines of numbers."""
    return count + -count % _LINE


def plus(left: Code, right: Code) -> Code:
    """`left + right`."""
    if left == ZERO:
        return right
    return left if right == ZERO else Binary("+", left, right)


def minus(left: Code, right: Code) -> Code:
    """`left - right`."""
    return left if right == ZERO else Binary("-", left, right)


def times(value: Code, factor: Code | int) -> Code:
    """`value * factor`."""
    if isinstance(factor, int):
        factor = Literal(str(factor))
    return value if factor == ONE else Binary("*", value, factor)
