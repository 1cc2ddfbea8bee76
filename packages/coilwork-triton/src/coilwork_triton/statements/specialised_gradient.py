"""The statements of the gradient of attention whose warps have roles, in Triton's dialect Gluon.

A program goes through tiles of keys, for which it sums the gradients of keys and values over the rows, and
then through tiles of rows, for which it sums that of queries over the keys. For each of these two passes one
warp, the loader, has the copy engine bring a tile's own blocks, and a ring of blocks of the other side.
Groups of warps, the consumers, have 64 points of a tile each: scores, slopes and sums stay in registers.

    gradient               makes descriptors, stages and barriers, and starts the roles of either pass
    gradient_load_keys     the loader of tiles of keys
    gradient_attend_keys   their consumer
    gradient_load_rows     the loader of tiles of rows
    gradient_attend_rows   their consumer

A step multiplies what is its own with a block of queries and of gradients of the output, or of keys and
values, and a consumer computes weights of the first product while the tensor cores are at the second.
Weights of keys are multiplied while slopes are computed. Slopes of rows are multiplied one step later, behind
the next scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, multiply_all
from coilwork_ir.kernels.attention import find_key_sharing, roles_of
from coilwork_ir.kernels.nodes import AttentionGradientCore
from coilwork_ir.scalar import list_loads
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Do,
    Expression,
    For,
    Function,
    List,
    Name,
    Number,
    Statement,
    Tuple,
    call,
    method,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.attention_roles import (
    CONSUMER_ROWS,
    count_registers,
    find_operands,
)
from coilwork_triton.iteration.space import LOOP_OFFSET
from coilwork_triton.launch.parameters import BLOCKS, STAGES, Letter
from coilwork_triton.product_roles import GROUP_WARPS, LOADER_REGISTERS
from coilwork_triton.statements.attention_blocks import OFFSET, SHARED
from coilwork_triton.statements.attention_gradient import Gradient, count_own_points, find_point
from coilwork_triton.statements.attention_tiles import (
    DONE,
    PHASE,
    STAGE,
    TURN,
    Barriers,
    KeyLoop,
    Role,
    SharedOperand,
)
from coilwork_triton.statements.gluon_blocks import (
    allocate,
    allocate_barriers,
    describe,
    lay_out,
    multiply,
    product_layout,
)
from coilwork_triton.text.gluon import gl, hopper
from coilwork_triton.text.language import Writer, define_function, get_triton_type, tl

_PART, _SCORES, _TERMS, _COLUMNS = "PART", "SCORES", "TERMS", "COLUMNS"
_STEP, _BEFORE = Name("step"), Name("before")
_RAW, _THROUGH, _ROUNDED, _SLOPES = Name("raw"), Name("through"), Name("rounded"), Name("slopes")
_TILE_OFFSET = Name("tile_offset")
_OWN_FIRST, _OWN_SECOND = Name("own_first"), Name("own_second")
_OF_QUERY, _OF_KEY, _OF_VALUE = Name("of_query"), Name("of_key"), Name("of_value")


def emit_specialised_gradient(
    plan: PlannedAttention, core: AttentionGradientCore, library: set[str]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """Return the functions of the roles, and the statements of the kernel's own function. Names of device
    functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    functions: list[Function] = []
    described: list[Statement] = []
    started: list[Statement] = []
    for of_keys in (True, False):
        loader = _Loader(plan, core, library, of_keys=of_keys)
        consumer = _Consumer(plan, core, library, of_keys=of_keys)
        functions += [loader.function(), consumer.function()]
        entry = _Entry(plan, core, library, of_keys=of_keys)
        described += entry.describe_operands()
        started += entry.start(loader, consumer)
    return tuple(functions), (*dict.fromkeys(described), *started)


