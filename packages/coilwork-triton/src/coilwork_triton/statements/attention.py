"""The statements of attention and of its gradient: loops over blocks with an online softmax in powers of 2.

A program of attention has a block of rows and goes through the keys. A program of the gradient has a block of
rows, for which it sums the gradient of queries over the keys, or a block of keys, for which it sums those of
keys and values over the rows. Scores are never in memory. The algorithm is that of FlashAttention-2 (Dao,
2023).

Blocks in which no key counts are skipped, and blocks in which all count have no mask: as comparisons of
positions in the mask tell (`facts/mask_bounds.py`), or else as lists of blocks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isinf, log
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import (
    Expr,
    as_expr,
    as_int,
    ceildiv,
    floordiv,
    maximum,
    mod,
    product,
    provably_divisible,
    symbol,
)
from coilwork_ir.kernels import Kernel, Range, Store
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.loops.nodes import BlockList, BlockLists, BlockSide
from coilwork_ir.mapping.directive import values_of
from coilwork_ir.scalar import (
    Const,
    Load,
    Op,
    Parameter,
    Scalar,
    parameter,
    postorder,
    range_symbols,
    substitute_ranges,
)
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Expression,
    For,
    If,
    List,
    Name,
    Number,
    Statement,
    Text,
    call,
    method,
)
from coilwork_triton.attention_plan import (
    PlannedAttention,
    Sharing,
    find_core,
    find_sharing,
    index_of_store,
    roles_of,
)
from coilwork_triton.facts.kernel_analysis import Levels, find_levels
from coilwork_triton.facts.mask_bounds import find_conditions, find_span
from coilwork_triton.iteration.shape import Shape, Tile, build_flat_tile
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import BLOCKS, STAGES, Letter
from coilwork_triton.statements.actions import perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import Writer, fill_shape, insert_axes, tl, tl_name, triton_type

_LOG2_E: Final = 1 / log(2)
_OFFSET: Final = symbol("yoffset", lo=0)
_BLOCK: Final = symbol(BLOCKS["y"], lo=1)
_STEP: Final = symbol(BLOCKS["r"], lo=1)
_PLACE: Final = symbol("place", lo=0)
_PROGRAM: Final = symbol("zprogram", lo=0)
_SHARED: Final = symbol("shared", lo=0)
_NOWHERE: Final = call("float", Text("-inf"))
# Operations whose results are finite where their operands are, of a moderate size.
_FINITE: Final = frozenset({"add", "sub", "mul", "tanh", "neg", "cast", "abs", "minimum", "maximum"})

Body: TypeAlias = Callable[[bool, bool], tuple[Statement, ...]]
"""The statements for one block of a loop: if the mask is asked, and if points may lie behind the end."""


# ---- Entry ----


def emit_attention(plan: PlannedAttention, library: set[str]) -> tuple[Statement, ...]:
    """All statements of the kernel's function. Names of device functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    core = find_core(plan.kernel)
    assert core is not None
    _require_sides(plan.kernel)
    program: Expression = tl("program_id", Number(0))
    if plan.index_dtype is DType.I64:
        program = method(program, "to", tl_name("int64"))
    start = Assign(("program",), program)
    if isinstance(core, AttentionCore):
        return (start, *_Forward(plan, core, library).statements())
    of_keys = _GradientOfKeys(plan, core, library)
    of_query = _GradientOfQuery(plan, core, library)
    count = of_keys.count_programs()
    return (
        start,
        Assign(("first_programs",), count),
        If(
            Binary("<", Name("program"), Name("first_programs")),
            of_keys.statements(),
            (
                Assign(("program",), Binary("-", Name("program"), Name("first_programs"))),
                *of_query.statements(),
            ),
        ),
    )


def grid_of_attention(plan: PlannedAttention) -> tuple[Expr, ...]:
    """One extent, over sizes and block names."""
    kernel = plan.kernel
    roles = roles_of(kernel)
    others = product(r.extent for r in roles.others)
    programs = ceildiv(roles.rows.extent, _BLOCK) * others
    if isinstance(kernel.core, AttentionGradientCore):
        outer = product(floordiv(s.extent, s.count) for s in _sharing_of_keys(kernel))
        programs = programs + ceildiv(roles.keys.extent, _BLOCK) * outer
    return (programs,)


