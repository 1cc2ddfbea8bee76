"""The statements of attention whose warps have roles, in Triton's dialect Gluon.

One warp, the loader, has the copy engine bring rows of queries, and blocks of keys and of values to rings of
stages in shared memory, for all tiles of its program one after the other. Groups of warps, the consumers,
have 64 rows each and keep scores, weights and sums in registers. The algorithm is that of FlashAttention-3
(Shah et al., 2024): while the tensor cores add the product of the last block's weights and values, a consumer
computes the softmax of the next block's scores.

    attention           makes descriptors, stages and barriers, and starts the roles
    attention_load      the loader
    attention_attend    a consumer

Keys are gone through from the last block that counts to the first one. So the block on the diagonal of a
causal mask comes first, where nothing is to be overlapped yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Final

from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr
from coilwork_ir.kernels.nodes import AttentionCore
from coilwork_ir.scalar import Parameter, Scalar, iterate_postorder, list_loads, parameter
from coilwork_ir.syntax.python import (
    Assign,
    Attribute,
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
from coilwork_triton.attention_roles import CONSUMER_ROWS
from coilwork_triton.iteration.space import LOOP_OFFSET
from coilwork_triton.launch.parameters import BLOCKS, STAGES
from coilwork_triton.product_roles import GROUP_WARPS
from coilwork_triton.statements.attention_blocks import LOG2_E, NOWHERE, OFFSET, hide, insert_column, scale_of
from coilwork_triton.statements.attention_tiles import (
    DONE,
    PHASE,
    STAGE,
    STEPS,
    TURN,
    KeyLoop,
    Role,
    SharedOperand,
)
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.specialised_contraction import LOADER_REGISTERS
from coilwork_triton.text.gluon import gl, hopper, lay_out_blocks
from coilwork_triton.text.language import Writer, define_function, get_triton_type, tl, tl_name

# Registers of a thread of each consumer, if there is one: a multiprocessor has 64 Ki, and the loader's are
# few.
_REGISTERS: Final = 504
_PART, _SCORES, _SUMS = "PART", "SCORES", "SUMS"
_BEFORE, _QUERY, _KEPT = Name("before"), Name("query"), Name("kept")
_POWER, _WEIGHT = Name("power"), Name("weight")
_MOST, _TOTAL, _TOTALS = Name("most"), Name("total"), Name("sums")


def emit_specialised_attention(
    plan: PlannedAttention, core: AttentionCore, library: set[str]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """The functions of the roles, and the statements of the kernel's own function. Names of device functions
    used are added to `library`.

    Raises:
        EmitError: something cannot be written in Triton; the message names it.
    """
    loader, consumer = _Loader(plan, core, library), _Consumer(plan, core, library)
    return (loader.function(), consumer.function()), _Entry(plan, core, library).statements()


class _Entry(Role):
    """The kernel's own function."""

    def statements(self) -> tuple[Statement, ...]:
        """Its statements."""
        lines: list[Statement] = []
        rows = {"query": Number(CONSUMER_ROWS), "result": Number(CONSUMER_ROWS)}
        results = () if self.result is None else (self.result,)
        for one in (*self.operands, *results):
            lines.append(self._describe(one, rows.get(one.name, Name(BLOCKS["r"]))))
        for one in self.operands:
            number = Number(self.consumers) if one is self.query else Name(STAGES)
            extents = (number, *self.extents(one, rows.get(one.name, Name(BLOCKS["r"]))).items)
            lines.append(Assign((one.stages.id,), _allocate(Attribute(one.blocks, "dtype"), extents, one)))
            for name in (one.full, one.free):
                lines.append(Assign((name.id,), _allocate_barriers(number)))
            readers = 1 if one is self.query else self.consumers
            starts = tuple(
                Do(hopper("mbarrier.init", method(name, "index", STAGE), count=Number(count)))
                for name, count in ((one.full, 1), (one.free, readers))
            )
            lines.append(For(STAGE.id, gl("static_range", number), starts))
        lines.append(Do(hopper("fence_async_shared")))
        return (*self.define(self.spaces), *lines, *self._start())

    def _describe(self, one: SharedOperand, rows: Expression) -> Statement:
        stored = one.rows
        start: Expression = Name(stored.buffer)
        if stored.start != as_expr(0):
            start = Binary("+", start, self.print_index(stored.start))
        sizes = (*(each.extent for each in stored.outer), stored.rows, stored.length)
        steps = (*(each.stride for each in stored.outer), stored.stride)
        block = self.extents(one, rows)
        element = Attribute(Attribute(Name(stored.buffer), "dtype"), "element_ty")
        layout = method(Attribute(Name("gl"), "NVMMASharedLayout"), "get_default_for", block, element)
        described = hopper(
            "tma.make_tensor_descriptor",
            start,
            List(tuple(map(self.print_index, sizes))),
            List((*map(self.print_index, steps), Number(1))),
            block,
            layout,
        )
        return Assign((one.blocks.id,), described)

    def _start(self) -> tuple[Statement, ...]:
        """The layouts of a consumer's blocks, and the roles."""
        consumer = _Consumer(self.plan, self._core(), self.library)
        keys, columns = Name(BLOCKS["r"]), Name(BLOCKS["x"])
        layouts = (_multiplied(keys), _multiplied(columns))
        rows = Binary("//", Name(BLOCKS["y"]), Number(self.consumers))
        given = tuple(map(Name, consumer.arguments()))
        rest = tuple(Name(name) for name in self.constants() if name != BLOCKS["y"])
        calls: list[Expression] = [
            Tuple((Name(self.named("attend")), Tuple((*given, Number(part), *layouts, rows, *rest))))
            for part in range(self.consumers)
        ]
        given = tuple(map(Name, (*self.arguments(), *self.constants())))
        calls.append(Tuple((Name(self.named("load")), Tuple(given))))
        others = [*([GROUP_WARPS] * (self.consumers - 1)), 1]
        each = (_REGISTERS - LOADER_REGISTERS) // self.consumers // 8 * 8
        registers = [*([each] * (self.consumers - 1)), LOADER_REGISTERS]
        lists = (List(tuple(map(Number, others))), List(tuple(map(Number, registers))))
        return (Do(gl("warp_specialize", List(tuple(calls)), *lists)),)

    def _core(self) -> AttentionCore:
        core = self.kernel.core
        assert isinstance(core, AttentionCore)
        return core


