"""The statements of attention: a block of rows goes through the keys, with an online softmax in powers of 2.

Scores are never in memory. The algorithm is that of FlashAttention-2 (Dao, 2023). The gradient is in
`attention_gradient.py`, and what both share in `attention_blocks.py`.
"""

from __future__ import annotations

from math import inf

from coilwork_ir.dtypes import DType
from coilwork_ir.errors import EmitError
from coilwork_ir.index import Expr, as_expr, as_int, ceildiv, floordiv, multiply_all
from coilwork_ir.kernels import Kernel
from coilwork_ir.kernels.attention import find_core, find_key_sharing, find_sharing, index_of_store, roles_of
from coilwork_ir.kernels.nodes import AttentionCore, AttentionGradientCore
from coilwork_ir.scalar import Scalar, find_index_symbols, parameter
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
    PROGRAM,
    convert,
    dot,
    insert_column,
    join_types,
    transpose,
)
from coilwork_triton.statements.attention_gradient import GradientOfKeys, GradientOfQuery
from coilwork_triton.statements.attention_softmax import OnlineSoftmax
from coilwork_triton.statements.specialised_attention import emit_specialised_attention
from coilwork_triton.statements.specialised_gradient import emit_specialised_gradient
from coilwork_triton.text.language import fill_shape, tl, tl_name
from coilwork_triton.text.variables import rename_apart

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
    if plan.consumers:
        return emit_specialised_gradient(plan, core, library)
    of_keys = GradientOfKeys(plan, core, library)
    of_query = GradientOfQuery(plan, core, library)
    count = of_keys.count_programs()
    keys, query = of_keys.statements(), of_query.statements()
    # numbers of one name differ in width and blocks in shape, as the two sides' extents do
    query = rename_apart(query, keys)
    of_rest = Assign(("program",), Binary("-", Name("program"), Name("first_programs")))
    return (), (
        start,
        Assign(("first_programs",), count),
        If(Binary("<", Name("program"), Name("first_programs")), keys, (of_rest, *query)),
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


class _Forward(OnlineSoftmax):
    """Attention: a block of rows, and all keys."""

    def __init__(self, plan: PlannedAttention, core: AttentionCore, library: set[str]) -> None:
        roles = roles_of(plan.kernel)
        super().__init__(plan, core, library, fixed=roles.rows, looped=roles.keys)

    def statements(self) -> tuple[Statement, ...]:
        """Return all statements behind the program's number."""
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
        if self.stores_logarithms():
            results[parameter(1, DType.F32)] = (self.find_logarithms(most, total, writer), rows)
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
        both = join_types(weights.query.dtype, weights.key.dtype)
        query, other = (
            convert(value, both) if dtype is not both else value
            for value, dtype in ((self.query, weights.query.dtype), (key, weights.key.dtype))
        )
        raw = writer.bind("raw", dot(query, transpose(other), both))
        most, total, sums = Name("most"), Name("total"), Name("sums")
        found = self.compute_weights(raw, most, writer, has_mask=has_mask, ragged=ragged)
        weight, kept = writer.bind("weight", found.weight), writer.bind("kept", found.kept)
        writer.assign((total,), Binary("+", Binary("*", total, kept), tl("sum", weight, Number(1))))
        writer.assign((sums,), Binary("*", sums, insert_column(kept)))
        value = self.operand(weights.value, tile, self.tile("x", 1), writer)
        writer.assign((sums,), dot(convert(weight, weights.value.dtype), value, weights.value.dtype, sums))
        writer.assign((most,), found.most)
        return tuple(writer.statements)