def _require_sides(kernel: Kernel) -> None:
    """Refuse operands that are not of one side alone, and gradients that are not summed by one program."""
    core, roles = find_core(kernel), roles_of(kernel)
    assert core is not None
    weights, row = core.weights, roles.rows.symbol
    if row in range_symbols((weights.key,)) or row in range_symbols((weights.value,)):
        raise EmitError(core.kind, "keys or values differ from row to row")
    if isinstance(core, AttentionGradientCore):
        if core.bias is not None:
            raise EmitError(core.kind, "no gradient of a bias is summed")
        index = index_of_store(kernel, 0)
        shared = None if index is None else find_sharing(kernel, roles, index)
        if shared is None or any(as_int(one.count) != 1 for one in shared):
            raise EmitError(core.kind, "several points share a query")
        _sharing_of_keys(kernel)


def _sharing_of_keys(kernel: Kernel) -> tuple[Sharing, ...]:
    """How points of the other ranges share keys and values."""
    roles = roles_of(kernel)
    found = []
    for number in (1, 2):
        index = index_of_store(kernel, number)
        found.append(None if index is None else find_sharing(kernel, roles, index))
    if found[0] is None or found[0] != found[1]:
        raise EmitError("attention-gradient", "points do not share keys as they share values")
    return found[0]


# ---- One block against the other side ----


