"""What roles of attention share: operands in shared memory, the tiles of a program, and the blocks of keys
that a tile goes through.

A program takes every so many tiles, or pairs of a long tile and a short one. A tile is a block of rows at
one point of the other ranges, and goes through blocks of keys: those that comparisons of positions in the
mask leave, from the last to the first, or those of lists. Each block takes the next stage of the rings of
keys and of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_int, ceildiv, floordiv, maximum, multiply_all
from coilwork_ir.kernels import Range
from coilwork_ir.kernels.attention import AttentionKernelCore
from coilwork_ir.kernels.mask_bounds import Span
from coilwork_ir.loops.nodes import BlockList, BlockSide
from coilwork_ir.scalar import list_loads
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Do,
    Expression,
    For,
    List,
    Name,
    Number,
    Statement,
    call,
    method,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.facts.stored_rows import StoredRows
from coilwork_triton.iteration.shape import Tile
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import BLOCKS, STAGES
from coilwork_triton.statements.attention_blocks import BLOCK, OFFSET, PLACE, PROGRAM, STEP, AttentionBranch
from coilwork_triton.text.gluon import hopper
from coilwork_triton.text.language import tl

# Points of the other ranges whose tiles run together: few, so that these share keys in the cache, and an even
# number, so that tiles come in pairs.
GROUP: Final = 2
DONE, TURN, STAGE, PHASE = Name("done"), Name("turn"), Name("stage"), Name("phase")
STEPS: Final = Name("steps")
_TILES, _PROGRAMS, _OWN = Name("tiles"), Name("programs"), Name("own")
_FIRST, _HIGH, _LOW, _LISTED = Name("first_key"), Name("high"), Name("low"), Name("listed")


class Barriers:
    """Names of the barriers around blocks in shared memory that are called `name`."""

    __slots__ = ()
    name: str

    @property
    def full(self) -> Name:
        """Barriers that the engine arrives at."""
        return Name(f"{self.name}_full")

    @property
    def free(self) -> Name:
        """Barriers that consumers arrive at when nobody reads the blocks any more."""
        return Name(f"{self.name}_free")


@dataclass(frozen=True, slots=True)
class SharedOperand(Barriers):
    """Rows in memory as blocks in shared memory: `name` begins the names of all that is about them."""

    name: str
    rows: StoredRows
    dtype: DType
    near: str

    @property
    def blocks(self) -> Name:
        """The descriptor."""
        return Name(f"{self.name}_blocks")

    @property
    def stages(self) -> Name:
        """The memory."""
        return Name(f"{self.name}_stages")


@dataclass(frozen=True, slots=True)
class KeyLoop:
    """Steps from `first` to `last` through blocks of keys: with a mask, or beyond the last key, or neither;
    `kind` is the list that says which blocks they are, if one does.
    """

    first: Expression
    last: Expression
    has_mask: bool
    ragged: bool
    kind: str = ""


class Role(AttentionBranch):
    """What functions of one kernel share: the places of tiles, and blocks of the other side."""

    parts = 1

    def __init__(
        self,
        plan: PlannedAttention,
        core: AttentionKernelCore,
        library: set[str],
        *,
        fixed: Range,
        looped: Range,
    ) -> None:
        super().__init__(plan, core, library, fixed=fixed, looped=looped)
        self.consumers = plan.consumers
        self.lists = core.weights.blocks if not self.find_span().exact and self.takes_lists() else None

    @property
    def point(self) -> Expression:
        """The point of the other ranges that a tile has."""
        return Name(PROGRAM.name)

    def count_points(self) -> Expr:
        """Return the number of points of the other ranges that tiles are of."""
        return multiply_all(r.extent for r in self.roles.others)

    @property
    def points(self) -> Expr:
        """Rows of a program's tile."""
        return BLOCK * self.parts

    def name_function(self, role: str) -> str:
        """Return the name of the function of this kernel's warps that have `role`."""
        return f"{self.kernel.name}_{role}"

    def sizes(self) -> tuple[str, ...]:
        return tuple(size.name for size in self.kernel.sizes)

    def constants(self) -> tuple[str, ...]:
        return tuple(self.numbers)

    def extents(self, one: SharedOperand, rows: Expression) -> List:
        """Return the extents of a block of `rows`."""
        return List((*(Number(1) for _ in one.rows.outer), rows, Name(one.near)))

    def place(self, one: SharedOperand, row: Expression) -> List:
        """Return the coordinates of the block from `row` on, at this program's point of the outer ranges."""
        outer = (self.print_index(each.place) for each in one.rows.outer)
        return List((*outer, row, Number(0)))

    def copy(self, one: SharedOperand, row: Expression, stage: Expression) -> Statement:
        full, target = method(one.full, "index", stage), method(one.stages, "index", stage)
        place = self.place(one, row)
        return Do(hopper("tma.async_copy_global_to_shared", one.blocks, place, full, target))

    def wait(self, barriers: Name, stage: Expression, phase: Expression) -> Statement:
        return Do(hopper("mbarrier.wait", method(barriers, "index", stage), phase))

    def arrive(self, barriers: Name, stage: Expression, condition: Expression | None = None) -> Statement:
        more = {} if condition is None else {"pred": condition}
        return Do(hopper("mbarrier.arrive", method(barriers, "index", stage), count=Number(1), **more))

    # tiles

    def begin_tile(self) -> tuple[Statement, ...]:
        """Compute where the tile `program` lies, and `steps`: how many blocks of keys it goes through."""
        start = len(self.spaces)
        number = self.number_tile()
        lines = self.count_steps()
        return (*number, *self.define(self.spaces[start:]), *lines)

    def number_tile(self) -> tuple[Statement, ...]:
        """Compute the numbers of the tile `program` along points and rows, and its first row or key."""
        number = self.number_programs(self.count_points(), GROUP)
        offset = Binary("*", Name("yprogram"), self.print_index(self.points))
        return (*number, Assign((OFFSET.name,), offset))

    def count_steps(self) -> tuple[Statement, ...]:
        """Return how many blocks of the other side a tile goes through."""
        return tuple(self._count_listed() if self.lists is not None else self._count_in_span())

    def _count_in_span(self) -> list[Statement]:
        """Blocks from `first_key` on. The first `high` of them and those from `low` on, counted from the last
        keys, have a mask.
        """
        span = self.find_span()
        lines: list[Statement] = [Assign((_FIRST.id,), self.print_index(floordiv(span.first, STEP) * STEP))]
        steps = tl("cdiv", Binary("-", self.print_index(span.last), _FIRST), Name(BLOCKS["r"]))
        lines.append(Assign((STEPS.id,), tl("maximum", steps, Number(1))))
        if not span.exact:
            return lines
        high, low = self._has_masked_ends(span)
        first: Expression = _FIRST
        if low:
            first = Name("full_first")
            whole = self.print_index(ceildiv(span.full_first, STEP) * STEP)
            lines.append(Assign((first.id,), whole))
        if high:
            end = self.print_index(floordiv(maximum(span.full_last, 0), STEP) * STEP)
            lines.append(Assign(("full_last",), tl("maximum", end, first)))
            lines.append(Assign((_HIGH.id,), self._count_from(Name("full_last"))))
        if low:
            lines.append(Assign((_LOW.id,), self._count_from(first)))
        return lines

    def _has_masked_ends(self, span: Span) -> tuple[bool, bool]:
        """Tell if blocks at the end of the keys that count, and at their begin, have a mask."""
        return span.full_last is not span.last or self.is_ragged("r"), as_int(span.full_first) != 0

    def _count_from(self, key: Expression) -> Expression:
        """Return the number of blocks behind `key`, which may lie behind the last one."""
        before = Binary("//", Binary("-", key, _FIRST), Name(BLOCKS["r"]))
        return tl("maximum", Binary("-", STEPS, before), Number(0))

    def _count_listed(self) -> list[Statement]:
        """Blocks of lists: the first `listed` ones have a mask."""
        assert self.lists is not None
        writer = self.writer.inner()
        counts = [Binary("*", self.read_list(one.count, writer), self._steps()) for _, one in self._sides()]
        writer.assign((_LISTED,), counts[0])
        total: Expression = _LISTED if len(counts) == 1 else Binary("+", _LISTED, counts[1])
        writer.assign((STEPS,), tl("maximum", total, Number(1)))
        return writer.statements

    def _sides(self) -> list[tuple[str, BlockList]]:
        assert self.lists is not None
        sides: tuple[BlockSide, BlockSide] = ("keys", "full_keys")
        if self.fixed is not self.roles.rows:
            sides = "rows", "full_rows"
        return [(side, one) for side in sides if (one := self.lists.find(side)) is not None]

    def _steps(self) -> Expression:
        """Blocks of a step in a block of the lists."""
        return Binary("//", Number(self._count_list_points()), Name(BLOCKS["r"]))

    def _count_list_points(self) -> int:
        assert self.lists is not None
        on_rows = self.fixed is self.roles.rows
        return self.lists.key_block if on_rows else self.lists.row_block

    def list_loops(self) -> list[KeyLoop]:
        """Return the loops over blocks of keys, one after the other."""
        if self.lists is not None:
            ragged = self.is_ragged("r")
            sides = [side for side, _ in self._sides()]
            if len(sides) == 1:
                return [KeyLoop(Number(0), STEPS, True, ragged, sides[0])]
            first = KeyLoop(Number(0), _LISTED, True, ragged, sides[0])
            return [first, KeyLoop(_LISTED, STEPS, False, ragged, sides[1])]
        span = self.find_span()
        ragged = self.is_ragged("r")
        if not span.exact:
            return [KeyLoop(Number(0), STEPS, True, ragged)]
        high, low = self._has_masked_ends(span)
        found: list[KeyLoop] = []
        if high:
            found.append(KeyLoop(Number(0), _HIGH, True, ragged))
        found.append(KeyLoop(_HIGH if high else Number(0), _LOW if low else STEPS, False, False))
        if low:
            found.append(KeyLoop(_LOW, STEPS, True, ragged))
        return found

    def find_key(self, kind: str, step: Expression) -> tuple[Statement, ...]:
        """Return the first key of the block that is gone through at `step`."""
        keys = Name(BLOCKS["r"])
        if self.lists is None:
            last = Binary("-", STEPS, Number(1))
            if step != Number(0):
                last = Binary("-", last, step)
            return (Assign((LOOP_OFFSET.id,), Binary("+", _FIRST, Binary("*", last, keys))),)
        writer = self.writer.inner()
        length, start = self._count_list_points(), len(self.spaces)
        sides = self._sides()
        names = [side for side, _ in sides]
        if kind == names[-1] and len(sides) > 1:
            step = Binary("-", step, _LISTED)
        place = Number(0) if step == Number(0) else Binary("//", step, self._steps())
        writer.assign((Name(PLACE.name),), place)
        number = self.read_list(dict(sides)[kind or names[0]].index, writer, length)
        if not kind and len(sides) > 1:
            other = self.read_list(sides[1][1].index, writer, length)
            number = tl("where", Binary(">", _LISTED, Number(0)), number, other)
        key: Expression = Binary("*", number, Number(length))
        if step != Number(0):
            key = Binary("+", key, Binary("*", Binary("%", step, self._steps()), keys))
        writer.assign((LOOP_OFFSET,), key)
        return (*self.define(self.spaces[start:]), *writer.statements)

    def list_tensors(self) -> tuple[str, ...]:
        """Arguments that say which blocks count."""
        if self.lists is None:
            return ()
        used = {
            load.buffer
            for load in list_loads([b for _, one in self._sides() for b in (one.count, one.index)])
        }
        return tuple(arg.name for arg in self.kernel.args if arg.name in used)

    def define(self, spaces: Sequence[Space]) -> tuple[Statement, ...]:
        """Return the lines that `spaces` need."""

        def number(tile: Tile) -> Expression:
            names: dict[str, Expression] = {"y": Name("yprogram"), "z": self.point}
            return names.get(tile.letter, Number(0))

        extents = [line for space in spaces for line in space.extents()]
        positions = [line for space in spaces for line in space.positions(number)]
        return tuple(dict.fromkeys((*extents, *positions)))

    def tiles(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """Return a loop over the program's tiles, which are `program`: one in each turn."""
        start = len(self.spaces)
        blocks = tl("cdiv", self.print_index(self.fixed.extent), self.print_index(self.points))
        total = Binary("*", blocks, self.print_index(self.count_points()))
        turns, counted = self._count_turns()
        return (
            *self.define(self.spaces[start:]),
            Assign((_TILES.id,), total),
            Assign((_OWN.id,), tl("program_id", Number(0))),
            Assign((_PROGRAMS.id,), tl("num_programs", Number(0))),
            *counted,
            Assign((DONE.id,), Number(0)),
            For(TURN.id, call("range", Number(0), turns), (*self._choose_tile(), *body)),
        )

    def _count_turns(self) -> tuple[Expression, tuple[Statement, ...]]:
        """Return the number of tiles of a program, and statements that compute it."""
        if not self._differ_in_length():
            return tl("cdiv", Binary("-", _TILES, _OWN), _PROGRAMS), ()
        pairs, rounds, zero, one = Name("pairs"), Name("rounds"), Number(0), Number(1)
        last = Binary("+", _OWN, Binary("*", Binary("-", rounds, one), _PROGRAMS))
        is_last = Binary("==", last, Binary("-", pairs, one))
        is_odd = Binary("==", Binary("%", _TILES, Number(2)), one)
        alone = tl("where", Binary("&", is_odd, is_last), one, zero)
        return Binary("-", Binary("*", rounds, Number(2)), alone), (
            Assign((pairs.id,), tl("cdiv", _TILES, Number(2))),
            Assign((rounds.id,), tl("cdiv", tl("maximum", Binary("-", pairs, _OWN), zero), _PROGRAMS)),
        )

    def _differ_in_length(self) -> bool:
        """Tell if tiles go through the more keys, or the fewer, the further down their rows are."""
        span = self.find_span()
        return (OFFSET in span.last.free_symbols) is not (OFFSET in span.first.free_symbols)

    def _choose_tile(self) -> tuple[Statement, ...]:
        """Return the tile of a turn. Where tiles differ in length, they come in pairs of which all are as
        long: the longest and the shortest tile of a group of points, and so on inwards.
        """
        if not self._differ_in_length():
            return (Assign(("program",), Binary("+", Binary("*", TURN, _PROGRAMS), _OWN)),)
        pair, size, first = Name("pair"), Name("size"), Name("first_tile")
        turn = Binary("*", Binary("//", TURN, Number(2)), _PROGRAMS)
        blocks = tl("cdiv", self.print_index(self.fixed.extent), self.print_index(self.points))
        whole = Binary("*", blocks, Number(GROUP))
        group = Binary("//", pair, Binary("//", whole, Number(2)))
        points = as_int(self.count_points())
        is_whole = points is not None and points % GROUP == 0
        lines = (
            Assign((pair.id,), Binary("+", turn, _OWN)),
            Assign((first.id,), Binary("*", group, whole)),
            Assign((size.id,), whole if is_whole else tl("minimum", Binary("-", _TILES, first), whole)),
            Assign((pair.id,), Binary("-", pair, Binary("//", first, Number(2)))),
        )
        back = Binary("-", Binary("-", size, Number(1)), pair)
        is_long = Binary("==", Binary("%", TURN, Number(2)), Number(0))
        return (*lines, Assign(("program",), Binary("+", first, tl("where", is_long, pair, back))))

    def loop_loads(self, step: Sequence[Statement]) -> tuple[Statement, ...]:
        """Return the loops in which `step` has a block of the other side brought."""
        loops = self.list_loops() if self.lists is not None else [KeyLoop(Number(0), STEPS, False, False)]
        return tuple(
            For(
                "step",
                call("range", one.first, one.last),
                (*self.find_stage(), *self.find_key(one.kind, Name("step")), *step),
            )
            for one in loops
        )

    def find_stage(self) -> tuple[Statement, ...]:
        """Return the stage of block `done`, and how often it was filled."""
        rounds = Binary("//", DONE, Name(STAGES))
        return (
            Assign((STAGE.id,), Binary("%", DONE, Name(STAGES))),
            Assign((PHASE.id,), Binary("&", rounds, Number(1))),
        )