class _Loader(Role):
    """The warp that has blocks brought."""

    def function(self) -> Function:
        """Its function."""
        begin = self.begin_tile()
        start = len(self.spaces)
        again = Binary("^", Binary("&", TURN, Number(1)), Number(1))
        size = Number(CONSUMER_ROWS * self.query.dtype.itemsize)
        lines: list[Statement] = []
        for part in range(self.consumers):
            row = Binary("+", Name(OFFSET.name), Number(part * CONSUMER_ROWS)) if part else Name(OFFSET.name)
            number = Number(part)
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
        loops = self.list_loops() if self.lists is not None else [KeyLoop(Number(0), STEPS, False, False)]
        for one_loop in loops:
            each = (*self.find_stage(), *self.find_key(one_loop.kind, Name("step")), *step)
            lines.append(For("step", call("range", one_loop.first, one_loop.last), each))
        body = (*begin, *self.define(self.spaces[start:]), *lines)
        arguments, constants = self.arguments(), self.constants()
        return define_function(
            self.named("load"), arguments, self.tiles(body), constants=constants, gluon=True
        )


class _Consumer(Role):
    """A group of warps that has 64 rows of a tile."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        super().__init__(plan, core, library)
        self.parts = self.consumers
        scale = scale_of(core.weights.score, 0)
        self.factor = LOG2_E * (1.0 if scale is None else scale)
        self.is_far = self.has_far_scores()

    def arguments(self) -> tuple[str, ...]:
        """Its parameters, without constants."""
        roots = [body for body in (self.weights.score, self.weights.mask) if body is not None]
        for store in self.kernel.stores:
            roots += [store.value, *store.indirect, *(() if store.mask is None else (store.mask,))]
        used = {load.buffer for load in list_loads(roots)} | {s.buffer for s in self.kernel.stores}
        used |= set(self.list_tensors())
        tensors = [arg.name for arg in self.kernel.args if arg.name in used]
        blocks = () if self.result is None else (self.result.blocks.id,)
        return (*blocks, *self.memory(), *tensors, *self.sizes())

    def function(self) -> Function:
        """Its function."""
        begin = self.begin_tile()
        part = Binary("+", Binary("*", Name("yprogram"), Number(self.parts)), Name(_PART))
        start = len(self.spaces)
        loops = self.list_loops()
        masked = any(one.has_mask for one in loops), any(one.ragged for one in loops)
        steps: list[Statement] = list(self._step(KeyLoop(Number(0), Number(1), *masked), is_first=True))
        longest = next((one for one in loops if not one.has_mask), loops[-1])
        is_wide = True
        for one in loops:
            if one is longest:
                # rounded weights that come from several loops would be unpacked and packed in each step
                steps.append(self._round())
                is_wide = False
            first = Number(1) if one.first == Number(0) else tl("maximum", one.first, Number(1))
            steps.append(For("step", call("range", first, one.last), self._step(one, is_wide=is_wide)))
        outside = _lay_out((*self.define(self.spaces[start:]), *self.writer.statements), _SCORES)
        lines = (
            *begin,
            Assign(("yprogram",), part),
            *outside,
            *self._start(),
            *_lay_out(steps, _SCORES),
            *self._results(),
        )
        return define_function(
            self.named("attend"),
            self.arguments(),
            self.tiles(lines),
            constants=(_PART, _SCORES, _SUMS, *self.constants()),
            gluon=True,
        )

    def _start(self) -> tuple[Statement, ...]:
        """Nothing is summed yet."""
        rows, row = List((Name(BLOCKS["y"]),)), _slice(1, _SCORES)
        f32 = tl_name("float32")
        part = Name(_PART)
        block = List((Name(BLOCKS["y"]), Name(self.query.near)))
        zeros = List((Name(BLOCKS["y"]), Name(BLOCKS["x"])))
        return (
            Assign((_MOST.id,), gl("full", rows, NOWHERE, f32, row)),
            Assign((_TOTAL.id,), gl("full", rows, Number(0.0), f32, row)),
            Assign((_TOTALS.id,), gl("full", zeros, Number(0.0), f32, Name(_SUMS))),
            Assign((_QUERY.id,), method(method(self.query.stages, "index", part), "reshape", block)),
            self.wait(self.query.full, part, Binary("&", TURN, Number(1))),
        )

    def _step(self, loop: KeyLoop, *, is_first: bool = False, is_wide: bool = True) -> tuple[Statement, ...]:
        """One block of keys: its scores and their softmax, beside the product of the weights and values of
        the block before. If `is_wide`, weights are rounded in the step that multiplies them.
        """
        writer = self.writer.inner()
        keys, rows = Name(BLOCKS["r"]), Name(BLOCKS["y"])
        raw = Name("raw")
        key = method(self.key.stages, "index", STAGE)
        key = method(key, "reshape", List((keys, Name(self.key.near))))
        key = method(key, "permute", Tuple((Number(1), Number(0))))
        zeros = gl("full", List((rows, keys)), Number(0.0), tl_name("float32"), Name(_SCORES))
        writer.statements += [
            *self.find_stage(),
            *self.find_key(loop.kind, Number(0) if is_first else Name("step")),
            self.wait(self.key.full, STAGE, PHASE),
        ]
        if is_wide and not is_first:
            writer.statements.append(self._round())
        writer.assign((raw,), _multiply(_QUERY, key, zeros, use_acc=Number(False)))
        if not is_first:
            before = Binary("%", Binary("-", DONE, Number(1)), Name(STAGES))
            writer.assign((_BEFORE,), before)
            writer.assign((_TOTALS,), self._add(_BEFORE))
        pending = Number(0 if is_first else 1)
        writer.assign((raw,), hopper("warpgroup_mma_wait", pending, deps=List((raw,))))
        writer.statements.append(self.arrive(self.key.free, STAGE))
        self._soften(raw, loop.has_mask, loop.ragged, writer)
        # waiting branches, and what is computed before stays before the wait for the product
        writer.statements.append(self.wait(self.value.full, STAGE, PHASE))
        if not is_first:
            both = (_TOTALS, _TOTAL)
            writer.assign(both, hopper("warpgroup_mma_wait", Number(0), deps=List(both)))
            writer.statements.append(self.arrive(self.value.free, _BEFORE))
            kept = gl("convert_layout", _KEPT, _slice(1, _SUMS))
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
        """The sums, and the product of weights and the values at `stage`, which begins."""
        block = List((Name(BLOCKS["r"]), Name(self.value.near)))
        values = method(method(self.value.stages, "index", stage), "reshape", block)
        return _multiply(_WEIGHT, values, _TOTALS)

    def _soften(self, raw: Name, has_mask: bool, ragged: bool, writer: Writer) -> None:
        """The weights of a block's scores, whose sums they join."""
        weights = self.weights
        tiles = (self.tile("y", 0), replace(self.tile("r", 0, ragged=ragged), axis=1))
        mask = weights.mask if has_mask else None
        scale = scale_of(weights.score, 0)
        roots = (*(() if scale is not None else (weights.score,)), *(() if mask is None else (mask,)))
        values = self.values(tiles, roots)
        outer = self.outer.setdefault(weights.score, Scope(writer=self.writer))
        order = values.find_pending(outer, roots)
        given = parameter(0, DType.F32)
        values.compute(outer, [n for n in order if n is not given and not self._is_changing(n)])
        inner = Scope(writer=writer.inner(), parent=outer, bound={given: raw})
        values.compute(inner, values.find_pending(inner, roots))
        score: Expression = raw if scale is not None else values.expression(inner, weights.score)
        hidden = hide(values, inner, mask, ragged)
        if hidden is not None:
            score = inner.writer.bind("score", tl("where", hidden, score, NOWHERE))
        elif not isinstance(score, Name):
            score = inner.writer.bind("score", score)
        self._close_scope(values, inner, writer)
        factor = self.factor
        top: Expression = gl("max", score, Number(1))
        scaled = top if self.is_far else _times(top, factor)
        new = writer.bind("new_most", tl("maximum", _MOST, scaled))
        base: Expression = new
        if hidden is not None or self.is_hiding():
            base = writer.bind("base", tl("where", Binary("==", new, NOWHERE), Number(0.0), new))
        if self.is_far:
            power = _times(Binary("-", score, insert_column(base)), factor)
            shrunk = _times(Binary("-", _MOST, base), factor)
        else:
            power = Binary("-", _times(score, factor), insert_column(base))
            shrunk = Binary("-", _MOST, base)
        writer.assign((_POWER,), tl("exp2", power))
        writer.assign((_KEPT,), tl("exp2", shrunk))
        total = Binary("+", Binary("*", _TOTAL, _KEPT), gl("sum", _POWER, Number(1)))
        writer.assign((_TOTAL,), total)
        writer.assign((_MOST,), new)

    def _results(self) -> tuple[Statement, ...]:
        """The last product, and what becomes of sums."""
        weights, part = self.weights, Name(_PART)
        start = len(self.spaces)
        writer = self.writer = self.writer.inner()
        lines: list[Statement] = [
            Assign((_BEFORE.id,), Binary("%", Binary("-", DONE, Number(1)), Name(STAGES))),
            Assign((_TOTALS.id,), self._add(_BEFORE)),
            Assign((_TOTALS.id,), hopper("warpgroup_mma_wait", Number(0), deps=List((_TOTALS,)))),
            self.arrive(self.value.free, _BEFORE),
        ]
        for name in (_TOTAL, _MOST):
            lines.append(Assign((name.id,), gl("convert_layout", name, _slice(1, _SUMS))))
        divisor: Expression = tl("where", Binary("==", _TOTAL, Number(0)), Number(1.0), _TOTAL)
        result = writer.bind("result", Binary("/", _TOTALS, insert_column(divisor)))
        rows = frozenset(weights.rows)
        results: dict[Scalar, tuple[Expression, frozenset[Expr]]] = {
            parameter(0, DType.F32): (result, frozenset(weights.ranges))
        }
        if self._stores_logarithms():
            logs: Expression = _times(_MOST, self.factor) if self.is_far else _MOST
            logs = Binary("+", logs, tl("log2", _TOTAL))
            if weights.logsumexp == "natural":
                natural = Binary("*", logs, Number(log(2)))
                logs = tl("where", Binary("==", _MOST, NOWHERE), Number(0.0), natural)
            found = writer.bind("logsumexp", insert_column(writer.bind("logarithm", logs)))
            results[parameter(1, DType.F32)] = (found, rows)
        for store in self.kernel.stores:
            if self.result is None or store.buffer != self.result.rows.buffer:
                self.store(store, "x", results)
        sent: tuple[Statement, ...] = ()
        if self.result is not None:
            sent = self._send(result, start)
        inside = self.define(self.spaces[start:])
        return (
            *lines,
            *_lay_out((*inside, *writer.statements), _SUMS),
            *sent,
            self.arrive(self.query.free, part),
        )

    def _send(self, result: Name, start: int) -> tuple[Statement, ...]:
        """Results go to memory by the copy engine, from where the query lay."""
        assert self.result is not None
        part, block = Name(_PART), List((Name(BLOCKS["y"]), Name(self.query.near)))
        rounded = method(result, "to", get_triton_type(self.result.dtype))
        row = Binary("*", Name("yprogram"), Name(BLOCKS["y"]))
        source = method(self.query.stages, "index", part)
        place = self.place(self.result, row)
        return (
            Do(method(method(source, "reshape", block), "store", rounded)),
            Do(hopper("fence_async_shared")),
            Do(hopper("tma.async_copy_shared_to_global", self.result.blocks, place, source)),
            Do(hopper("tma.store_wait", Number(0))),
        )

    def _stores_logarithms(self) -> bool:
        return any(
            isinstance(value, Parameter) and value.position == 1
            for store in self.kernel.stores
            for value in iterate_postorder((store.value,))
        )


