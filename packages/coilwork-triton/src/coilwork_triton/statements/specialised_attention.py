"""The statements of attention whose warps have roles, in Triton's dialect Gluon.

One warp, the loader, has the copy engine bring rows of queries, and blocks of keys and of values to rings of
stages in shared memory, for all tiles of its program one after the other. Groups of warps, the consumers,
have 64 rows each and keep scores, weights and sums in registers. The algorithm is that of FlashAttention-3
(Shah et al., 2024): while the tensor cores add the product of the last block's weights and values, a consumer
computes the softmax of the next block's scores.

    attention           makes descriptors, stages and barriers, and starts the roles
    attention_load      the loader
    attention_attend    a consumer

Keys are gone through from the last block that counts to the first one. Tiles follow each other without a
gap: a consumer takes the next queries to registers and multiplies them with the first keys, while the tensor
cores end the sums of the tile before. Only then it divides and stores these, by the copy engine, which reads
them while the next blocks are multiplied.
"""

from __future__ import annotations

from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr
from coilwork_ir.kernels.attention import roles_of
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.scalar import Scalar, list_loads, parameter
from coilwork_ir.syntax.python import (
    Assign,
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
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.attention_roles import (
    CONSUMER_ROWS,
    MOST_WITH_QUERIES,
    count_query_places,
    count_registers,
    find_operands,
    find_stored_result,
)
from coilwork_triton.iteration.space import LOOP_OFFSET
from coilwork_triton.launch.parameters import BLOCKS, STAGES
from coilwork_triton.product_roles import GROUP_WARPS, LOADER_REGISTERS
from coilwork_triton.statements.attention_blocks import NOWHERE, OFFSET, PROGRAM, insert_column
from coilwork_triton.statements.attention_softmax import OnlineSoftmax
from coilwork_triton.statements.attention_tiles import (
    DONE,
    PHASE,
    STAGE,
    TURN,
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
    slice_layout,
)
from coilwork_triton.text.gluon import gl, hopper
from coilwork_triton.text.language import Writer, define_function, get_triton_type, tl, tl_name
from coilwork_triton.text.variables import rename

# A row's sum of weights is in so many parts until its end: each is of what one thread has.
_PARTS: Final = 8
_PART, _SCORES, _SUMS, _ROWS = "PART", "SCORES", "SUMS", "ROWS"
_BEFORE, _QUERY, _KEPT = Name("before"), Name("query"), Name("kept")
# What is known of the tile before begins so.
_ENDED: Final = "ended"
_POWER, _WEIGHT = Name("power"), Name("weight")
_MOST, _TOTAL, _TOTALS = Name("most"), Name("total"), Name("sums")


def emit_specialised_attention(
    plan: PlannedAttention, core: AttentionCore, library: set[str]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """Return the functions of the roles, and the statements of the kernel's own function. Names of device
    functions used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    loader, consumer = _Loader(plan, core, library), _Consumer(plan, core, library)
    return (loader.function(), consumer.function()), _Entry(plan, core, library).statements()


class _ForwardRole(Role):
    """What roles of attention share: operands, and where queries are."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)
        self.holds_queries = plan.consumers <= MOST_WITH_QUERIES
        self.places = count_query_places(plan.consumers)
        found = find_operands(plan.kernel, core)
        assert not isinstance(found, str)
        dtype = core.weights.query.dtype
        named = zip(("query", "key", "value"), found, ("l", "l", "x"), strict=True)
        self.query, self.key, self.value = (
            SharedOperand(name, rows, dtype, BLOCKS[letter]) for name, rows, letter in named
        )
        self.operands = (self.query, self.key, self.value)
        result = find_stored_result(plan.kernel, core)
        self.result = None if result is None else SharedOperand("result", result, dtype, BLOCKS["x"])

    def memory(self) -> tuple[str, ...]:
        """Return the names of stages and barriers in shared memory, which every role gets."""
        return tuple(name.id for one in self.operands for name in (one.stages, one.full, one.free))

    def arguments(self) -> tuple[str, ...]:
        """Parameters of the role's function, without constants."""
        blocks = (one.blocks.id for one in self.operands)
        return (*blocks, *self.memory(), *self.list_tensors(), *self.sizes())

    def find_place(self, part: Expression) -> Expression:
        """Return the number of the place in shared memory that holds the queries of the consumer `part`."""
        if self.places == 1:
            return part
        turn = Binary("*", Binary("%", TURN, Number(self.places)), Number(self.consumers))
        return turn if part == Number(0) else Binary("+", turn, part)

    def find_turn(self) -> Expression:
        """How often queries came there before, modulo 2."""
        turn = TURN if self.places == 1 else Binary("//", TURN, Number(self.places))
        return Binary("&", turn, Number(1))


class _Entry(_ForwardRole):
    """The kernel's own function."""

    def statements(self) -> tuple[Statement, ...]:
        """Its statements."""
        lines: list[Statement] = []
        rows = {"query": Number(CONSUMER_ROWS), "result": Number(CONSUMER_ROWS)}
        results = () if self.result is None else (self.result,)
        for one in (*self.operands, *results):
            block = self.extents(one, rows.get(one.name, Name(BLOCKS["r"])))
            lines.append(describe(one, block, self.print_index))
        for one in self.operands:
            number = Number(self.consumers * self.places) if one is self.query else Name(STAGES)
            extents = (number, *self.extents(one, rows.get(one.name, Name(BLOCKS["r"]))).items)
            lines.append(Assign((one.stages.id,), allocate(one, extents)))
            for name in (one.full, one.free):
                lines.append(Assign((name.id,), allocate_barriers(number)))
            readers = 1 if one is self.query else self.consumers
            starts = tuple(
                Do(hopper("mbarrier.init", method(name, "index", STAGE), count=Number(count)))
                for name, count in ((one.full, 1), (one.free, readers))
            )
            lines.append(For(STAGE.id, gl("static_range", number), starts))
        for one in results:
            extents = (Number(self.consumers), *self.extents(one, Number(CONSUMER_ROWS)).items)
            lines.append(Assign((one.stages.id,), allocate(one, extents)))
        lines.append(Do(hopper("fence_async_shared")))
        return (*self.define(self.spaces), *lines, *self._start())

    def _start(self) -> tuple[Statement, ...]:
        """Return the layouts of a consumer's blocks, and the roles."""
        consumer = _Consumer(self.plan, self._core(), self.library)
        keys, columns = Name(BLOCKS["r"]), Name(BLOCKS["x"])
        layouts = (product_layout(keys), product_layout(columns), product_layout(Number(_PARTS)))
        rows = Binary("//", Name(BLOCKS["y"]), Number(self.consumers))
        given = tuple(map(Name, consumer.arguments()))
        rest = tuple(Name(name) for name in self.constants() if name != BLOCKS["y"])
        calls: list[Expression] = [
            Tuple((Name(self.name_function("attend")), Tuple((*given, Number(part), *layouts, rows, *rest))))
            for part in range(self.consumers)
        ]
        given = tuple(map(Name, (*self.arguments(), *self.constants())))
        calls.append(Tuple((Name(self.name_function("load")), Tuple(given))))
        others = [*([GROUP_WARPS] * (self.consumers - 1)), 1]
        registers = [*([count_registers(self.consumers)] * (self.consumers - 1)), LOADER_REGISTERS]
        lists = (List(tuple(map(Number, others))), List(tuple(map(Number, registers))))
        return (Do(gl("warp_specialize", List(tuple(calls)), *lists)),)

    def _core(self) -> AttentionCore:
        core = self.kernel.core
        assert isinstance(core, AttentionCore)
        return core


class _Loader(_ForwardRole):
    """The warp that has blocks brought."""

    def function(self) -> Function:
        """Its function."""
        begin = self.begin_tile()
        start = len(self.spaces)
        again = Binary("^", self.find_turn(), Number(1))
        size = Number(CONSUMER_ROWS * self.query.dtype.itemsize)
        lines: list[Statement] = []
        for part in range(self.consumers):
            row = Binary("+", Name(OFFSET.name), Number(part * CONSUMER_ROWS)) if part else Name(OFFSET.name)
            number = self.find_place(Number(part))
            full = method(self.query.full, "index", number)
            lines += [
                self.wait(self.query.free, number, again),
                Do(hopper("mbarrier.expect", full, Binary("*", Name(self.query.near), size))),
                self.copy(self.query, row, number),
            ]
        step: list[Statement] = []
        for one in (self.key, self.value):
            full = method(one.full, "index", STAGE)
            size_of = Binary("*", Name(BLOCKS["r"]), Number(one.dtype.itemsize))
            step += [
                # nothing was ever read from stages that are free at first
                self.wait(one.free, STAGE, Binary("^", PHASE, Number(1))),
                Do(hopper("mbarrier.expect", full, Binary("*", Name(one.near), size_of))),
                self.copy(one, LOOP_OFFSET, STAGE),
            ]
        step.append(Assign((DONE.id,), Binary("+", DONE, Number(1))))
        lines += self.loop_loads(step)
        body = (*begin, *self.define(self.spaces[start:]), *lines)
        arguments, constants = self.arguments(), self.constants()
        return define_function(
            self.name_function("load"), arguments, self.tiles(body), constants=constants, gluon=True
        )


class _Consumer(_ForwardRole, OnlineSoftmax):
    """A group of warps that has 64 rows of a tile."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        super().__init__(plan, core, library)
        self.parts = self.consumers

    def arguments(self) -> tuple[str, ...]:
        """Its parameters, without constants."""
        roots = [body for body in (self.weights.score, self.weights.mask) if body is not None]
        for store in self.kernel.stores:
            roots += [store.value, *store.indirect, *(() if store.mask is None else (store.mask,))]
        used = {load.buffer for load in list_loads(roots)} | {s.buffer for s in self.kernel.stores}
        used |= set(self.list_tensors())
        tensors = [arg.name for arg in self.kernel.args if arg.name in used]
        result = () if self.result is None else (self.result.blocks.id, self.result.stages.id)
        return (*result, *self.memory(), *tensors, *self.sizes())

    def function(self) -> Function:
        """Its function."""
        begin = self.begin_tile()
        part = Binary("+", Binary("*", Name("yprogram"), Number(self.parts)), Name(_PART))
        start = len(self.spaces)
        loops = self.list_loops()
        steps: list[Statement] = []
        longest = next((one for one in loops if not one.has_mask), loops[-1])
        is_wide = True
        for one in loops:
            if one is longest:
                # rounded weights that come from several loops would be unpacked and packed in each step
                steps.append(self._round())
                is_wide = False
            first = Number(1) if one.first == Number(0) else tl("maximum", one.first, Number(1))
            steps.append(For("step", call("range", first, one.last), self._step(one, is_wide=is_wide)))
        masked = any(one.has_mask for one in loops), any(one.ragged for one in loops)
        step = self._first_step(KeyLoop(Number(0), Number(1), *masked))
        outside = lay_out((*self.define(self.spaces[start:]), *self.writer.statements), _SCORES)
        ended, results = self._end_tile(), self._results()
        lines = (
            *begin,
            Assign(("yprogram",), part),
            *outside,
            *self._start(),
            *lay_out(step, _SCORES),
            # what the first tile would end are no sums
            If(Binary(">", TURN, Number(0)), (self.arrive(self.value.free, _BEFORE), *results)),
            Assign((_TOTALS.id,), self._zeros()),
            Assign((DONE.id,), Binary("+", DONE, Number(1))),
            *lay_out(steps, _SCORES),
            *(() if self.holds_queries else (self.arrive(self.query.free, self.find_place(Name(_PART))),)),
            *ended,
        )
        last = (
            self._find_before(),
            Assign((_TOTALS.id,), self._add(_BEFORE)),
            Assign((_TOTALS.id,), hopper("warpgroup_mma_wait", Number(0), deps=List((_TOTALS,)))),
            *results,
            *(() if self.result is None else (_wait_for_stores(),)),
        )
        return define_function(
            self.name_function("attend"),
            self.arguments(),
            (
                *self._begin(),
                *self.tiles(lines),
                If(Binary(">", DONE, Number(0)), last),
            ),
            constants=(_PART, _SCORES, _SUMS, _ROWS, *self.constants()),
            gluon=True,
        )

    def _zeros(self) -> Expression:
        """Sums of nothing."""
        block = List((Name(BLOCKS["y"]), Name(BLOCKS["x"])))
        return gl("full", block, Number(0.0), tl_name("float32"), Name(_SUMS))

    def _begin(self) -> tuple[Statement, ...]:
        """There is no tile before the first one."""
        block = List((Name(BLOCKS["y"]), Name(BLOCKS["r"])))
        dtype = get_triton_type(self.value.dtype)
        operand = gl("DotOperandLayout", Number(0), Name(_SUMS), Number(2))
        rows, row = List((Name(BLOCKS["y"]),)), slice_layout(1, _SCORES)
        nothing = gl("full", rows, Number(0.0), tl_name("float32"), row)
        return (
            Assign((_TOTALS.id,), self._zeros()),
            Assign((_WEIGHT.id,), gl("full", block, Number(0.0), dtype, operand)),
            Assign((_name_ended(_TOTAL.id),), _nothing()),
            Assign((_name_ended(_MOST.id),), nothing),
            *(Assign((_name_ended(name),), Number(0)) for name in self._places()),
        )

    def _places(self) -> tuple[str, ...]:
        """Return the names that say where a tile lies."""
        return "yprogram", PROGRAM.name

    def _end_tile(self) -> tuple[Statement, ...]:
        """The tile is the one before, of the next one."""
        names = (_TOTAL.id, _MOST.id, *self._places())
        return tuple(Assign((_name_ended(name),), Name(name)) for name in names)

    def _start(self) -> tuple[Statement, ...]:
        """Nothing is summed yet. Queries are in registers, if those have room for them."""
        rows, row = List((Name(BLOCKS["y"]),)), slice_layout(1, _SCORES)
        f32 = tl_name("float32")
        part = Name(_PART)
        block = List((Name(BLOCKS["y"]), Name(self.query.near)))
        place = self.find_place(part)
        query: Expression = method(method(self.query.stages, "index", place), "reshape", block)
        if self.holds_queries:
            query = method(query, "load", gl("DotOperandLayout", Number(0), Name(_SCORES), Number(2)))
        return (
            Assign((_MOST.id,), gl("full", rows, NOWHERE, f32, row)),
            Assign((_TOTAL.id,), _nothing()),
            self.wait(self.query.full, place, self.find_turn()),
            Assign((_QUERY.id,), query),
        )

    def _find_before(self) -> Statement:
        """Return the stage of the last values, which are not multiplied yet."""
        last = Binary("+", DONE, Binary("-", Name(STAGES), Number(1)))
        return Assign((_BEFORE.id,), Binary("%", last, Name(STAGES)))

    def _first_step(self, loop: KeyLoop) -> tuple[Statement, ...]:
        """Return the first block of keys: its scores and their softmax. Beside it the tile before ends its
        sums.
        """
        writer = self.writer.inner()
        raw = self._multiply_keys(writer, loop, Number(0), is_wide=False)
        if self.holds_queries:
            # Not sooner: a load into registers that nothing has waited for may still read what the loader
            # would overwrite.
            writer.statements.append(self.arrive(self.query.free, self.find_place(Name(_PART))))
        self._add_weights(raw, loop, writer)
        writer.statements.append(self.wait(self.value.full, STAGE, PHASE))
        both = (_TOTALS, _TOTAL)
        writer.assign(both, hopper("warpgroup_mma_wait", Number(0), deps=List(both)))
        return tuple(writer.statements)

    def _multiply_keys(self, writer: Writer, loop: KeyLoop, step: Expression, *, is_wide: bool) -> Name:
        """Return a block's raw scores; the product of the weights and values of the block before is under
        way.
        """
        keys, rows = Name(BLOCKS["r"]), Name(BLOCKS["y"])
        raw = Name("raw")
        key = method(self.key.stages, "index", STAGE)
        key = method(key, "reshape", List((keys, Name(self.key.near))))
        key = method(key, "permute", Tuple((Number(1), Number(0))))
        zeros = gl("full", List((rows, keys)), Number(0.0), tl_name("float32"), Name(_SCORES))
        writer.statements += [
            *self.find_stage(),
            *self.find_key(loop.kind, step),
            self.wait(self.key.full, STAGE, PHASE),
        ]
        if is_wide:
            writer.statements.append(self._round())
        writer.assign((raw,), multiply(_QUERY, key, zeros, use_acc=Number(False)))
        writer.statements.append(self._find_before())
        writer.assign((_TOTALS,), self._add(_BEFORE))
        writer.assign((raw,), hopper("warpgroup_mma_wait", Number(1), deps=List((raw,))))
        writer.statements.append(self.arrive(self.key.free, STAGE))
        return raw

    def _step(self, loop: KeyLoop, *, is_wide: bool) -> tuple[Statement, ...]:
        """One block of keys: its scores and their softmax, beside the product of the weights and values of
        the block before. If `is_wide`, weights are rounded in the step that multiplies them.
        """
        writer = self.writer.inner()
        raw = self._multiply_keys(writer, loop, Name("step"), is_wide=is_wide)
        self._add_weights(raw, loop, writer)
        # waiting branches, and what is computed before stays before the wait for the product
        writer.statements.append(self.wait(self.value.full, STAGE, PHASE))
        both = (_TOTALS, _TOTAL)
        writer.assign(both, hopper("warpgroup_mma_wait", Number(0), deps=List(both)))
        writer.statements.append(self.arrive(self.value.free, _BEFORE))
        kept = gl("convert_layout", _KEPT, slice_layout(1, _SUMS))
        writer.assign((_TOTALS,), Binary("*", _TOTALS, insert_column(kept)))
        if not is_wide:
            writer.statements.append(self._round())
        writer.assign((DONE,), Binary("+", DONE, Number(1)))
        return tuple(writer.statements)

    def _round(self) -> Statement:
        """Weights as the tensor cores take them."""
        rounded = method(_POWER, "to", get_triton_type(self.value.dtype))
        operand = gl("DotOperandLayout", Number(0), Name(_SUMS), Number(2))
        return Assign((_WEIGHT.id,), gl("convert_layout", rounded, operand))

    def _add(self, stage: Expression) -> Expression:
        """Return the sums, and the product of weights and the values at `stage`, which begins."""
        block = List((Name(BLOCKS["r"]), Name(self.value.near)))
        values = method(method(self.value.stages, "index", stage), "reshape", block)
        return multiply(_WEIGHT, values, _TOTALS)

    def find_maximum(self, score: Expression) -> Expression:
        return gl("max", score, Number(1))

    def spread(self, score: Expression, raw: Expression) -> Expression:
        block = List((Name(BLOCKS["y"]), Name(BLOCKS["r"])))
        return Binary("+", score, gl("full", block, Number(0.0), tl_name("float32"), Name(_SCORES)))

    def _add_weights(self, raw: Name, loop: KeyLoop, writer: Writer) -> None:
        """The weights of a block's scores, whose sums they join."""
        found = self.compute_weights(raw, _MOST, writer, has_mask=loop.has_mask, ragged=loop.ragged)
        writer.assign((_POWER,), found.weight)
        writer.assign((_KEPT,), found.kept)
        parts = Binary("//", Name(BLOCKS["r"]), Number(_PARTS))
        split = method(_POWER, "reshape", List((Name(BLOCKS["y"]), parts, Number(_PARTS))))
        added = gl("convert_layout", gl("sum", split, Number(1)), Name(_ROWS))
        kept = insert_column(gl("convert_layout", _KEPT, slice_layout(1, _ROWS)))
        writer.assign((_TOTAL,), Binary("+", Binary("*", _TOTAL, kept), added))
        writer.assign((_MOST,), found.most)

    def _results(self) -> tuple[Statement, ...]:
        """Return statements that divide and store the sums of the tile before."""
        weights = self.weights
        start = len(self.spaces)
        writer = self.writer = self.writer.inner()
        rest = [s for s in self.kernel.stores if self.result is None or s.buffer != self.result.rows.buffer]
        # values of a row alone would be stored once for each column of sums that a thread has
        is_of_rows = not any(self.roles.columns.symbol in store.index.free_symbols for store in rest)
        layout = _ROWS if is_of_rows else _SUMS
        total, most, summed = Name("row_total"), Name("row_most"), Name("row_sum")
        whole = gl("sum", _TOTAL, Number(1))
        lines: list[Statement] = [
            Assign((name.id,), gl("convert_layout", value, slice_layout(1, its)))
            for name, value, its in ((total, whole, layout), (most, _MOST, layout), (summed, whole, _SUMS))
        ]
        divisor: Expression = tl("where", Binary("==", summed, Number(0)), Number(1.0), summed)
        factor = writer.bind("factor", Binary("/", Number(1.0), divisor))
        result = writer.bind("result", Binary("*", _TOTALS, insert_column(factor)))
        rows = frozenset(weights.rows)
        results: dict[Scalar, tuple[Expression, frozenset[Expr]]] = {
            parameter(0, DType.F32): (result, frozenset(weights.ranges))
        }
        if self.stores_logarithms():
            results[parameter(1, DType.F32)] = (self.find_logarithms(most, total, writer), rows)
        for store in rest:
            self.store(store, "x", results)
        sent: tuple[Statement, ...] = ()
        if self.result is not None:
            sent = self._send(result, start)
        inside = self.define(self.spaces[start:])
        lines += [*lay_out((*inside, *writer.statements), layout), *sent]
        assigned = {name for one in lines if isinstance(one, Assign) for name in one.targets}
        names = {name: _name_ended(name) for name in (*assigned, *self._places(), _TOTAL.id, _MOST.id)}
        return rename(lines, names)

    def _send(self, result: Name, start: int) -> tuple[Statement, ...]:
        """Results go to memory by the copy engine."""
        assert self.result is not None
        part, block = Name(_PART), List((Name(BLOCKS["y"]), Name(BLOCKS["x"])))
        rounded = method(result, "to", get_triton_type(self.result.dtype))
        row = Binary("*", Name("yprogram"), Name(BLOCKS["y"]))
        source = method(self.result.stages, "index", part)
        place = self.place(self.result, row)
        return (
            # The engine may still read the results before: tiles may have one step, and no other follows the
            # last one.
            _wait_for_stores(),
            Do(method(method(source, "reshape", block), "store", rounded)),
            Do(hopper("fence_async_shared")),
            Do(hopper("tma.async_copy_shared_to_global", self.result.blocks, place, source)),
        )


def _nothing() -> Expression:
    """Parts of rows' sums of no weights."""
    block = List((Name(BLOCKS["y"]), Number(_PARTS)))
    return gl("full", block, Number(0.0), tl_name("float32"), Name(_ROWS))


def _wait_for_stores() -> Statement:
    """Wait until the copy engine has read what the group had it store."""
    return Do(hopper("tma.store_wait", Number(0)))


def _name_ended(name: str) -> str:
    return f"{_ENDED}_{name}"