class _Branch:
    """A program's block of one side, `fixed`, and the loops over the other, `looped`.

    The tile of the former is `y`, that of the latter `r`; `x` has the columns of values, `l` the length of
    products, and `z` the other ranges.
    """

    def __init__(
        self,
        plan: PlannedAttention,
        core: AttentionCore | AttentionGradientCore,
        library: set[str],
        *,
        fixed: Range,
        looped: Range,
    ) -> None:
        kernel = plan.kernel
        self.plan, self.kernel, self.weights, self.library = plan, kernel, core.weights, library
        self.roles = roles_of(kernel)
        self.fixed, self.looped = fixed, looped
        ranges = frozenset(r.symbol for r in kernel.ranges)
        wide, scores = core.weights.accumulate, frozenset((self.roles.rows.symbol, self.roles.keys.symbol))
        self.levels = find_levels(
            core.bodies, ranges, given={parameter(0, wide): scores, parameter(1, wide): scores}
        )
        taken = {a.name for a in kernel.args} | {s.name for s in kernel.sizes}
        taken |= {r.symbol.name for r in kernel.ranges}
        self.writer = Writer(FreshNames(taken), library)
        self.spaces: list[Space] = []
        self.outer: dict[Scalar, Scope] = {}
        self.numbers = {name: values_of(number) for name, number in plan.parameters.items()}
        self.others = (
            build_flat_tile("z", list(self.roles.others), None, False) if self.roles.others else None
        )

    # tiles and spaces

    def tile(self, letter: Letter, axis: int, *, ragged: bool | None = None) -> Tile:
        """The tile `letter` along dimension `axis` of blocks; `ragged` tells if it may lie behind its end."""
        ranges = {
            "y": self.fixed,
            "r": self.looped,
            "x": self.roles.columns,
            "l": self.roles.length,
        }
        masked = self.is_ragged(letter) if ragged is None else ragged
        return build_flat_tile(letter, [ranges[letter]], axis, masked)

    def is_ragged(self, letter: Letter) -> bool:
        """True if some candidate's blocks do not divide the points of the tile `letter`."""
        ranges = {
            "y": self.fixed,
            "r": self.looped,
            "x": self.roles.columns,
            "l": self.roles.length,
        }
        extent = ranges[letter].extent
        return not all(provably_divisible(extent, size) for size in self.numbers[BLOCKS[letter]])

    def values(self, tiles: Sequence[Tile], roots: Sequence[Scalar], levels: Levels | None = None) -> Values:
        """The writer of `roots` over blocks of `tiles`."""
        shape = Shape(
            grids=self.plan.target.machine.grids,
            tiles=(*(() if self.others is None else (self.others,)), *tiles),
            walk="looped",
            parameters=tuple(self.numbers),
            index_dtype=self.plan.index_dtype,
            flat_grid=True,
            scalar_access=False,
            zeros=True,
        )
        given = (_OFFSET, _BLOCK, _STEP, _PLACE, _PROGRAM, _SHARED)
        space = Space(self.kernel, shape, self.library, given)
        self.spaces.append(space)
        return Values(self.kernel, shape, levels or self.levels, space, roots, self.library)

    def print_index(self, expr: Expr) -> Expression:
        """`expr`, over sizes, other ranges and the numbers of this program."""
        return self.values((), ()).space.index(expr)

    # operands

    def operand(self, body: Scalar, first: Tile, second: Tile, writer: Writer) -> Expression:
        """A block of `body`, zero behind the ends of what is summed along. Its lines go to `writer`."""
        values = self.values((first, second), (body,))
        scope = self._open_scope(values, (body,), writer)
        found = values.expression(scope, body)
        summed = frozenset("rlx") & {first.letter, second.letter}
        inside = None if _is_zero_outside(body) else values.space.mask(summed)
        if inside is not None:
            found = tl("where", inside, found, Number(0))
        whole = (first.block, second.block)
        if values.block(body) != whole:
            found = tl("broadcast_to", found, List(tuple(Name(block) for block in whole)))
        name = found if isinstance(found, Name) else scope.writer.bind("operand", found)
        self._close_scope(values, scope, writer)
        return name

    def _open_scope(self, values: Values, roots: Sequence[Scalar], writer: Writer) -> Scope:
        """A scope inside the loop, in which `roots` are known; what the loop does not change is computed
        before.
        """
        if writer is self.writer:
            scope = Scope(writer=self.writer)
            values.compute(scope, values.find_pending(scope, roots))
            return scope
        outer = self.outer.setdefault(roots[0], Scope(writer=self.writer))
        order = values.find_pending(outer, roots)
        values.compute(outer, [node for node in order if not self._is_changing(node)])
        inner = Scope(writer=writer.inner(), parent=outer)
        values.compute(inner, order)
        return inner

    def _is_changing(self, node: Scalar) -> bool:
        return self.looped.symbol in self.levels.varies[node]

    def _close_scope(self, values: Values, scope: Scope, writer: Writer) -> None:
        if scope.writer is not writer:
            writer.statements += [*values.space.reduction_lines(looped=True), *scope.writer.statements]

    # loops

    def loop(self, body: Body) -> None:
        """Write the loops over all blocks of the other side in which a key counts."""
        weights, writer = self.weights, self.writer
        conditions = find_conditions(weights.mask)
        block = (_OFFSET, _OFFSET + _BLOCK - 1)
        span = find_span(conditions, self.looped.symbol, self.fixed.symbol, block, self.looped.extent)
        ragged = self.is_ragged("r")
        lists = weights.blocks if self._takes_lists() else None
        if not span.exact and lists is not None:
            self._loop_over_lists(lists, body, ragged)
            return
        first: Expression = Number(0)
        if as_int(span.first) != 0:
            first = writer.bind("first", self.print_index(floordiv(span.first, _STEP) * _STEP))
        last = writer.bind("last", self.print_index(span.last))
        if not span.exact:
            self._loop_over_range(first, last, body(True, ragged))
            return
        if as_int(span.full_first) != 0:
            full = self.print_index(ceildiv(span.full_first, _STEP) * _STEP)
            middle = writer.bind("full_first", full)
            self._loop_over_range(first, tl("minimum", middle, last), body(True, ragged))
            first = middle
        if span.full_last is span.last and not ragged:
            self._loop_over_range(first, last, body(False, False))
            return
        end = self.print_index(floordiv(maximum(span.full_last, 0), _STEP) * _STEP)
        end = writer.bind("full_last", end if first == Number(0) else tl("maximum", end, first))
        self._loop_over_range(first, end, body(False, False))
        self._loop_over_range(end, last, body(weights.mask is not None, ragged))

    def _loop_over_range(self, first: Expression, last: Expression, body: tuple[Statement, ...]) -> None:
        bounds = (first, last, Name(BLOCKS["r"]))
        values = tl("range", *bounds, num_stages=Name(STAGES))
        self.writer.statements.append(For(LOOP_OFFSET.id, values, body))

    def _takes_lists(self) -> bool:
        """True if blocks of this kernel divide those of the lists."""
        lists = self.weights.blocks
        if lists is None:
            return False
        on_rows = self.fixed is self.roles.rows
        sizes = (lists.row_block, lists.key_block)
        fixed, looped = sizes if on_rows else sizes[::-1]
        side: BlockSide = "keys" if on_rows else "rows"
        return (
            lists.find(side) is not None
            and all(fixed % size == 0 for size in self.numbers[BLOCKS["y"]])
            and all(looped % size == 0 for size in self.numbers[BLOCKS["r"]])
        )

    def _loop_over_lists(self, lists: BlockLists, body: Body, ragged: bool) -> None:
        on_rows = self.fixed is self.roles.rows
        sides: tuple[BlockSide, BlockSide] = ("full_keys", "keys") if on_rows else ("full_rows", "rows")
        length = lists.key_block if on_rows else lists.row_block
        for side in sides:
            one = lists.find(side)
            if one is not None:
                self._loop_over_list(one, length, body(side == sides[1], ragged))

    def _loop_over_list(self, one: BlockList, length: int, body: tuple[Statement, ...]) -> None:
        steps = Binary("//", Number(length), Name(BLOCKS["r"]))
        count = self._read_list(one.count, self.writer)
        stop = self.writer.bind("steps", Binary("*", count, steps))
        inner = self.writer.inner()
        inner.statements.append(Assign((_PLACE.name,), Binary("//", Name("step"), steps)))
        number = self._read_list(one.index, inner, length)
        rest = Binary("*", Binary("%", Name("step"), steps), Name(BLOCKS["r"]))
        offset = Binary("+", Binary("*", number, Number(length)), rest)
        inner.statements.append(Assign((LOOP_OFFSET.id,), offset))
        values = tl("range", Number(0), stop, num_stages=Name(STAGES))
        self.writer.statements.append(For("step", values, (*inner.statements, *body)))

    def _read_list(self, body: Scalar, writer: Writer, length: int = 1) -> Expression:
        """`body` for this program's block, at the place that the loop is at."""
        mapping = {self.fixed.symbol: _OFFSET, self.looped.symbol: _PLACE * length}
        (moved,) = substitute_ranges((body,), mapping)
        levels = find_levels((moved,), frozenset(r.symbol for r in self.kernel.ranges))
        values = self.values((), (moved,), levels)
        scope = Scope(writer=writer)
        values.compute(scope, values.find_pending(scope, (moved,)))
        found = values.expression(scope, moved)
        if moved.dtype.itemsize == 8:
            found = method(found, "to", tl_name("int32"))
        return found

    # programs

    def lines(self, program: Expression, other: Expression) -> tuple[Statement, ...]:
        """Definitions of extents and positions, for the block `program` and the point `other` of the rest."""

        def number(tile: Tile) -> Expression:
            return {"y": program, "z": other}.get(tile.letter, Number(0))

        extents = [line for space in self.spaces for line in space.extents()]
        start = Assign((_OFFSET.name,), Binary("*", program, Name(BLOCKS["y"])))
        positions = [line for space in self.spaces for line in space.positions(number)]
        return tuple(dict.fromkeys((*extents, start, *positions)))

    def store(
        self, store: Store, second: Letter, results: dict[Scalar, tuple[Expression, frozenset[Expr]]]
    ) -> None:
        """Write `store`, over blocks of `y` and `second`, of these results of the core."""
        roots = (store.value, *store.indirect, *(() if store.mask is None else (store.mask,)))
        ranges = frozenset(r.symbol for r in self.kernel.ranges)
        levels = find_levels(roots, ranges, given={node: along for node, (_, along) in results.items()})
        values = self.values((self.tile("y", 0), self.tile(second, 1)), roots, levels)
        scope = Scope(writer=self.writer, bound={node: found for node, (found, _) in results.items()})
        values.compute(scope, values.find_pending(scope, roots))
        perform(values, scope, store)

    # scores

    def is_hiding(self) -> bool:
        """True if a score may be minus infinity where the mask holds."""
        return not all(
            isinstance(node, Parameter)
            or (isinstance(node, Const) and not isinf(float(node.value)))
            or (isinstance(node, Load) and not node.dtype.is_float)
            or (isinstance(node, Op) and node.op in _FINITE)
            or not node.dtype.is_float
            for node in postorder((self.weights.score,))
        )


