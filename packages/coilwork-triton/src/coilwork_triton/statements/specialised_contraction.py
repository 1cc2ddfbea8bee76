"""The statements of a contraction whose warps have roles, in Triton's dialect Gluon.

One warp, the loader, has the copy engine bring blocks of the factors to a ring of stages in shared memory,
for all tiles of its program one after the other. Groups of warps, the consumers, multiply what has come. A
stage has two barriers: `full`, which the engine arrives at, and `free`, which consumers arrive at when nobody
reads the stage any more. So loads go on while results are stored. Consumers that have tiles of their own take
turns in multiplying, by the barriers `turns`: a barrier tells two phases apart, and nobody may be further
ahead.

    product             makes descriptors, stages and barriers, and starts the roles
    product_load        the loader
    product_multiply    a consumer: sums of a tile, or of its part of one, then what becomes of them

What becomes of sums is written as in any kernel, and laid out as sums are. Rows of memory want another
layout, `RESULTS`: values get it when they are stored, or sums before all else where blocks are also loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.fresh_names import FreshNames
from coilwork_ir.index import as_expr, find_stride, provably_divisible
from coilwork_ir.kernels import Kernel
from coilwork_ir.mapping.stored_matrix import StoredMatrix
from coilwork_ir.scalar import Load, Scalar
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
    Binary,
    Do,
    Expression,
    For,
    Function,
    If,
    List,
    Name,
    Number,
    Statement,
    Tuple,
    call,
    method,
)
from coilwork_triton.contraction_plan import ContractionShape
from coilwork_triton.facts.kernel_analysis import Levels, list_action_roots, list_actions
from coilwork_triton.iteration.shape import Shape, Tile
from coilwork_triton.iteration.space import LOOP_OFFSET, Space
from coilwork_triton.launch.parameters import GROUP, STAGES
from coilwork_triton.product_roles import LOADER_REGISTERS, Roles
from coilwork_triton.statements.actions import perform
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.values import Values
from coilwork_triton.text.gluon import gl, hopper, lay_out_blocks, store_in_layout
from coilwork_triton.text.language import Writer, define_function, tl, tl_name
from coilwork_triton.text.variables import keep_used

# Registers of a thread of each group: consumers share what the loader leaves of a multiprocessor's.
_REGISTERS: Final = 504
_LANES: Final = 32
# Neighbours that a thread stores at most, 16 bytes of halves, and columns that threads store side by side.
_VECTOR: Final = 8
_ACROSS: Final = 64

_PART: Final = "PART"
_SUMS: Final = "SUMS"
_RESULTS: Final = "RESULTS"
_FULL, _FREE, _TURNS = Name("full"), Name("free"), Name("turns")
_STAGE, _PHASE, _LAST, _DONE, _TURN = map(Name, ("stage", "phase", "last", "done", "turn"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Factor:
    """A factor as blocks in shared memory.

    Attributes:
        matrix: in memory.
        side: the tile of its rows or columns.
        parts: blocks of a stage, one for each consumer.
        blocks, stages: names of the descriptor and of the memory.
    """

    matrix: StoredMatrix
    side: Tile
    parts: int
    blocks: str
    stages: str
    dtype: DType

    def order(self, axis: Tile) -> tuple[Tile, Tile]:
        """Return the tiles along its rows in memory and across them, these first."""
        return (self.side, axis) if self.matrix.along_axes else (axis, self.side)

    def extents(self, axis: Tile) -> list[Expression]:
        """Return the extents of a block."""
        return [self._extent(tile) for tile in self.order(axis)]

    def _extent(self, tile: Tile) -> Expression:
        whole = Name(tile.block)
        return whole if tile is not self.side or self.parts == 1 else Binary("//", whole, Number(self.parts))


def emit_specialised_contraction(
    kernel: Kernel, shape: ContractionShape, levels: Levels, library: set[str]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """Return the functions of the roles, and the statements of `kernel`'s function. Names of device functions
    used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    roles = shape.roles
    assert roles is not None
    writing = _Writing(kernel, shape, roles, levels, library)
    return (writing.loader(), writing.consumer()), writing.entry()


