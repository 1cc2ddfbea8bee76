"""Attention in the form that libraries take: four dimensions, a scale, perhaps a bias, perhaps causal.

`make_attention` and `make_attention_gradient` build the nodes, `match_library_attention` reads one back, by
making it again and comparing. Lowering builds attention so; implementations that are calls of a library claim
what is of this form, and nobody looks at the name of an operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final, Literal, TypeAlias

from coilwork_ir.buffers import Argument, Buffer, SymbolOutput
from coilwork_ir.dtypes import DType
from coilwork_ir.index import Expr, as_expr, as_int, floordiv, symbol
from coilwork_ir.loc import UNKNOWN, Origin
from coilwork_ir.loops.nodes import Attention, AttentionGradient, StateForm, Weights
from coilwork_ir.loops.verify_attention import find_operand
from coilwork_ir.scalar import (
    Const,
    IndexValue,
    Op,
    Scalar,
    cast,
    const,
    index_value,
    load,
    op,
    parameter,
)

Causal: TypeAlias = Literal["", "first", "last"]
"""Keys that count for a row: all, or those up to its place. The `first` row and key are level, or the
`last`."""

ATTENTION: Final = "attention"
ATTENTION_GRADIENT: Final = "attention gradient"
"""What calls of a library implement whose first arguments are query, key and value, and those of its
gradient.
"""

_RANK: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryAttention:
    """Operands of `softmax(scale * query @ key.T + bias) @ value` and of its gradient.

    Shapes: `query` is `[batch, heads, rows, length]`, `key` `[batch, fewer heads, keys, length]`, `value`
    `[batch, fewer heads, keys, columns]`; `bias`, of two dimensions or four, is broadcast to `[batch, heads,
    rows, keys]`.
    """

    query: Buffer
    key: Buffer
    value: Buffer
    bias: Buffer | None = None
    scale: float
    causal: Causal = ""
    dropout: float = 0.0
    form: StateForm = "plain"

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Query, key, value, and the bias, if there is one."""
        return (self.query, self.key, self.value, *(() if self.bias is None else (self.bias,)))

    @property
    def has_default_scale(self) -> bool:
        """True if the scale is one over the root of the length, what libraries take if told none."""
        return self.scale == compute_default_scale(self.query)

    def why_malformed(self) -> str | None:
        """Return why no node says this; None if one does."""
        query, key, value = self.query.shape, self.key.shape, self.value.shape
        if {len(query), len(key), len(value)} != {_RANK}:
            return "operands have four dimensions"
        agree = (
            (query[0], key[0]),
            (query[0], value[0]),
            (key[1], value[1]),
            (key[2], value[2]),
            (query[3], key[3]),
        )
        if any(ours is not theirs for ours, theirs in agree):
            return "batches, heads of keys and lengths are alike"
        if _count_sharing_heads(query[1], key[1]) is None:
            return "heads of keys are for as many heads each"
        types = {operand.dtype for operand in (self.query, self.key, self.value)}
        if len(types) != 1 or not self.query.dtype.is_float or self.query.dtype.itemsize < 2:
            return "operands are floats of one type"
        if len({operand.device for operand in self.operands}) != 1:
            return "operands are on one device"
        return (
            None
            if self.bias is None
            else _why_bias_malformed(self.bias, (*query[:3], key[2]), self.query.dtype)
        )

    def build_weights(self) -> Weights:
        """Return the weights as a node has them."""
        wide = self.query.dtype.compute
        extents = (*self.query.shape[:3], self.value.shape[3])
        ranges = tuple(symbol(f"i{k}", extent=size) for k, size in enumerate(extents))
        batch, head, row, column = ranges
        keys, length = symbol("r0", extent=self.key.shape[2]), symbol("r1", extent=self.key.shape[3])
        group = _count_sharing_heads(self.query.shape[1], self.key.shape[1]) or 1
        shared = as_expr(0) if as_int(self.key.shape[1]) == 1 else floordiv(head, group)
        score = op("mul", parameter(0, wide), const(self.scale, wide))
        if self.bias is not None:
            score = op(
                "add", score, cast(load(self.bias.name, self.index_bias(ranges, keys), self.bias.dtype), wide)
            )
        return Weights(
            ranges=ranges,
            axes=(keys, length),
            query=load(self.query.name, (batch, head, row, length), self.query.dtype),
            key=load(self.key.name, (batch, shared, keys, length), self.key.dtype),
            value=load(self.value.name, (batch, shared, keys, column), self.value.dtype),
            accumulate=wide,
            score=score,
            mask=_build_mask(self.causal, row, keys),
            dropout=self.dropout,
            form=self.form,
        )

    def index_bias(self, ranges: tuple[Expr, ...], keys: Expr) -> tuple[Expr, ...]:
        """Return the index of the bias of a score."""
        assert self.bias is not None
        places = (*ranges[:-1], keys)[-len(self.bias.shape) :]
        wanted = (*self.query.shape[:3], self.key.shape[2])[-len(self.bias.shape) :]
        return tuple(
            as_expr(0) if as_int(own) == 1 and as_int(size) != 1 else place
            for own, size, place in zip(self.bias.shape, wanted, places, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientOperands:
    """Operands of a gradient besides the attention's own."""

    gradient: Buffer
    output: Buffer
    logsumexp: Buffer


def compute_default_scale(query: Buffer) -> float | None:
    """One over the root of the length of `query`, as libraries compute it; None if that is not known."""
    length = as_int(query.shape[-1])
    return None if not length else 1.0 / sqrt(length)


def make_attention(
    parts: LibraryAttention,
    output: Buffer,
    logsumexp: Buffer | None,
    *,
    stores_logsumexp: bool = True,
    state: tuple[Buffer | SymbolOutput | None, ...] = (),
    origins: tuple[Origin, ...] = UNKNOWN,
) -> Attention:
    """Return the node that computes `output`. The logsumexp may have further dimensions of one element."""
    weights = parts.build_weights()
    stores = logsumexp is not None and stores_logsumexp
    return Attention(
        weights=weights,
        output=output,
        logsumexp=logsumexp,
        logsumexp_at=_index_logsumexp(weights, logsumexp) if logsumexp is not None and stores else None,
        state=state,
        origins=origins,
    )


def make_attention_gradient(
    parts: LibraryAttention,
    saved: GradientOperands,
    of_operands: tuple[Buffer, Buffer, Buffer],
    of_bias: Buffer | None = None,
    *,
    state: tuple[Argument, ...] = (),
    origins: tuple[Origin, ...] = UNKNOWN,
) -> AttentionGradient:
    """Return the node that computes the gradients of query, key and value, and of the bias, if that is
    wanted.
    """
    weights = parts.build_weights()
    wide = weights.accumulate
    passed = parameter(1, wide)
    of_query, of_key, of_value = of_operands
    return AttentionGradient(
        weights=weights,
        of_query=of_query,
        of_key=of_key,
        of_value=of_value,
        of_bias=of_bias,
        output=load(saved.output.name, weights.ranges, saved.output.dtype),
        logsumexp=load(
            saved.logsumexp.name, _index_logsumexp(weights, saved.logsumexp), saved.logsumexp.dtype
        ),
        gradient=load(saved.gradient.name, weights.ranges, saved.gradient.dtype),
        slope=op("mul", passed, const(parts.scale, wide)),
        bias=None if of_bias is None else passed,
        bias_at=() if of_bias is None else parts.index_bias(weights.ranges, weights.keys),
        state=state,
        origins=origins,
    )


def match_library_attention(
    node: Attention | AttentionGradient, buffers: Mapping[str, Buffer]
) -> tuple[LibraryAttention, GradientOperands | None] | None:
    """Return the operands of `node`, if it is as these functions make it; None if it has another form.

    Those that only gradients have come second.
    """
    parts = _read_parts(node.weights, buffers)
    if parts is None or parts.why_malformed() is not None or parts.build_weights() != node.weights:
        return None
    if isinstance(node, Attention):
        if node.output.dtype is not parts.query.dtype:
            return None
        again = make_attention(
            parts,
            node.output,
            node.logsumexp,
            stores_logsumexp=node.logsumexp_at is not None,
            state=node.state,
            origins=node.origins,
        )
        return (parts, None) if again == node else None
    if node.output is None:
        return None
    operands = [_find_operand(value, buffers) for value in (node.gradient, node.output, node.logsumexp)]
    gradient, output, logsumexp = operands
    if gradient is None or output is None or logsumexp is None:
        return None
    saved = GradientOperands(gradient=gradient, output=output, logsumexp=logsumexp)
    of_operands = (node.of_query, node.of_key, node.of_value)
    if node.of_bias is not None and parts.bias is None:
        return None
    remade = make_attention_gradient(
        parts, saved, of_operands, node.of_bias, state=node.state, origins=node.origins
    )
    return (parts, saved) if remade == node else None


def _read_parts(weights: Weights, buffers: Mapping[str, Buffer]) -> LibraryAttention | None:
    score, bias = weights.score, None
    if isinstance(score, Op) and score.op == "add":
        score, added = score.operands
        bias = _find_operand(added, buffers)
        if bias is None:
            return None
    if not isinstance(score, Op) or score.op != "mul" or not isinstance(score.operands[1], Const):
        return None
    query, key, value = (_find_operand(body, buffers) for body in (weights.query, weights.key, weights.value))
    if query is None or key is None or value is None:
        return None
    return LibraryAttention(
        query=query,
        key=key,
        value=value,
        bias=bias,
        scale=float(score.operands[1].value),
        causal=_read_causal(weights),
        dropout=weights.dropout,
        form=weights.form,
    )


def _find_operand(value: Scalar, buffers: Mapping[str, Buffer]) -> Buffer | None:
    operand = find_operand(value)
    return None if operand is None else buffers[operand.buffer]


def _build_mask(causal: Causal, row: Expr, keys: Expr) -> Scalar | None:
    if not causal:
        return None
    assert row.extent is not None and keys.extent is not None
    ahead = keys.extent - row.extent if causal == "last" else as_expr(0)
    return op("le", index_value(keys), index_value(row + ahead))


def _read_causal(weights: Weights) -> Causal:
    """Return the kind of mask; the wrong one is found out by making the weights again."""
    mask = weights.mask
    if not isinstance(mask, Op) or mask.op != "le" or not isinstance(mask.operands[1], IndexValue):
        return ""
    return "first" if mask.operands[1].expr is weights.rows[-1] else "last"


def _index_logsumexp(weights: Weights, buffer: Buffer) -> tuple[Expr, ...]:
    return (*weights.rows, *(as_expr(0) for _ in buffer.shape[len(weights.rows) :]))


def _count_sharing_heads(heads: Expr, shared: Expr) -> int | None:
    """Return the number of heads that share keys; None if it differs or is not known."""
    if heads is shared:
        return 1
    many, few = as_int(heads), as_int(shared)
    if many is None or not few or many % few:
        return None
    return many // few


def _why_bias_malformed(bias: Buffer, scores: tuple[Expr, ...], dtype: DType) -> str | None:
    if len(bias.shape) not in (2, _RANK):
        return "a bias has two dimensions or four"
    if not bias.dtype.is_float or bias.dtype.itemsize < 2 or bias.dtype.itemsize > dtype.compute.itemsize:
        return "a bias is of floats that sums hold"
    behind = scores[-len(bias.shape) :]
    if any(own is not size and as_int(own) != 1 for own, size in zip(bias.shape, behind, strict=True)):
        return "a bias is broadcast to the scores"
    return None