@dataclass(frozen=True, slots=True)
class _Pair(Barriers):
    """Blocks in shared memory that come together, the first ones as wide as products are long, and the second
    ones as wide as values.
    """

    name: str
    first: SharedOperand
    second: SharedOperand

    @property
    def both(self) -> tuple[SharedOperand, SharedOperand]:
        return self.first, self.second

    @property
    def stages(self) -> tuple[Name, Name]:
        """The memory."""
        return Name(f"{self.name}_first_stages"), Name(f"{self.name}_second_stages")

    @property
    def memory(self) -> tuple[Name, ...]:
        """Memory and barriers."""
        return (*self.stages, self.full, self.free)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums `name`, with letter and layout of their columns, which are the result `number`."""

    name: Name
    letter: Letter
    layout: str
    number: int


class _Pass(Role):
    """What functions of one pass share."""

    def __init__(
        self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str], *, of_keys: bool
    ) -> None:
        roles = roles_of(plan.kernel)
        fixed, looped = (roles.keys, roles.rows) if of_keys else (roles.rows, roles.keys)
        super().__init__(plan, core, library, fixed=fixed, looped=looped)
        self.core, self.of_keys = core, of_keys
        self.sharing = find_key_sharing(plan.kernel) if of_keys else ()
        self.shared = multiply_all(s.count for s in self.sharing)
        found = find_operands(plan.kernel, core)
        assert not isinstance(found, str)
        self.dtype = core.weights.query.dtype
        named = zip(("query", "key", "value", "gradient"), found, ("l", "l", "x", "x"), strict=True)
        query, key, value, gradient = (
            SharedOperand(name, rows, self.dtype, BLOCKS[letter]) for name, rows, letter in named
        )
        sides = (key, value), (query, gradient)
        own, other = sides if of_keys else sides[::-1]
        self.own, self.other = _Pair("own", *own), _Pair("other", *other)

    @property
    def side(self) -> str:
        """Return what a tile is a part of: the keys, or the rows of queries."""
        return "keys" if self.of_keys else "rows"

    @property
    def has_rounds(self) -> bool:
        """True if several points of the other ranges share a tile, which goes through the rows of each."""
        return as_int(self.shared) != 1

    @property
    def point(self) -> Expression:
        if not self.sharing:
            return super().point
        found = find_point(self.sharing, SHARED if self.has_rounds else as_expr(0))
        return Number(0) if found is None else self.print_index(found)

    def count_points(self) -> Expr:
        return count_own_points(self.sharing) if self.sharing else super().count_points()

    def memory(self) -> tuple[str, ...]:
        """Return the names of stages and barriers in shared memory, which every role gets."""
        return tuple(name.id for pair in (self.own, self.other) for name in pair.memory)

    def begin_rounds(self, start: int) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """Return statements that find where a tile lies, and, for each of its rounds, how many blocks it goes
        through. `start` is the first of the spaces that all its statements have.
        """
        number = self.number_tile()
        counted = self.count_steps()
        first = (Assign((SHARED.name,), Number(0)),) if self.has_rounds else ()
        return (*number, *first, *self.define(self.spaces[start:])), counted

    def go_around(self, lines: Sequence[Statement], start: int) -> tuple[Statement, ...]:
        """`lines` for each of the points that share a tile."""
        if not self.has_rounds:
            return tuple(lines)
        moved = [line for line in self.define(self.spaces[start:]) if self.is_of_others(line)]
        values = call("range", Number(0), self.print_index(self.shared))
        return (For(SHARED.name, values, (*moved, *lines)),)


class _Entry(_Pass):
    """The kernel's own function."""

    def describe_operands(self) -> tuple[Statement, ...]:
        """Descriptors of all operands."""
        rows = Number(CONSUMER_ROWS)
        both = (*self.own.both, *self.other.both)
        lines = [describe(one, self.extents(one, rows), self.print_index) for one in both]
        return (*self.define(self.spaces), *lines)

    def start(self, loader: _Loader, consumer: _Consumer) -> tuple[Statement, ...]:
        """Stages and barriers of a pass, and its roles."""
        lines: list[Statement] = []
        for pair, number, readers in (
            (self.own, Number(self.consumers), 1),
            (self.other, Name(STAGES), self.consumers),
        ):
            for one, stages in zip(pair.both, pair.stages, strict=True):
                extents = (number, *self.extents(one, Number(CONSUMER_ROWS)).items)
                lines.append(Assign((stages.id,), allocate(one, extents)))
            lines += [Assign((name.id,), allocate_barriers(number)) for name in (pair.full, pair.free)]
            starts = tuple(
                Do(hopper("mbarrier.init", method(name, "index", STAGE), count=Number(count)))
                for name, count in ((pair.full, 1), (pair.free, readers))
            )
            lines.append(For(STAGE.id, gl("static_range", number), starts))
        lines.append(Do(hopper("fence_async_shared")))
        layouts = tuple(product_layout(Name(BLOCKS[letter])) for letter in "rlx")
        points = Binary("//", Name(BLOCKS["y"]), Number(self.consumers))
        given = tuple(map(Name, consumer.arguments()))
        rest = tuple(Name(name) for name in self.constants() if name != BLOCKS["y"])
        calls: list[Expression] = [
            Tuple((Name(consumer.name), Tuple((*given, Number(part), *layouts, points, *rest))))
            for part in range(self.consumers)
        ]
        given = tuple(map(Name, (*loader.arguments(), *self.constants())))
        calls.append(Tuple((Name(loader.name), Tuple(given))))
        others = [*([GROUP_WARPS] * (self.consumers - 1)), 1]
        registers = [*([count_registers(self.consumers)] * (self.consumers - 1)), LOADER_REGISTERS]
        lists = (List(tuple(map(Number, others))), List(tuple(map(Number, registers))))
        return (*lines, Do(gl("warp_specialize", List(tuple(calls)), *lists)))