def _is_zero_outside(body: Scalar) -> bool:
    """Loads find zeros outside of their tiles; what only changes their type leaves them zeros."""
    while isinstance(body, Op) and body.op == "cast":
        (body,) = body.operands
    return isinstance(body, Load) and body.mask is None


def _scale_of(body: Scalar, number: int) -> float | None:
    """The positive number that `body` multiplies parameter `number` by, if that is all it does."""
    if isinstance(body, Parameter):
        return 1.0 if body.position == number else None
    if not isinstance(body, Op) or body.op != "mul":
        return None
    for value, factor in (body.operands, body.operands[::-1]):
        if isinstance(value, Parameter) and value.position == number and isinstance(factor, Const):
            return float(factor.value) if 0 < float(factor.value) < inf else None
    return None


def _dot(left: Expression, right: Expression, dtype: DType, total: Expression | None = None) -> Expression:
    exact: dict[str, Expression] = {"input_precision": Text("ieee")} if dtype is DType.F32 else {}
    return tl("dot", left, right, *(() if total is None else (total,)), **exact)


def _transpose(value: Expression) -> Expression:
    return tl("trans", value)


def _convert(value: Expression, dtype: DType) -> Expression:
    return value if dtype is DType.F32 else method(value, "to", triton_type(dtype))


