"""A program's block of one side of an attention, and its loops over the other side.

Blocks in which no key counts are skipped, and blocks in which all count have no mask: as comparisons of
positions in the mask tell (`coilwork_ir/kernels/mask_bounds.py`), or else as lists of blocks do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isinf, log
from typing import Final, TypeAlias

from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import (
    Expr,
    as_int,
    ceildiv,
    floordiv,
    maximum,
    provably_divisible,
    symbol,
)
from coilwork_ir.kernels import Range, Store
from coilwork_ir.kernels.attention import roles_of
from coilwork_ir.kernels.mask_bounds import Span, find_conditions, find_span
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.loops.nodes import BlockList, BlockLists, BlockSide
from coilwork_ir.mapping.directive import list_values
from coilwork_ir.scalar import (
    Const,
    Load,
    Op,
    Parameter,
    Scalar,
    iterate_postorder,
    parameter,
    substitute_ranges,
)
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Expression,
    For,
    List,
    Name,
    Number,
    Statement,
    Text,
    call,
    method,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.facts.kernel_analysis import Levels, find_levels
from coilwork_triton.iteration.shape import Shape, Tile, build_flat_tile
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import BLOCKS, STAGES, Letter
from coilwork_triton.statements.actions import perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.language import Writer, get_triton_type, insert_axes, tl, tl_name

LOG2_E: Final = 1 / log(2)
OFFSET: Final = symbol("yoffset", lo=0)
BLOCK: Final = symbol(BLOCKS["y"], lo=1)
STEP: Final = symbol(BLOCKS["r"], lo=1)
PLACE: Final = symbol("place", lo=0)
PROGRAM: Final = symbol("zprogram", lo=0)
_OWN: Final = "yprogram"
# Points of the other ranges whose programs run together.
_GROUP: Final = 32
SHARED: Final = symbol("shared", lo=0)
NOWHERE: Final = call("float", Text("-inf"))
# Operations whose results are finite where their operands are, of a moderate size.
_FINITE: Final = frozenset({"add", "sub", "mul", "tanh", "neg", "cast", "abs", "minimum", "maximum"})

Body: TypeAlias = Callable[[bool, bool], tuple[Statement, ...]]
"""The statements for one block of a loop: if the mask is asked, and if points may lie behind the end."""


# ---- One block against the other side ----


class AttentionBranch:
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
        self.numbers = {name: list_values(number) for name, number in plan.parameters.items()}
        self.others = (
            build_flat_tile("z", list(self.roles.others), None, False) if self.roles.others else None
        )

    @property
    def points(self) -> Expr:
        """Points of this program's block."""
        return BLOCK

    # tiles and spaces

    def tile(self, letter: Letter, axis: int, *, ragged: bool | None = None) -> Tile:
        """Return the tile `letter` along dimension `axis` of blocks; `ragged` tells if it may lie behind its
        end.
        """
        ranges = {
            "y": self.fixed,
            "r": self.looped,
            "x": self.roles.columns,
            "l": self.roles.length,
        }
        masked = self.is_ragged(letter) if ragged is None else ragged
        return build_flat_tile(letter, [ranges[letter]], axis, masked)

    def is_ragged(self, letter: Letter) -> bool:
        """Tell if some candidate's blocks do not divide the points of the tile `letter`."""
        ranges = {
            "y": self.fixed,
            "r": self.looped,
            "x": self.roles.columns,
            "l": self.roles.length,
        }
        extent = ranges[letter].extent
        return not all(provably_divisible(extent, size) for size in self.numbers[BLOCKS[letter]])

    def values(self, tiles: Sequence[Tile], roots: Sequence[Scalar], levels: Levels | None = None) -> Values:
        """Return the writer of `roots` over blocks of `tiles`."""
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
        given = (OFFSET, BLOCK, STEP, PLACE, PROGRAM, SHARED)
        space = Space(self.kernel, shape, self.library, given)
        self.spaces.append(space)
        return Values(self.kernel, shape, levels or self.levels, space, roots, self.library)

    def print_index(self, expr: Expr) -> Expression:
        """`expr`, over sizes, other ranges and the numbers of this program."""
        return self.values((), ()).space.index(expr)

    # operands

    def operand(self, body: Scalar, first: Tile, second: Tile, writer: Writer) -> Expression:
        """Return a block of `body`, zero behind the ends of what is summed along. Its lines go to
        `writer`.
        """
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
        """Return a scope inside the loop, in which `roots` are known; what the loop does not change is
        computed before.
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
        span = self.find_span()
        ragged = self.is_ragged("r")
        lists = weights.blocks if self.takes_lists() else None
        if not span.exact and lists is not None:
            self._loop_over_lists(lists, body, ragged)
            return
        first: Expression = Number(0)
        if as_int(span.first) != 0:
            first = writer.bind("first", self.print_index(floordiv(span.first, STEP) * STEP))
        last = writer.bind("last", self.print_index(span.last))
        if not span.exact:
            self._loop_over_range(first, last, body(True, ragged))
            return
        if as_int(span.full_first) != 0:
            full = self.print_index(ceildiv(span.full_first, STEP) * STEP)
            middle = writer.bind("full_first", full)
            self._loop_over_range(first, tl("minimum", middle, last), body(True, ragged))
            first = middle
        if span.full_last is span.last and not ragged:
            self._loop_over_range(first, last, body(False, False))
            return
        end = self.print_index(floordiv(maximum(span.full_last, 0), STEP) * STEP)
        end = writer.bind("full_last", end if first == Number(0) else tl("maximum", end, first))
        self._loop_over_range(first, end, body(False, False))
        self._loop_over_range(end, last, body(weights.mask is not None, ragged))

    def find_span(self) -> Span:
        """Return the points of the other side that may count for this program's block."""
        conditions = find_conditions(self.weights.mask)
        block = (OFFSET, OFFSET + self.points - 1)
        return find_span(conditions, self.looped.symbol, self.fixed.symbol, block, self.looped.extent)

    def _loop_over_range(self, first: Expression, last: Expression, body: tuple[Statement, ...]) -> None:
        bounds = (first, last, Name(BLOCKS["r"]))
        values = tl("range", *bounds, num_stages=Name(STAGES))
        self.writer.statements.append(For(LOOP_OFFSET.id, values, body))

    def takes_lists(self) -> bool:
        """Tell if blocks of this kernel divide those of the lists."""
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
        count = self.read_list(one.count, self.writer)
        stop = self.writer.bind("steps", Binary("*", count, steps))
        inner = self.writer.inner()
        inner.statements.append(Assign((PLACE.name,), Binary("//", Name("step"), steps)))
        number = self.read_list(one.index, inner, length)
        rest = Binary("*", Binary("%", Name("step"), steps), Name(BLOCKS["r"]))
        offset = Binary("+", Binary("*", number, Number(length)), rest)
        inner.statements.append(Assign((LOOP_OFFSET.id,), offset))
        values = tl("range", Number(0), stop, num_stages=Name(STAGES))
        self.writer.statements.append(For("step", values, (*inner.statements, *body)))

    def read_list(self, body: Scalar, writer: Writer, length: int = 1) -> Expression:
        """`body` for this program's block, at the place that the loop is at."""
        mapping = {self.fixed.symbol: OFFSET, self.looped.symbol: PLACE * length}
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

    def number_programs(self, count: Expr, group: int = _GROUP) -> tuple[Statement, ...]:
        """Return a program's number along its own side, and along the `count` points of the other ranges.

        Where loops differ in length, programs with the longest begin first, of all points in a `group`. So
        the last programs to begin are short ones, and those that run together still share keys in the cache.
        """
        blocks, program, point = Name("yprograms"), Name("program"), PROGRAM.name
        starts: tuple[Statement, ...] = (
            Assign(
                (blocks.id,), tl("cdiv", self.print_index(self.fixed.extent), self.print_index(self.points))
            ),
        )
        span = self.find_span()
        grows, shrinks = (OFFSET in end.free_symbols for end in (span.last, span.first))
        if grows == shrinks:
            number = Binary("%", program, blocks)
            return (*starts, Assign((_OWN,), number), Assign((point,), Binary("//", program, blocks)))
        rest: Expression = program
        members: Expression = self.print_index(count)
        first: Name | None = None
        known = as_int(count)
        if known is None or known > group:
            first, size = Name("first_point"), Number(group)
            number = Binary("//", program, Binary("*", blocks, size))
            starts += (Assign((first.id,), Binary("*", number, size)),)
            if known is not None and known % group == 0:
                members = size
            else:
                starts += (Assign(("points",), tl("minimum", Binary("-", members, first), size)),)
                members = Name("points")
            starts += (Assign(("within",), Binary("-", program, Binary("*", first, blocks))),)
            rest = Name("within")
        number = Binary("//", rest, members)
        if grows:
            number = Binary("-", Binary("-", blocks, Number(1)), number)
        found: Expression = Binary("%", rest, members)
        if first is not None:
            found = Binary("+", first, found)
        return (*starts, Assign((_OWN,), number), Assign((point,), found))

    def lines(self, program: Expression, other: Expression) -> tuple[Statement, ...]:
        """Definitions of extents and positions, for the block `program` and the point `other` of the rest."""

        def number(tile: Tile) -> Expression:
            return {"y": program, "z": other}.get(tile.letter, Number(0))

        extents = [line for space in self.spaces for line in space.extents()]
        start = Assign((OFFSET.name,), Binary("*", program, Name(BLOCKS["y"])))
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

    def is_of_others(self, line: Statement) -> bool:
        """Tell if `line` defines a position of the other ranges."""
        tile = self.others
        if tile is None or not isinstance(line, Assign):
            return False
        return line.targets[0] in {tile.index.name, *(part.name for part, _ in tile.parts)}

    # scores

    def is_hiding(self) -> bool:
        """Tell if a score may be minus infinity where the mask holds."""
        return not all(
            isinstance(node, Parameter)
            or (isinstance(node, Const) and not isinf(float(node.value)))
            or (isinstance(node, Load) and not node.dtype.is_float)
            or (isinstance(node, Op) and node.op in _FINITE)
            or not node.dtype.is_float
            for node in iterate_postorder((self.weights.score,))
        )

    def has_far_scores(self) -> bool:
        """Tell if a score may be among the largest floats: a mask that is added, and given for each key."""
        return any(
            isinstance(node, Load)
            and node.dtype.is_float
            and self.roles.keys.symbol in self.levels.varies[node]
            for node in iterate_postorder((self.weights.score,))
        )