class _Loader(_Pass):
    """The warp that has blocks brought."""

    @property
    def name(self) -> str:
        """Its function's name."""
        return self.name_function(f"load_{self.side}")

    def arguments(self) -> tuple[str, ...]:
        """Parameters of its function, without constants."""
        blocks = (one.blocks.id for pair in (self.own, self.other) for one in pair.both)
        return (*blocks, *self.memory(), *self.list_tensors(), *self.sizes())

    def function(self) -> Function:
        """Its function."""
        start = len(self.spaces)
        again = Binary("^", Binary("&", TURN, Number(1)), Number(1))
        own: list[Statement] = []
        for part in range(self.consumers):
            row = Binary("+", Name(OFFSET.name), Number(part * CONSUMER_ROWS)) if part else Name(OFFSET.name)
            number = Number(part)
            own += [self.wait(self.own.free, number, again), *self._bring(self.own, row, number)]
        # nothing was ever read from stages that are free at first
        step = (
            self.wait(self.other.free, STAGE, Binary("^", PHASE, Number(1))),
            *self._bring(self.other, LOOP_OFFSET, STAGE),
            Assign((DONE.id,), Binary("+", DONE, Number(1))),
        )
        loops = self.loop_loads(step)
        begin, counted = self.begin_rounds(start)
        body = (*begin, *own, *self.go_around((*counted, *loops), start))
        return define_function(
            self.name, self.arguments(), self.tiles(body), constants=self.constants(), gluon=True
        )

    def _bring(self, pair: _Pair, row: Expression, stage: Expression) -> tuple[Statement, ...]:
        full = method(pair.full, "index", stage)
        columns = Binary("+", *(Name(one.near) for one in pair.both))
        size = Binary("*", columns, Number(CONSUMER_ROWS * self.dtype.itemsize))
        copies = (
            Do(
                hopper(
                    "tma.async_copy_global_to_shared",
                    one.blocks,
                    self.place(one, row),
                    full,
                    method(stages, "index", stage),
                )
            )
            for one, stages in zip(pair.both, pair.stages, strict=True)
        )
        return (Do(hopper("mbarrier.expect", full, size)), *copies)