def _joined(first: DType, second: DType) -> DType:
    """The type that operands of these types are multiplied in."""
    return first if first is second else DType.F32


def _column(value: Expression) -> Expression:
    return insert_axes(value, (True, False))


# ---- Attention ----


class _Forward(_Branch):
    """Attention: a block of rows, and all keys."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)

    def statements(self) -> tuple[Statement, ...]:
        """All statements behind the program's number."""
        kernel, writer, weights = self.kernel, self.writer, self.weights
        y, x = BLOCKS["y"], BLOCKS["x"]
        self.query = self.operand(weights.query, self.tile("y", 0), self.tile("l", 1), writer)
        most, total, sums = Name("most"), Name("total"), Name("sums")
        writer.assign((most,), fill_shape((y,), -inf, DType.F32))
        writer.assign((total,), fill_shape((y,), 0, DType.F32))
        writer.assign((sums,), fill_shape((y, x), 0, DType.F32))
        self.loop(self._step)
        divisor: Expression = tl("where", Binary("==", total, Number(0)), Number(1.0), total)
        result = writer.bind("result", Binary("/", sums, _column(divisor)))
        rows = frozenset(weights.rows)
        results: dict[Scalar, tuple[Expression, frozenset[Expr]]] = {
            parameter(0, DType.F32): (result, frozenset(weights.ranges))
        }
        if any(
            isinstance(v, Parameter) and v.position == 1 for s in kernel.stores for v in postorder((s.value,))
        ):
            logs: Expression = Binary("+", most, tl("log2", total))
            if weights.logsumexp == "natural":
                natural = Binary("*", logs, Number(log(2)))
                logs = tl("where", Binary("==", most, _NOWHERE), Number(0.0), natural)
            found = writer.bind("logsumexp", _column(writer.bind("logarithm", logs)))
            results[parameter(1, DType.F32)] = (found, rows)
        for store in kernel.stores:
            self.store(store, "x", results)
        count = tl("cdiv", self.print_index(self.fixed.extent), Name(y))
        number: Expression = Binary("%", Name("program"), Name("yprograms"))
        if self._is_growing():
            # programs with the most keys begin first
            number = Binary("-", Binary("-", Name("yprograms"), Number(1)), number)
        starts = (
            Assign(("yprograms",), count),
            Assign(("yprogram",), number),
            Assign((_PROGRAM.name,), Binary("//", Name("program"), Name("yprograms"))),
        )
        lines = self.lines(Name("yprogram"), Name(_PROGRAM.name))
        return (*starts, *lines, *writer.statements)

    def _is_growing(self) -> bool:
        """True if later rows have more keys."""
        block = (_OFFSET, _OFFSET + _BLOCK - 1)
        conditions = find_conditions(self.weights.mask)
        span = find_span(conditions, self.looped.symbol, self.fixed.symbol, block, self.looped.extent)
        return _OFFSET in span.last.free_symbols and _OFFSET not in span.first.free_symbols

    def _step(self, has_mask: bool, ragged: bool) -> tuple[Statement, ...]:
        weights = self.weights
        writer = self.writer.inner()
        tile = self.tile("r", 0, ragged=ragged)
        key = self.operand(weights.key, tile, self.tile("l", 1), writer)
        both = _joined(weights.query.dtype, weights.key.dtype)
        query, other = (
            _convert(value, both) if dtype is not both else value
            for value, dtype in ((self.query, weights.query.dtype), (key, weights.key.dtype))
        )
        raw = writer.bind("raw", _dot(query, _transpose(other), both))
        tiles = (self.tile("y", 0), replace(tile, axis=1))
        mask = weights.mask if has_mask else None
        scale = _scale_of(weights.score, 0)
        roots = (*(() if scale is not None else (weights.score,)), *(() if mask is None else (mask,)))
        values = self.values(tiles, roots)
        outer = self.outer.setdefault(weights.score, Scope(writer=self.writer))
        order = values.find_pending(outer, roots)
        given = parameter(0, DType.F32)
        values.compute(outer, [n for n in order if n is not given and not self._is_changing(n)])
        inner = Scope(writer=writer.inner(), parent=outer, bound={given: raw})
        values.compute(inner, values.find_pending(inner, roots))
        score: Expression = raw if scale is not None else values.expression(inner, weights.score)
        factor = _LOG2_E * (1.0 if scale is None else scale)
        hidden = self.hide(values, inner, mask, ragged)
        if hidden is not None:
            score = inner.writer.bind("score", tl("where", hidden, score, _NOWHERE))
        elif not isinstance(score, Name):
            score = inner.writer.bind("score", score)
        # a score of one row for all, or of one key for all, is spread
        self._close_scope(values, inner, writer)
        most, total, sums = Name("most"), Name("total"), Name("sums")
        if scale is None and self.levels.varies[weights.score].isdisjoint((self.fixed.symbol,)):
            score = writer.bind("score", Binary("+", score, tl("zeros_like", raw)))
        top = Binary("*", tl("max", score, Number(1)), Number(factor))
        new = writer.bind("new_most", tl("maximum", most, top))
        base: Expression = new
        if hidden is not None or self.is_hiding():
            base = writer.bind("base", tl("where", Binary("==", new, _NOWHERE), Number(0.0), new))
        power = tl("exp2", Binary("-", Binary("*", score, Number(factor)), _column(base)))
        weight = writer.bind("weight", power)
        kept = writer.bind("kept", tl("exp2", Binary("-", most, base)))
        writer.assign((total,), Binary("+", Binary("*", total, kept), tl("sum", weight, Number(1))))
        writer.assign((sums,), Binary("*", sums, _column(kept)))
        value = self.operand(weights.value, tile, self.tile("x", 1), writer)
        writer.assign((sums,), _dot(_convert(weight, weights.value.dtype), value, weights.value.dtype, sums))
        writer.assign((most,), new)
        return tuple(writer.statements)

    def hide(self, values: Values, scope: Scope, mask: Scalar | None, ragged: bool) -> Expression | None:
        return hide(values, scope, mask, ragged)