def _is_zero_outside(body: Scalar) -> bool:
    """Loads find zeros outside of their tiles; what only changes their type leaves them zeros."""
    while isinstance(body, Op) and body.op == "cast":
        (body,) = body.operands
    return isinstance(body, Load) and body.mask is None


def scale_of(body: Scalar, number: int) -> float | None:
    """Return the positive number that `body` multiplies parameter `number` by, if that is all it does."""
    if isinstance(body, Parameter):
        return 1.0 if body.position == number else None
    if not isinstance(body, Op) or body.op != "mul":
        return None
    for value, factor in (body.operands, body.operands[::-1]):
        if isinstance(value, Parameter) and value.position == number and isinstance(factor, Const):
            return float(factor.value) if 0 < float(factor.value) < inf else None
    return None


def dot(left: Expression, right: Expression, dtype: DType, total: Expression | None = None) -> Expression:
    exact: dict[str, Expression] = {"input_precision": Text("ieee")} if dtype is DType.F32 else {}
    return tl("dot", left, right, *(() if total is None else (total,)), **exact)


def transpose(value: Expression) -> Expression:
    return tl("trans", value)


def convert(value: Expression, dtype: DType) -> Expression:
    return value if dtype is DType.F32 else method(value, "to", get_triton_type(dtype))


def join_types(first: DType, second: DType) -> DType:
    """Return the type that operands of these types are multiplied in."""
    return first if first is second else DType.F32


def insert_column(value: Expression) -> Expression:
    return insert_axes(value, (True, False))


def hide(values: Values, scope: Scope, mask: Scalar | None, ragged: bool) -> Expression | None:
    """True where a key counts; None where all do."""
    found = [] if mask is None else [values.expression(scope, mask)]
    inside = values.space.mask(frozenset("r")) if ragged else None
    found += [] if inside is None else [inside]
    if not found:
        return None
    return found[0] if len(found) == 1 else Binary("&", found[0], found[1])