class _Consumer(_Pass, Gradient):
    """A group of warps that has 64 points of a tile."""

    def __init__(
        self, plan: PlannedAttention, core: AttentionGradientCore, library: set[str], *, of_keys: bool
    ) -> None:
        super().__init__(plan, core, library, of_keys=of_keys)
        self.parts = self.consumers

    @property
    def name(self) -> str:
        """Its function's name."""
        return self.name_function(f"attend_{self.side}")

    @property
    def sums(self) -> tuple[_Sums, ...]:
        """Return the sums that a tile keeps: gradients of keys and values, or of queries."""
        if self.of_keys:
            return _Sums(_OF_KEY, "l", _TERMS, 1), _Sums(_OF_VALUE, "x", _COLUMNS, 2)
        return (_Sums(_OF_QUERY, "l", _TERMS, 0),)

    def arguments(self) -> tuple[str, ...]:
        """Parameters of its function, without constants."""
        core, weights = self.core, self.weights
        roots = [weights.score, core.slope, core.logsumexp]
        roots += [body for body in (weights.mask, core.inner) if body is not None]
        for store in self.kernel.stores:
            roots += [store.value, *store.indirect, *(() if store.mask is None else (store.mask,))]
        used = {load.buffer for load in list_loads(roots)} | {s.buffer for s in self.kernel.stores}
        used |= set(self.list_tensors())
        tensors = [arg.name for arg in self.kernel.args if arg.name in used]
        return (*self.memory(), *tensors, *self.sizes())

    def function(self) -> Function:
        """Its function."""
        start, top = len(self.spaces), self.writer
        begin, counted = self.begin_rounds(start)
        inside = len(self.spaces)
        self.writer = top.inner()
        loops = [
            For(
                _STEP.id,
                call("range", one.first, one.last),
                (*self.find_stage(), *self.find_key(one.kind, _STEP), *self._step(one)),
            )
            for one in self.list_loops()
        ]
        outside = self.writer.statements
        positions = lay_out(self.define(self.spaces[inside:]), _SCORES)
        part = Binary("+", Binary("*", Name("yprogram"), Number(self.parts)), Name(_PART))
        zeros = tuple(
            Assign((one.name.id,), self._fill(one.letter, DType.F32, Name(one.layout))) for one in self.sums
        )
        whole = Assign((OFFSET.name,), _TILE_OFFSET)
        around = (whole, *counted, *outside, *self._begin_slopes(), *loops, *self._end_slopes())
        body = (
            *begin,
            Assign((_TILE_OFFSET.id,), Name(OFFSET.name)),
            Assign(("yprogram",), part),
            *positions,
            *self._take_own(),
            *zeros,
            *lay_out(self.go_around(around, start), _SCORES),
            self.arrive(self.own.free, Name(_PART)),
            *self._results(),
        )
        return define_function(
            self.name,
            self.arguments(),
            self.tiles(body),
            constants=(_PART, _SCORES, _TERMS, _COLUMNS, *self.constants()),
            gluon=True,
        )

    def _fill(self, letter: Letter, dtype: DType, layout: Expression) -> Expression:
        block = List((Name(BLOCKS["y"]), Name(BLOCKS[letter])))
        return gl("full", block, Number(0.0), get_triton_type(dtype), layout)

    def _take_own(self) -> tuple[Statement, ...]:
        """Return the tile's own blocks."""
        part, points = Name(_PART), Name(BLOCKS["y"])
        lines: list[Statement] = [self.wait(self.own.full, part, Binary("&", TURN, Number(1)))]
        for name, one, stages in zip((_OWN_FIRST, _OWN_SECOND), self.own.both, self.own.stages, strict=True):
            block = List((points, Name(one.near)))
            lines.append(Assign((name.id,), method(method(stages, "index", part), "reshape", block)))
        return tuple(lines)

    def _find_block(self, number: int, stage: Expression) -> Expression:
        """Return the block of the other side at `stage`: of the first operand, or of the second."""
        one, stages = self.other.both[number], self.other.stages[number]
        return method(method(stages, "index", stage), "reshape", List((Name(BLOCKS["r"]), Name(one.near))))

    def _step(self, loop: KeyLoop) -> tuple[Statement, ...]:
        """One block of the other side."""
        writer = self.writer.inner()
        early, rest = writer.inner(), writer.inner()
        _, slope = self.slopes(
            rest,
            _RAW,
            self._pass_on,
            None,
            self.tile("r", 0, ragged=loop.ragged),
            has_mask=loop.has_mask,
            ragged=loop.ragged,
            early=early,
            folds=self.of_keys,
        )
        writer.statements += [*early.statements, self.wait(self.other.full, STAGE, PHASE)]
        self._multiply_own(writer)
        if self.of_keys:
            writer.assign((_RAW,), _wait(1, _RAW))
            writer.statements += rest.statements
            self._round(writer, _SLOPES, slope, _TERMS)
            writer.assign((_OF_KEY,), multiply(_SLOPES, self._find_block(0, STAGE), _OF_KEY))
            writer.assign((_OF_VALUE, _OF_KEY), _wait(0, _OF_VALUE, _OF_KEY))
            writer.statements.append(self.arrive(self.other.free, STAGE))
        else:
            writer.assign((_BEFORE,), tl("where", _is_later(), _find_last(), STAGE))
            writer.assign((_OF_QUERY,), multiply(_SLOPES, self._find_block(0, _BEFORE), _OF_QUERY))
            writer.assign((_RAW,), _wait(2, _RAW))
            writer.statements += rest.statements
            # waiting branches, and what is computed before stays before the wait for the product
            writer.statements.append(self.wait(self.other.full, STAGE, PHASE))
            assert isinstance(slope, Name)
            writer.assign((_OF_QUERY, slope), _wait(0, _OF_QUERY, slope))
            self._round(writer, _SLOPES, slope, _TERMS)
            writer.statements.append(self.arrive(self.other.free, _BEFORE, _is_later()))
        writer.assign((DONE,), Binary("+", DONE, Number(1)))
        return tuple(writer.statements)

    def _pass_on(self, weight: Expression, inside: Writer) -> Expression:
        """Write the gradient that weights pass on to scores; the product begun behind it stays under way."""
        if self.of_keys:
            self._round(inside, _ROUNDED, weight, _COLUMNS)
            inside.assign((_OF_VALUE,), multiply(_ROUNDED, self._find_block(1, STAGE), _OF_VALUE))
        inside.assign((_THROUGH,), _wait(1, _THROUGH))
        return _THROUGH

    def _multiply_own(self, writer: Writer) -> None:
        """Begin the products of what is a tile's own and a block of the other side."""
        turned = Tuple((Number(1), Number(0)))
        nothing = self._fill("r", DType.F32, Name(_SCORES))
        if self.of_keys:
            # no registers are written while products are under way
            writer.assign((_THROUGH,), Binary("-", nothing, self.folded))
        for name, own, number in ((_RAW, _OWN_FIRST, 0), (_THROUGH, _OWN_SECOND, 1)):
            other = method(self._find_block(number, STAGE), "permute", turned)
            is_folded = self.of_keys and name is _THROUGH
            begin = name if is_folded else nothing
            writer.assign((name,), multiply(own, other, begin, use_acc=Number(is_folded)))

    def _round(self, writer: Writer, name: Name, value: Expression, layout: str) -> None:
        """Assign `value` as the tensor cores take it, whose sums have `layout`."""
        operand = gl("DotOperandLayout", Number(0), Name(layout), Number(2))
        rounded = method(value, "to", get_triton_type(self.dtype))
        writer.assign((name,), gl("convert_layout", rounded, operand))

    def _begin_slopes(self) -> tuple[Statement, ...]:
        """There are no slopes before the first step."""
        if self.of_keys:
            return ()
        operand = gl("DotOperandLayout", Number(0), Name(_TERMS), Number(2))
        return (Assign((_SLOPES.id,), self._fill("r", self.dtype, operand)),)

    def _end_slopes(self) -> tuple[Statement, ...]:
        """Multiply the slopes of the last step."""
        if self.of_keys:
            return ()
        return (
            Assign((_BEFORE.id,), _find_last()),
            Assign((_OF_QUERY.id,), multiply(_SLOPES, self._find_block(0, _BEFORE), _OF_QUERY)),
            Assign((_OF_QUERY.id,), _wait(0, _OF_QUERY)),
            self.arrive(self.other.free, _BEFORE),
        )

    def _results(self) -> tuple[Statement, ...]:
        """Return statements that store the sums."""
        lines: list[Statement] = []
        for one in self.sums:
            start = len(self.spaces)
            self.writer = self.writer.inner()
            found: Expression = one.name
            if one.name is not _OF_VALUE:
                found = self.writer.bind("result", self.scale_sum(one.name))
            self.store_result(one.number, one.letter, found)
            inside = self.define(self.spaces[start:])
            lines += lay_out((*inside, *self.writer.statements), one.layout)
        return tuple(lines)


def _is_later() -> Expression:
    """True if a step is not the first one of its tile."""
    return Binary(">", _STEP, Number(0))


def _find_last() -> Expression:
    """Return the stage of the last step."""
    return Binary("%", Binary("+", DONE, Binary("-", Name(STAGES), Number(1))), Name(STAGES))


def _wait(pending: int, *sums: Expression) -> Expression:
    return hopper("warpgroup_mma_wait", Number(pending), deps=List(sums))