def hide(values: Values, scope: Scope, mask: Scalar | None, ragged: bool) -> Expression | None:
    """True where a key counts; None where all do."""
    found = [] if mask is None else [values.expression(scope, mask)]
    inside = values.space.mask(frozenset("r")) if ragged else None
    found += [] if inside is None else [inside]
    if not found:
        return None
    return found[0] if len(found) == 1 else Binary("&", found[0], found[1])


# ---- The gradient ----


class _Gradient(_Branch):
    """What both kinds of programs of the gradient share: weights and slopes of a block of scores."""

    core: AttentionGradientCore
    first: Expression
    second: Expression

    def slopes(
        self,
        writer: Writer,
        raw: Expression,
        of_weight: Callable[[], Expression],
        inner: Expression | None,
        tile: Tile,
        *,
        has_mask: bool,
        ragged: bool,
    ) -> tuple[Expression, Expression]:
        """Blocks of weights, and of slopes of raw scores less a constant factor. `of_weight` writes what
        weights pass on, and `inner` is what all of a row pass on, if no body says it.
        """
        core, weights = self.core, self.weights
        mask = weights.mask if has_mask else None
        scale, slope = _scale_of(weights.score, 0), _scale_of(core.slope, 1)
        wanted = [] if scale is not None else [weights.score]
        wanted += [core.logsumexp, *(() if core.inner is None else (core.inner,))]
        before = (*wanted, *(() if mask is None else (mask,)))
        roots = (*before, *(() if slope is not None else (core.slope,)))
        values = self.values((self.tile("y", 0), replace(tile, axis=1)), roots)
        outer = self.outer.setdefault(weights.score, Scope(writer=self.writer))
        raw_score, passed_on = parameter(0, DType.F32), parameter(1, DType.F32)
        order = values.find_pending(outer, roots)
        values.compute(outer, [n for n in order if not isinstance(n, Parameter) and not self._is_changing(n)])
        scope = Scope(writer=writer.inner(), parent=outer, bound={raw_score: raw})
        values.compute(scope, values.find_pending(scope, before))
        score: Expression = raw if scale is not None else values.expression(scope, weights.score)
        factor = _LOG2_E * (1.0 if scale is None else scale)
        logs = values.expression(scope, core.logsumexp)
        if weights.logsumexp == "natural":
            logs = Binary("*", logs, Number(_LOG2_E))
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
        through = of_weight()
        passed = scope.writer.bind("passed", Binary("*", weight, Binary("-", through, inner)))
        found: Expression = passed
        if slope is None:
            scope.bound[passed_on] = passed
            values.compute(scope, values.find_pending(scope, (core.slope,)))
            found = values.expression(scope, core.slope)
            if hidden is not None:
                found = tl("where", hidden, found, Number(0.0))
        if not isinstance(found, Name):
            found = scope.writer.bind("slope", found)
        self._close_scope(values, scope, writer)
        return weight, found

    @property
    def factor(self) -> float:
        """What slopes are multiplied by behind the sums."""
        return _scale_of(self.core.slope, 1) or 1.0

    def scaled(self, total: Expression) -> Expression:
        """`total`, a sum of slopes times something, with the constant factor."""
        return total if self.factor == 1.0 else Binary("*", total, Number(self.factor))

    def store_result(self, number: int, second: Letter, found: Expression) -> None:
        """Store result `number`, which is `found`."""
        node = parameter(number, DType.F32)
        for store in self.kernel.stores:
            if node in postorder((store.value,)):
                along = frozenset(store.index.free_symbols)
                self.store(store, second, {node: (found, along)})

    def sum_rows(self, gradient: Expression, output: Expression, *, along: tuple[bool, bool]) -> Expression:
        """What all weights of each row pass on, from both as blocks of rows by columns."""
        wide = [method(value, "to", tl_name("float32")) for value in (gradient, output)]
        return insert_axes(tl("sum", Binary("*", *wide), Number(1)), along)