class _Writing:
    """Writes the three functions of one kernel."""

    def __init__(
        self, kernel: Kernel, shape: ContractionShape, roles: Roles, levels: Levels, library: set[str]
    ) -> None:
        self._kernel, self._shape, self._roles = kernel, shape, roles
        self._levels, self._library = levels, library
        self._taken = {a.name for a in kernel.args} | {s.name for s in kernel.sizes}
        self._taken |= {r.symbol.name for r in kernel.ranges}
        names = FreshNames(self._taken)
        self._factors = {factor: self._factor(factor, names) for factor, _ in shape.fetched}
        self._space = Space(kernel, shape.results, library)
        library.add("grouped")

    def _factor(self, factor: Scalar, names: FreshNames) -> _Factor:
        matrix = self._shape.find_fetched(factor)
        assert matrix is not None
        is_left = any(node.left is factor for node in self._shape.nodes)
        return _Factor(
            matrix=matrix,
            side=self._shape.rows if is_left else self._shape.columns,
            parts=self._roles.parts if is_left else 1,
            blocks=names.make_numbered(f"{matrix.buffer}_blocks"),
            stages=names.make_numbered(f"{matrix.buffer}_stages"),
            dtype=factor.dtype,
        )

    # the entry

    def entry(self) -> tuple[Statement, ...]:
        """Return the statements of the kernel's own function."""
        shape, roles = self._shape, self._roles
        lines: list[Statement] = list(self._extents())
        for one in self._factors.values():
            lines += [self._descriptor(one), self._memory(one)]
        lines += _make_barriers(Name(STAGES), {_FULL: 1, _FREE: roles.parts})
        if roles.pingpong:
            lines += _make_barriers(Number(roles.consumers), {_TURNS: 1})
        columns = Name(shape.columns.block)
        warps = List((Number(roles.warps), Number(1)))
        instruction = List((Number(16), columns, Number(16)))
        sums = gl("NVMMADistributedLayout", List((Number(3), Number(0))), warps, instruction)
        together = self._find_vector()
        across = min(_LANES, _ACROSS // together)
        threads = List((Number(_LANES // across), Number(across)))
        vector = List((Number(1), Number(together)))
        results = gl("BlockedLayout", vector, threads, warps, List((Number(1), Number(0))))
        rows: Expression = Name(shape.rows.block)
        if roles.parts > 1:
            rows = Binary("//", rows, Number(roles.parts))
        blocks = (rows, *map(Name, self._constants()[1:]))
        given = tuple(map(Name, self._consumer_arguments()))
        calls: list[Expression] = [
            Tuple(
                (Name(self._name_function("multiply")), Tuple((*given, Number(part), sums, results, *blocks)))
            )
            for part in range(roles.consumers)
        ]
        given = tuple(map(Name, (*self._loader_arguments(), *self._constants())))
        calls.append(Tuple((Name(self._name_function("load")), Tuple(given))))
        others = [*([roles.warps] * (roles.consumers - 1)), 1]
        each = (_REGISTERS - LOADER_REGISTERS) // roles.consumers // 8 * 8
        registers = [*([each] * (roles.consumers - 1)), LOADER_REGISTERS]
        lines.append(
            Do(
                gl(
                    "warp_specialize",
                    List(tuple(calls)),
                    List(tuple(map(Number, others))),
                    List(tuple(map(Number, registers))),
                )
            )
        )
        return tuple(lines)

    def _find_vector(self) -> int:
        """Neighbours that a thread may store at once in all rows."""
        inner = self._shape.columns.inner
        others = [r.symbol for r in self._kernel.ranges if r.kind == "parallel" and r.symbol is not inner]
        steps = [find_stride(store.index, symbol) for store in self._kernel.stores for symbol in others]
        found = _VECTOR
        while found > 1 and not all(step is not None and provably_divisible(step, found) for step in steps):
            found //= 2
        return found

    def _descriptor(self, one: _Factor) -> Statement:
        space, matrix = self._space, one.matrix
        start: Expression = Name(matrix.buffer)
        if matrix.offset != as_expr(0):
            start = Binary("+", start, space.index(matrix.offset))
        extents = List(tuple(one.extents(self._shape.axis)))
        element = Attribute(Attribute(Name(matrix.buffer), "dtype"), "element_ty")
        descriptor = hopper(
            "tma.make_tensor_descriptor",
            start,
            List(tuple(space.numel(tile) for tile in one.order(self._shape.axis))),
            List((space.index(matrix.stride), Number(1))),
            extents,
            method(Attribute(Name("gl"), "NVMMASharedLayout"), "get_default_for", extents, element),
        )
        return Assign((one.blocks,), descriptor)

    def _memory(self, one: _Factor) -> Statement:
        number: Expression = Name(STAGES)
        if one.parts > 1:
            number = Binary("*", number, Number(one.parts))
        blocks = Name(one.blocks)
        memory = gl(
            "allocate_shared_memory",
            Attribute(blocks, "dtype"),
            List((number, *one.extents(self._shape.axis))),
            Attribute(blocks, "layout"),
        )
        return Assign((one.stages,), memory)

    # the loader

    def loader(self) -> Function:
        """Return the function of the warp that has blocks brought."""
        shape, full = self._shape, method(_FULL, "index", _STAGE)
        copies: list[Statement] = []
        for one in self._factors.values():
            for part in range(one.parts):
                copies.append(Do(self._copy(one, part, full)))
        sides: list[Expression] = []
        for side in (shape.rows, shape.columns):
            bytes_each = sum(one.dtype.itemsize for one in self._factors.values() if one.side is side)
            sides.append(Binary("*", Name(side.block), Number(bytes_each)))
        size = Binary("*", Name(shape.axis.block), Binary("+", *sides))
        step: tuple[Statement, ...] = (
            Do(hopper("mbarrier.wait", method(_FREE, "index", _STAGE), _PHASE)),
            Do(hopper("mbarrier.expect", full, size)),
            *copies,
            *_advance(),
        )
        offsets = [
            Assign((f"{tile.letter}offset",), Binary("*", Name(f"{tile.letter}program"), Name(tile.block)))
            for tile in (shape.rows, shape.columns)
        ]
        each = (self._place(), *offsets, self._terms(step))
        lines = (
            *self._extents(),
            *self._counts(1),
            Assign((_STAGE.id,), Number(0)),
            # nothing was ever read from stages that are free at first
            Assign((_PHASE.id,), Number(1)),
            self._tiles(None, each),
        )
        arguments, constants = self._loader_arguments(), self._constants()
        return define_function(self._name_function("load"), arguments, lines, constants=constants, gluon=True)

    def _copy(self, one: _Factor, part: int, full: Expression) -> Expression:
        offset: Expression = Name(f"{one.side.letter}offset")
        stage: Expression = _STAGE
        if one.parts > 1:
            stage = Binary("+", Binary("*", stage, Number(one.parts)), Number(part))
            rows = Binary("*", Number(part), Binary("//", Name(one.side.block), Number(one.parts)))
            offset = Binary("+", offset, rows)
        places = (offset, LOOP_OFFSET) if one.matrix.along_axes else (LOOP_OFFSET, offset)
        target = method(Name(one.stages), "index", stage)
        return hopper("tma.async_copy_global_to_shared", Name(one.blocks), List(places), full, target)

    # a consumer

    def consumer(self) -> Function:
        """Return the function of a group of warps that multiplies."""
        shape, roles = self._shape, self._roles
        names = tuple("sums" if not number else f"sums{number}" for number in range(len(shape.nodes)))
        top = Writer(FreshNames(self._taken | {*names}), self._library)
        actions = list_actions(self._kernel)
        roots = [root for action in actions for root in list_action_roots(action)]
        space = Space(self._kernel, shape.results, self._library)
        results = Values(self._kernel, shape.results, self._levels, space, roots, self._library)
        scope = Scope(writer=top, bound=dict(zip(shape.nodes, map(Name, names), strict=True)))
        results.compute(scope, results.find_pending(scope, roots))
        for action in actions:
            perform(results, scope, action)
        positions = space.positions(lambda tile: self._widen(Name(f"{tile.letter}program")))
        after = self._finish(names, positions, top.statements, results, roots)
        extents = [Name(shape.rows.block), Name(shape.columns.block)]
        zeros = gl("full", List(tuple(extents)), Number(0.0), tl_name("float32"), Name(_SUMS))
        part: tuple[Statement, ...] = ()
        if roles.parts > 1:
            row = Binary("+", Binary("*", Name("yprogram"), Number(roles.parts)), Name(_PART))
            part = (Assign(("yprogram",), row),)
        each: tuple[Statement, ...] = (
            self._place(),
            *part,
            *(Assign((name,), zeros) for name in names),
            Assign((_STAGE.id,), Binary("%", _DONE, Name(STAGES))),
            Assign((_PHASE.id,), Binary("&", Binary("//", _DONE, Name(STAGES)), Number(1))),
            # not `stage`: Triton takes a variable that gets its own first value in a loop for a constant
            Assign((_LAST.id,), Number(0)),
            *self._take_turn(),
            self._terms(self._multiply(names)),
            *self._end_turn(),
            _wait(names, 0),
            Do(hopper("mbarrier.arrive", method(_FREE, "index", _LAST), count=Number(1))),
            Assign((_DONE.id,), Binary("+", _DONE, self._stages_of_tiles(Number(self._turns)))),
            *after,
        )
        first: Expression = Number(0)
        if roles.pingpong:
            first = self._stages_of_tiles(Name(_PART))
        lines = (
            *self._extents(),
            *self._counts(roles.parts),
            Assign((_DONE.id,), first),
            *((Assign((_TURN.id,), self._first_turn()),) if roles.pingpong else ()),
            self._tiles(Name(_PART) if roles.pingpong else None, each),
        )
        return define_function(
            self._name_function("multiply"),
            self._consumer_arguments(),
            lines,
            constants=(_PART, _SUMS, _RESULTS, *self._constants()),
            gluon=True,
        )

    def _finish(
        self,
        names: Sequence[str],
        positions: Sequence[Statement],
        statements: Sequence[Statement],
        results: Values,
        roots: Sequence[Scalar],
    ) -> tuple[Statement, ...]:
        """Write the epilogue, and the conversions of sums to the layouts that its steps need."""
        tiles = (self._shape.rows, self._shape.columns)
        axes = {tile.block: axis for axis, tile in enumerate(tiles)}
        whole = tuple(tile.block for tile in tiles)
        loads = [node for node in results.order if isinstance(node, Load)]
        early = any(results.block(node) == whole for node in loads)
        stored = None
        if not early and all(results.block(root) == whole for root in roots):
            stored = store_in_layout(statements, positions, Name(_RESULTS))
        if stored is None:
            lines = (*positions, *statements)
            turned = tuple(Assign((n,), gl("convert_layout", Name(n), Name(_RESULTS))) for n in names)
            return (*turned, *lay_out_blocks(lines, axes, Name(_RESULTS)))
        body, places = stored
        return (
            *lay_out_blocks(keep_used(positions, body), axes, Name(_SUMS)),
            *lay_out_blocks(places, axes, Name(_RESULTS)),
            *lay_out_blocks(body, axes, Name(_SUMS)),
        )

    def _first_turn(self) -> Expression:
        """Return the phase that a consumer waits for first: the first consumer is told by nobody, and goes
        ahead.
        """
        return Binary("-", Number(1), Name(_PART))

    def _take_turn(self) -> tuple[Statement, ...]:
        """Wait until the consumer before has got all that it multiplies."""
        if not self._roles.pingpong:
            return ()
        own = method(_TURNS, "index", Name(_PART))
        again = Assign((_TURN.id,), Binary("^", _TURN, Number(1)))
        return (Do(hopper("mbarrier.wait", own, _TURN)), again)

    def _end_turn(self) -> tuple[Statement, ...]:
        """Tell the next consumer."""
        if not self._roles.pingpong:
            return ()
        after = Binary("%", Binary("+", Name(_PART), Number(1)), Number(self._roles.consumers))
        return (Do(hopper("mbarrier.arrive", method(_TURNS, "index", after), count=Number(1))),)

    def _multiply(self, names: Sequence[str]) -> tuple[Statement, ...]:
        """One block of terms: once the sums of the last one are done, its stage is free."""
        later = Binary(">", LOOP_OFFSET, Number(0))
        lines: list[Statement] = [Do(hopper("mbarrier.wait", method(_FULL, "index", _STAGE), _PHASE))]
        for name, node in zip(names, self._shape.nodes, strict=True):
            blocks = (self._block(node.left), self._block(node.right))
            product = hopper("warpgroup_mma", *blocks, Name(name), use_acc=later, is_async=Number(True))
            lines.append(Assign((name,), product))
        return (
            *lines,
            _wait(names, len(names)),
            Do(hopper("mbarrier.arrive", method(_FREE, "index", _LAST), count=Number(1), pred=later)),
            Assign((_LAST.id,), _STAGE),
            *_advance(),
        )

    def _block(self, factor: Scalar) -> Expression:
        """Return a block of `factor` in shared memory, as it is multiplied."""
        one = self._factors[factor]
        stage: Expression = _STAGE
        if one.parts > 1:
            stage = Binary("+", Binary("*", stage, Number(one.parts)), Name(_PART))
        found: Expression = method(Name(one.stages), "index", stage)
        wanted = (one.side, self._shape.axis)
        if one.side is self._shape.columns:
            wanted = wanted[::-1]
        if one.order(self._shape.axis) != wanted:
            found = method(found, "permute", Tuple((Number(1), Number(0))))
        return found

    # what functions share

    def _name_function(self, role: str) -> str:
        return f"{self._kernel.name}_{role}"

    def _constants(self) -> tuple[str, ...]:
        shape = self._shape
        return (shape.rows.block, shape.columns.block, shape.axis.block, GROUP, STAGES)

    def _loader_arguments(self) -> tuple[str, ...]:
        factors = self._factors.values()
        memory = [name for one in factors for name in (one.blocks, one.stages)]
        return (*memory, _FULL.id, _FREE.id, *(size.name for size in self._kernel.sizes))

    def _consumer_arguments(self) -> tuple[str, ...]:
        memory = [one.stages for one in self._factors.values()]
        fetched = {id(factor) for factor in self._factors}
        loaded = {
            node.buffer for node in self._levels.varies if isinstance(node, Load) and id(node) not in fetched
        }
        stored = {store.buffer for store in self._kernel.stores}
        tensors = [a.name for a in self._kernel.args if a.name in loaded | stored]
        turns = (_TURNS.id,) if self._roles.pingpong else ()
        return (*memory, _FULL.id, _FREE.id, *turns, *tensors, *(size.name for size in self._kernel.sizes))

    @property
    def _turns(self) -> int:
        """Tiles of the program for each of a consumer."""
        return self._roles.consumers if self._roles.pingpong else 1

    def _extents(self) -> tuple[Statement, ...]:
        spaces = [Space(self._kernel, shape, self._library) for shape in self._spaces()]
        return tuple(dict.fromkeys(line for space in spaces for line in space.extents()))

    def _spaces(self) -> tuple[Shape, ...]:
        return (self._shape.left, self._shape.right)

    def _counts(self, parts: int) -> list[Statement]:
        """How many blocks of rows and of columns there are."""
        found: list[Statement] = []
        for tile in (self._shape.rows, self._shape.columns):
            block: Expression = Name(tile.block)
            if tile is self._shape.rows and parts > 1:
                block = Binary("*", block, Number(parts))
            count = tl("cdiv", self._short(self._space.numel(tile)), block)
            found.append(Assign((f"{tile.letter}programs",), count))
        return found

    def _place(self) -> Statement:
        """Compute the numbers of the tile `tile` along rows and columns."""
        counts = (Name("yprograms"), Name("xprograms"), Name(GROUP))
        return Assign(("yprogram", "xprogram"), call("grouped", Name("tile"), *counts))

    def _tiles(self, part: Expression | None, body: tuple[Statement, ...]) -> Statement:
        """Return a loop over the program's tiles; of those, if there is a `part`, over every so many."""
        programs = tl("num_programs", Number(0))
        first: Expression = tl("program_id", Number(0))
        step: Expression = programs
        if part is not None:
            first = Binary("+", first, Binary("*", part, programs))
            step = Binary("*", Number(self._roles.consumers), programs)
        total = Binary("*", Name("yprograms"), Name("xprograms"))
        return For("tile", call("range", first, total, step), body)

    def _terms(self, body: tuple[Statement, ...]) -> Statement:
        """Return a loop over the blocks of terms."""
        stop = self._short(self._space.numel(self._shape.axis))
        return For(LOOP_OFFSET.id, call("range", Number(0), stop, Name(self._shape.axis.block)), body)

    def _stages_of_tiles(self, tiles: Expression) -> Expression:
        """How many stages so many tiles take."""
        stop = self._short(self._space.numel(self._shape.axis))
        return Binary("*", tiles, tl("cdiv", stop, Name(self._shape.axis.block)))

    def _short(self, number: Expression) -> Expression:
        """`number`, a size, in 32 bits."""
        if isinstance(number, Number) or self._shape.index_dtype is DType.I32:
            return number
        return tl("cast", number, tl_name("int32"))

    def _widen(self, number: Expression) -> Expression:
        """`number` in the type of offsets."""
        return number if self._shape.index_dtype is DType.I32 else tl("cast", number, tl_name("int64"))


def _make_barriers(number: Expression, counts: Mapping[Name, int]) -> Iterator[Statement]:
    """`number` barriers by each name, and how many arrive at one in a phase."""
    for name in counts:
        layout = hopper("mbarrier.MBarrierLayout")
        extents = List((number, Number(1)))
        memory = gl("allocate_shared_memory", Attribute(Name("gl"), "int64"), extents, layout)
        yield Assign((name.id,), memory)
    starts = tuple(
        Do(hopper("mbarrier.init", method(name, "index", _STAGE), count=Number(count)))
        for name, count in counts.items()
    )
    yield For(_STAGE.id, gl("static_range", number), starts)


def _advance() -> tuple[Statement, ...]:
    """Return the next stage."""
    again = (
        Assign((_STAGE.id,), Number(0)),
        Assign((_PHASE.id,), Binary("^", _PHASE, Number(1))),
    )
    return (
        Assign((_STAGE.id,), Binary("+", _STAGE, Number(1))),
        If(Binary("==", _STAGE, Name(STAGES)), again),
    )


def _wait(names: Sequence[str], pending: int) -> Statement:
    """Wait until at most `pending` products that add to `names` are not done."""
    sums = List(tuple(map(Name, names)))
    return Assign(tuple(names), hopper("warpgroup_mma_wait", Number(pending), deps=sums))
