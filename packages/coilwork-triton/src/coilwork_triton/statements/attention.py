"""The statements of attention: a block of rows goes through the keys, with an online softmax in powers of 2.

Scores are never in memory. The algorithm is that of FlashAttention-2 (Dao, 2023). The gradient is in
`attention_gradient.py`, and what both share in `attention_blocks.py`.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, floordiv, multiply_all
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core, find_key_sharing, find_sharing, index_of_store, roles_of
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.scalar import Parameter, Scalar, find_index_symbols, iterate_postorder, parameter
from coilwork_ir.syntax.python import (
    Assign,
    Binary,
    Expression,
    Function,
    If,
    Name,
    Number,
    Statement,
    method,
)
from coilwork_triton.attention_plan import PlannedAttention
from coilwork_triton.launch.parameters import BLOCKS
from coilwork_triton.statements.attention_blocks import (
    BLOCK,
    LOG2_E,
    NOWHERE,
    PROGRAM,
    AttentionBranch,
    convert,
    dot,
    hide,
    insert_column,
    joined_type,
    scale_of,
    transpose,
)
from coilwork_triton.statements.attention_gradient import GradientOfKeys, GradientOfQuery
from coilwork_triton.statements.scope import Scope
from coilwork_triton.statements.specialised_attention import emit_specialised_attention
from coilwork_triton.text.language import fill_shape, tl, tl_name

# ---- Entry ----


def emit_attention(
    plan: PlannedAttention, library: set[str]
) -> tuple[tuple[Function, ...], tuple[Statement, ...]]:
    """Functions of the kernel's own, and all statements of its function. Names of device functions used are
    added to `library`.

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
        if plan.consumers:
            return emit_specialised_attention(plan, core, library)
        return (), (start, *_Forward(plan, core, library).statements())
    of_keys = GradientOfKeys(plan, core, library)
    of_query = GradientOfQuery(plan, core, library)
    count = of_keys.count_programs()
    return (), (
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
    if plan.resident:
        return (as_expr(plan.resident),)
    kernel = plan.kernel
    roles = roles_of(kernel)
    others = multiply_all(r.extent for r in roles.others)
    programs = ceildiv(roles.rows.extent, BLOCK) * others
    if isinstance(kernel.core, AttentionGradientCore):
        outer = multiply_all(floordiv(s.extent, s.count) for s in find_key_sharing(kernel))
        programs = programs + ceildiv(roles.keys.extent, BLOCK) * outer
    return (programs,)


def _require_sides(kernel: Kernel) -> None:
    """Refuse operands that are not of one side alone, and gradients that are not summed by one program."""
    core, roles = find_core(kernel), roles_of(kernel)
    assert core is not None
    weights, row = core.weights, roles.rows.symbol
    if row in find_index_symbols((weights.key,)) or row in find_index_symbols((weights.value,)):
        raise EmitError(core.kind, "keys or values differ from row to row")
    if isinstance(core, AttentionGradientCore):
        of_bias = index_of_store(kernel, 3) if core.bias is not None else None
        if of_bias is not None and (
            row not in of_bias.free_symbols or roles.keys.symbol in of_bias.free_symbols
        ):
            raise EmitError(core.kind, "the gradient of a bias is summed along the keys of a row alone")
        for index in (index_of_store(kernel, 0), *(() if of_bias is None else (of_bias,))):
            shared = None if index is None else find_sharing(kernel, roles, index)
            if shared is None or any(as_int(one.count) != 1 for one in shared):
                raise EmitError(core.kind, "several points share a query, or a row of a bias")
        find_key_sharing(kernel)


# ---- Attention ----


class _Forward(AttentionBranch):
    """Attention: a block of rows, and all keys."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)
        scale = scale_of(core.weights.score, 0)
        self.factor = LOG2_E * (1.0 if scale is None else scale)
        self.is_far = self.has_far_scores()

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
        result = writer.bind("result", Binary("/", sums, insert_column(divisor)))
        rows = frozenset(weights.rows)
        results: dict[Scalar, tuple[Expression, frozenset[Expr]]] = {
            parameter(0, DType.F32): (result, frozenset(weights.ranges))
        }
        if any(
            isinstance(v, Parameter) and v.position == 1
            for s in kernel.stores
            for v in iterate_postorder((s.value,))
        ):
            scaled = _times(most, self.factor) if self.is_far else most
            logs: Expression = Binary("+", scaled, tl("log2", total))
            if weights.logsumexp == "natural":
                natural = Binary("*", logs, Number(log(2)))
                logs = tl("where", Binary("==", most, NOWHERE), Number(0.0), natural)
            found = writer.bind("logsumexp", insert_column(writer.bind("logarithm", logs)))
            results[parameter(1, DType.F32)] = (found, rows)
        for store in kernel.stores:
            self.store(store, "x", results)
        lines = self.lines(Name("yprogram"), Name(PROGRAM.name))
        count = multiply_all(r.extent for r in self.roles.others)
        return (*self.number_programs(count), *lines, *writer.statements)

    def _step(self, has_mask: bool, ragged: bool) -> tuple[Statement, ...]:
        weights = self.weights
        writer = self.writer.inner()
        tile = self.tile("r", 0, ragged=ragged)
        key = self.operand(weights.key, tile, self.tile("l", 1), writer)
        both = joined_type(weights.query.dtype, weights.key.dtype)
        query, other = (
            convert(value, both) if dtype is not both else value
            for value, dtype in ((self.query, weights.query.dtype), (key, weights.key.dtype))
        )
        raw = writer.bind("raw", dot(query, transpose(other), both))
        tiles = (self.tile("y", 0), replace(tile, axis=1))
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
        factor = self.factor
        hidden = hide(values, inner, mask, ragged)
        if hidden is not None:
            score = inner.writer.bind("score", tl("where", hidden, score, NOWHERE))
        elif not isinstance(score, Name):
            score = inner.writer.bind("score", score)
        # a score of one row for all, or of one key for all, is spread
        self._close_scope(values, inner, writer)
        most, total, sums = Name("most"), Name("total"), Name("sums")
        if scale is None and self.levels.varies[weights.score].isdisjoint((self.fixed.symbol,)):
            score = writer.bind("score", Binary("+", score, tl("zeros_like", raw)))
        # times the factor, or before that if scores may be so large that products with it are infinite
        top: Expression = tl("max", score, Number(1))
        new = writer.bind("new_most", tl("maximum", most, top if self.is_far else _times(top, factor)))
        base: Expression = new
        if hidden is not None or self.is_hiding():
            base = writer.bind("base", tl("where", Binary("==", new, NOWHERE), Number(0.0), new))
        if self.is_far:
            power = _times(Binary("-", score, insert_column(base)), factor)
            shrunk = _times(Binary("-", most, base), factor)
        else:
            power = Binary("-", _times(score, factor), insert_column(base))
            shrunk = Binary("-", most, base)
        weight = writer.bind("weight", tl("exp2", power))
        kept = writer.bind("kept", tl("exp2", shrunk))
        writer.assign((total,), Binary("+", Binary("*", total, kept), tl("sum", weight, Number(1))))
        writer.assign((sums,), Binary("*", sums, insert_column(kept)))
        value = self.operand(weights.value, tile, self.tile("x", 1), writer)
        writer.assign((sums,), dot(convert(weight, weights.value.dtype), value, weights.value.dtype, sums))
        writer.assign((most,), new)
        return tuple(writer.statements)


def _times(value: Expression, factor: float) -> Expression:
    return Binary("*", value, Number(factor))