class _GradientOfQuery(_Gradient):
    """A block of rows, and all keys: the gradient of queries."""

    def __init__(self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)
        self.core = core

    def statements(self) -> tuple[Statement, ...]:
        """All statements behind the program's number."""
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
        self.loop(self._step)
        self.store_result(0, "l", writer.bind("result", self.scaled(total)))
        count = tl("cdiv", self.print_index(self.fixed.extent), Name(BLOCKS["y"]))
        starts = (
            Assign(("yprograms",), count),
            Assign(("yprogram",), Binary("%", Name("program"), Name("yprograms"))),
            Assign((_PROGRAM.name,), Binary("//", Name("program"), Name("yprograms"))),
        )
        lines = self.lines(Name("yprogram"), Name(_PROGRAM.name))
        return (*starts, *lines, *writer.statements)

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
            lambda: _product(self.second, core.gradient.dtype, value, weights.value.dtype),
            self.inner,
            tile,
            has_mask=has_mask,
            ragged=ragged,
        )
        total, dtype = Name("of_query"), weights.key.dtype
        writer.assign((total,), _dot(_convert(slope, dtype), key, dtype, total))
        return tuple(writer.statements)


def _product(left: Expression, first: DType, right: Expression, second: DType) -> Expression:
    """`left` times the transpose of `right`."""
    both = _joined(first, second)
    if first is not second:
        left, right = (method(value, "to", triton_type(both)) for value in (left, right))
    return _dot(left, _transpose(right), both)