# ---- Layouts ----


def _lay_out(statements: Sequence[Statement], layout: str) -> tuple[Statement, ...]:
    """`statements` with `layout` of blocks that they make from nothing: positions, and constants."""
    axes = {BLOCKS["y"]: 0, BLOCKS["x"]: 1, BLOCKS["r"]: 1}
    return lay_out_blocks(statements, axes, Name(layout))


def _slice(axis: int, layout: str) -> Expression:
    return gl("SliceLayout", Number(axis), Name(layout))


def _multiplied(columns: Expression) -> Expression:
    """How a group of warps holds a product of 64 rows and `columns`."""
    version, warps = List((Number(3), Number(0))), List((Number(GROUP_WARPS), Number(1)))
    return gl("NVMMADistributedLayout", version, warps, List((Number(16), columns, Number(16))))


def _multiply(left: Expression, right: Expression, total: Expression, **more: Expression) -> Expression:
    return hopper("warpgroup_mma", left, right, total, **more, is_async=Number(True))


def _allocate(element: Expression, extents: tuple[Expression, ...], one: SharedOperand) -> Expression:
    return gl("allocate_shared_memory", element, List(extents), Attribute(one.blocks, "layout"))


def _allocate_barriers(number: Expression) -> Expression:
    element, layout = Attribute(Name("gl"), "int64"), hopper("mbarrier.MBarrierLayout")
    return gl("allocate_shared_memory", element, List((number, Number(1))), layout)


def _times(value: Expression, factor: float) -> Expression:
    return Binary("*", value, Number(factor))