class _GradientOfKeys(_Gradient):
    """A block of keys, and all rows: the gradients of keys and values."""

    def __init__(self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.keys, looped=roles.rows)
        self.core = core
        self.sharing = _sharing_of_keys(plan.kernel)

    def count_programs(self) -> Expression:
        """The number of programs that have a block of keys."""
        outer = product(floordiv(s.extent, s.count) for s in self.sharing)
        count = tl("cdiv", self.print_index(self.fixed.extent), Name(BLOCKS["y"]))
        return Binary("*", count, self.print_index(outer))

    def statements(self) -> tuple[Statement, ...]:
        """All statements behind the program's number."""
        weights, top = self.weights, self.writer
        keys = self.tile("y", 0)
        self.first = self.operand(weights.key, keys, self.tile("l", 1), top)
        self.second = self.operand(weights.value, keys, self.tile("x", 1), top)
        of_key, of_value = Name("of_key"), Name("of_value")
        top.assign((of_key,), fill_shape((BLOCKS["y"], BLOCKS["l"]), 0, DType.F32))
        top.assign((of_value,), fill_shape((BLOCKS["y"], BLOCKS["x"]), 0, DType.F32))
        count = product(s.count for s in self.sharing)
        shared = as_int(count) != 1
        if shared:
            self.writer = top.inner()
        self.loop(self._step)
        looped, self.writer = self.writer, top
        before = len(top.statements)
        self.store_result(1, "l", top.bind("result", self.scaled(of_key)))
        self.store_result(2, "x", of_value)
        count_of_blocks = tl("cdiv", self.print_index(self.fixed.extent), Name(BLOCKS["y"]))
        starts: list[Statement] = [
            Assign(("yprograms",), count_of_blocks),
            Assign(("yprogram",), Binary("%", Name("program"), Name("yprograms"))),
            Assign((_PROGRAM.name,), Binary("//", Name("program"), Name("yprograms"))),
        ]
        point = self._find_point(_SHARED if shared else as_expr(0))
        other = Number(0) if point is None else self.print_index(point)
        lines = self.lines(Name("yprogram"), other)
        if not shared:
            return (*starts, *lines, *top.statements)
        starts.append(Assign((_SHARED.name,), Number(0)))
        moved = [line for line in lines if self._is_of_others(line)]
        values = call("range", Number(0), self.print_index(count))
        around = For(_SHARED.name, values, (*moved, *looped.statements))
        return (*starts, *lines, *top.statements[:before], around, *top.statements[before:])

    def _is_of_others(self, line: Statement) -> bool:
        """True if `line` defines a position of the other ranges."""
        tile = self.others
        if tile is None or not isinstance(line, Assign):
            return False
        return line.targets[0] in {tile.index.name, *(part.name for part, _ in tile.parts)}

    def _find_point(self, shared: Expr) -> Expr | None:
        """The point of the other ranges that a program and the number of a point that shares its keys give."""
        if not self.sharing:
            return None
        outer, inner = _PROGRAM, shared
        digits: list[Expr] = []
        for one in reversed(self.sharing):
            outers = floordiv(one.extent, one.count)
            digits.append(mod(outer, outers) * one.count + mod(inner, one.count))
            outer, inner = floordiv(outer, outers), floordiv(inner, one.count)
        point = as_expr(0)
        for one, digit in zip(self.sharing, reversed(digits), strict=True):
            point = point * one.extent + digit
        return point

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
            lambda: _product(self.second, weights.value.dtype, gradient, core.gradient.dtype),
            inner,
            tile,
            has_mask=has_mask,
            ragged=ragged,
        )
        of_key, of_value = Name("of_key"), Name("of_value")
        dtype = core.gradient.dtype
        writer.assign((of_value,), _dot(_convert(weight, dtype), gradient, dtype, of_value))
        dtype = weights.query.dtype
        writer.assign((of_key,), _dot(_convert(slope, dtype), query, dtype, of_key))
        return tuple(writer.statements)
